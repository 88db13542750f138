"""The limit of open files, which a coordinator of many ranks must raise."""

from __future__ import annotations

import resource

_SPARE_DESCRIPTORS = 64
_DESCRIPTORS_PER_RANK = 2  # its connections to the ZeroMQ socket and to the store


class LimitError(Exception):
    """A limit is too low for the job."""


def needed_descriptors(world_size: int) -> int:
    return _SPARE_DESCRIPTORS + _DESCRIPTORS_PER_RANK * world_size


def allow_descriptors(world_size: int) -> None:
    """Raise the soft limit of open files to the hard limit; LimitError if that is too low for the job."""
    needed = needed_descriptors(world_size)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LimitError(
            f"{world_size} ranks need {needed} open files in the coordinator, but the limit is {hard}: "
            f"raise it (ulimit -Hn {needed}, or LimitNOFILE= of the service), or use fewer ranks"
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
