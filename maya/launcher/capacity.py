"""Checks before the start of a job whether this machine has room for its ranks.

`examine` reads the limits of the machine; each `check_` function takes such a value, so that every verdict can be
tested on any machine. The launcher refuses a job that fails a check, and prints warnings.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from maya.doctor import Check, Verdict, available_memory
from maya.util.open_files import needed_descriptors
from maya.util.text import bytes_text

_MIB = 2**20
ZYGOTE_BYTES = 600 * _MIB  # includes the coordinator
_RANK_BYTES = 18 * _MIB  # memory that a rank of a small job does not share with the zygote
_UNSHARED_RANK_BYTES = 250 * _MIB  # the same for a rank that imports torch itself
_DEVICE_SPAN = 4 << 40  # DEVICE_SPAN in rank_runtime/shim/device/memory.c
_RANK_THREADS = 12  # in a rank that trains: its own, autograd's, ProcessGroupNCCL's, the virtual GPU's, ZeroMQ's
_FEWEST_THREADS = 2


def examine(world_size: int, *, shared: bool) -> Iterator[Check]:
    """Check all limits. `shared`: the ranks are forked from one process that has imported torch."""
    yield check_open_files(world_size, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield check_processes(world_size, *_process_limit())
    yield check_memory(world_size, available_memory(), shared=shared)
    yield check_address_space(resource.getrlimit(resource.RLIMIT_AS)[0])


def check_open_files(world_size: int, hard: int) -> Check:
    """Check the hard limit: the coordinator connects to all ranks, and raises the soft limit itself."""
    needed = needed_descriptors(world_size)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return Check("open files", Verdict.OK, str(hard))
    advice = (
        f"{world_size} ranks need {needed}: raise nofile in /etc/security/limits.conf (in a container: "
        f"--ulimit nofile={needed}), or run one rank of each kind (--represent auto)"
    )
    return Check("open files", Verdict.FAIL, f"at most {hard}", advice)


def check_processes(world_size: int, limit: int | None, source: str) -> Check:
    """Check the number of threads, which the limits count. `limit`: the remainder of the lowest limit, or None."""
    if limit is None or limit >= world_size * _RANK_THREADS:
        return Check("processes", Verdict.OK, "enough" if limit is None else str(limit))
    advice = f"{world_size} ranks need about {world_size * _RANK_THREADS} with their threads: raise {source}"
    verdict = Verdict.FAIL if limit < world_size * _FEWEST_THREADS else Verdict.WARN
    return Check(
        "processes", verdict, f"at most {limit} more", advice + ", or run one rank of each kind (--represent auto)"
    )


def check_memory(world_size: int, available: int, *, shared: bool) -> Check:
    needed = ZYGOTE_BYTES + world_size * (_RANK_BYTES if shared else _UNSHARED_RANK_BYTES)
    found = f"{bytes_text(available)} available"
    if available >= needed:
        return Check("memory", Verdict.OK, found)
    advice = f"{world_size} ranks need about {bytes_text(needed)}, more if their batches are kept in host memory"
    verdict = Verdict.FAIL if available < needed // 4 else Verdict.WARN
    return Check(
        "memory",
        verdict,
        found,
        advice + ": run one rank of each kind (--represent auto), or use a machine with more memory",
    )


def check_address_space(limit: int) -> Check:
    """The memory of a GPU is reserved in the address space of its rank."""
    if limit == resource.RLIM_INFINITY or limit >= _DEVICE_SPAN + ZYGOTE_BYTES:
        return Check("address space", Verdict.OK, "enough")
    advice = "use ulimit -v unlimited: a rank reserves the memory of its GPU there, and uses little of it"
    return Check("address space", Verdict.FAIL, f"at most {bytes_text(limit)}", advice)


def bytes_per_rank(*, shared: bool) -> int:
    """The memory that a rank of a small job takes for itself."""
    return _RANK_BYTES if shared else _UNSHARED_RANK_BYTES


def ranks_that_fit(available: int, rank_bytes: int) -> int:
    """How many ranks fit into memory beside each other, if each takes so much for itself; at least one. A fifth of the
    memory stays free: ranks differ."""
    return max(1, (available * 4 // 5 - ZYGOTE_BYTES) // max(rank_bytes, _RANK_BYTES))


def _process_limit() -> tuple[int | None, str]:
    """The remainder of the lowest limit, and its name for the user."""
    limits: list[tuple[int, str]] = []
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is exempt
        limits.append((soft, "nproc (ulimit -u)"))
    running = _running_threads()
    for file, name in (
        ("/proc/sys/kernel/pid_max", "kernel.pid_max (sysctl -w kernel.pid_max=4194304)"),
        ("/proc/sys/kernel/threads-max", "kernel.threads-max (sysctl)"),
    ):
        value = _whole(Path(file))
        if value is not None:
            limits.append((value - running, name))
    limits += [(left, "the control group's pids.max (in a container: --pids-limit)") for left in _left_in_groups()]
    return min(limits, default=(None, ""), key=lambda limit: limit[0] if limit[0] is not None else 0)


def _running_threads() -> int:
    """The number of threads on the machine: the second part of "2/345" in /proc/loadavg."""
    return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].split("/")[1])


def _left_in_groups() -> Iterator[int]:
    """The remainder of pids.max in the process's control group and its parents."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "pids" not in controllers.split(","):
            continue
        folder = Path("/sys/fs/cgroup" if not controllers else "/sys/fs/cgroup/pids") / path.lstrip("/")
        for group in (folder, *folder.parents):
            limit, used = _whole(group / "pids.max"), _whole(group / "pids.current")
            if limit is not None and used is not None:
                yield max(0, limit - used)


def _whole(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max": there is no limit
        return None
