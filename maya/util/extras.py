"""Optional packages, and the error message when one of them is missing.

In: imports in a `with needs(...)` block. Out: `MissingPackage`, whose text says what to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingPackage(ImportError):
    """A package of an extra is not installed. The text addresses the user."""


@contextmanager
def needs(extra: str, purpose: str) -> Iterator[None]:
    """Context for imports of packages from `extra`, which `purpose` needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"{purpose} needs {error.name}, which is not installed: pip install 'maya-torchrun[{extra}]'",
            name=error.name,
        ) from error
