"""Packages that only some parts of Maya need, and the message where one of them is missing.

In: imports in a `with needs(...)` block. Out: `MissingPackage`, whose text says what to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingPackage(ImportError):
    """A package of an extra is not installed. The text is for the user."""


@contextmanager
def needs(extra: str, purpose: str) -> Iterator[None]:
    """Around imports of packages that `extra` installs, which `purpose` needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"{purpose} needs {error.name}, which is not installed: pip install 'maya-torchrun[{extra}]'",
            name=error.name,
        ) from error
