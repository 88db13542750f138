"""The working folder of a command, which another program may have deleted."""

from __future__ import annotations

from pathlib import Path


def missing_working_folder() -> str | None:
    """A sentence for the user if the working folder does not exist any more."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the working folder was deleted, so paths mean nothing; change to another folder (cd)"
    except OSError as error:
        return f"the working folder cannot be read ({error.strerror}); change to another folder (cd)"
    return None
