"""Atomic writes: a file is complete or does not exist."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
