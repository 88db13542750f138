"""Files of a run's folder: atomic writes (a file is complete or does not exist), and JSON files with a version."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_atomically(file: Path, text: str) -> Path:
    """Write `text` to `file`; after an error the previous file is unchanged."""
    with atomic_replacement(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return file


@contextmanager
def atomic_replacement(file: Path) -> Iterator[Path]:
    """A temporary path beside `file`, renamed to it at the end of the block, or deleted after an error."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_versioned(file: Path, version: int) -> dict[str, Any] | None:
    """The content of a JSON file of a run's folder; None if there is none. Damaged files and those of another version
    are a ValueError that names the file."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}; run the job again") from error
    found = content.get("version") if isinstance(content, dict) else None
    if found != version:
        raise ValueError(f"{file} has version {found}; this Maya reads version {version}")
    return content


@contextmanager
def damage_reported(file: Path) -> Iterator[None]:
    """Turn errors about the content of a file of a run's folder into a ValueError that names the file."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{file} is damaged: {reason}; run the job again") from error
