"""The only exception of the build. Its text is for the user: what failed, where, and what to do."""

from __future__ import annotations


class BuildError(RuntimeError):
    """The fake libraries could not be built."""
