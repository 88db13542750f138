"""Files that are complete or not there at all."""

from __future__ import annotations

from pathlib import Path


def write_atomically(file: Path, text: str) -> Path:
    """Write a temporary file beside it, then rename that. OSError: nothing is left behind, and what was there stays."""
    temporary = file.with_name(f"{file.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        return temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
