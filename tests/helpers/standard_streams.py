"""Standard streams as a careless parent leaves them: closed, or a pipe without a reader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def close_standard_streams() -> None:
    for descriptor in range(3):
        os.close(descriptor)


@contextmanager
def broken_pipe() -> Iterator[int]:
    """The writing end of a pipe that has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)
