"""The control groups (cgroups) that this process is really in, and what they say about memory.

In: /proc/self/cgroup and the files of control groups, version 1 or 2. Out: memory that is left under their limits, and
how many processes the kernel has killed in the process's own group because memory ran out. A container sees its own
group as the root; outside of one, the group of a batch system or of systemd is below the root.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes a number of about 2**63 for "no limit"


@dataclass(frozen=True)
class MemoryLimit:
    """The memory limit of a control group."""

    folder: Path
    limit: int  # bytes
    used: int  # bytes, without file pages that the kernel can drop

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)


def memory_limits(own: Path = _OWN, root: Path = _ROOT) -> list[MemoryLimit]:
    """The limits of the process's group and of the groups around it."""
    found = []
    for folder in [folder for groups in _memory_groups(own, root) for folder in groups]:
        limit = _first_number(folder, "memory.max", "memory.limit_in_bytes")
        used = _first_number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _NO_LIMIT:
            droppable = _entry(folder / "memory.stat", "inactive_file") or 0
            found.append(MemoryLimit(folder, limit, max(0, used - droppable)))
    return found


def killed_for_memory(own: Path = _OWN, root: Path = _ROOT) -> int | None:
    """How many processes of this process's group the kernel has killed because memory ran out, wherever the limit was;
    None: not known. Where groups do not count, those of the whole machine."""
    for groups in _memory_groups(own, root):
        for file in ("memory.events", "memory.oom_control"):
            count = _entry(groups[0] / file, "oom_kill")  # the groups around it count others as well
            if count is not None:
                return count
    return _entry(Path("/proc/vmstat"), "oom_kill") if own == _OWN else None


def _memory_groups(own: Path, root: Path) -> Iterator[list[Path]]:
    """For each hierarchy, the folders of the process's group and of the groups around it, innermost first."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        folder = top / path.lstrip("/")
        if not folder.is_dir():  # a container that shows the path outside of it
            folder = top
        yield [folder, *(group for group in folder.parents if group.is_relative_to(top))]


def _first_number(folder: Path, *names: str) -> int | None:
    for name in names:
        try:
            return int((folder / name).read_text(encoding="ascii"))
        except (OSError, ValueError):  # "max": there is no limit
            continue
    return None


def _entry(file: Path, name: str) -> int | None:
    """A line "name number" of a file."""
    try:
        for line in file.read_text(encoding="ascii").splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name:
                return int(words[1])
    except (OSError, ValueError):
        pass
    return None
