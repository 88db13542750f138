"""The protocol between the launcher and the zygote, declared here once for both.

The launcher writes lines of JSON to a memfd that the zygote inherits: a `Preparation`, before it starts the zygote, and
a `Start`, as soon as the coordinator serves and the ranks' environment is therefore known. A `Start` is one line for
the common environment and one line for each rank. Commands go through a pipe, one line each:

    {"start": true}       the `Start` is written: fork the ranks
    {"signal": 15}        the job is being stopped: send the signal to the process groups of all running ranks
    {"continue": true}    continue the ranks that were stopped for a debugger, and the job

When that pipe is closed, for whatever reason, the job ends: the zygote kills the remaining ranks and ends the
coordinator.

Reports come back through another pipe as lines of JSON, each written at once. The coordinator writes to the same pipe
(coordinator/process.py):

    {"importing": true}                              the zygote has started
    {"unshared": {"tokenizers": "starts a thread"}}  modules that every rank imports itself, and why
    {"imports": {"probed": 3, "known": 0, "shared": 2}}
                                                     numbers of the script's modules (`preload`)
    {"not_forked": "..."}                            why the ranks are separate processes instead of forks
    {"ready": true}                                  the zygote is ready to fork the ranks
    {"started": {"rank": 3, "pid": 4711}}
    {"forked": true}                                 no more ranks will be started: all are, or the job is being stopped
    {"exited": {"rank": 3, "status": -9, "private_bytes": 0}}
                                                     an exit code, or a negative signal number, as in `subprocess`; the
                                                     memory that it had for itself at its end, 0: not measured
    {"coordinator_exited": {"pid": 4710, "status": -9}}
    {"zygote_failed": "..."}                         the reason
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "MAYA_ZYGOTE"
SEPARATE = "separate"  # its value in a rank that is a process of its own (separate_rank.py)
ENTRY = Path(__file__).parent / "entry"  # for PYTHONPATH
BIND_AT_ONCE = "LD_BIND_NOW"  # a variable of the dynamic loader; ranks do not see it, unless the user has set it


@dataclass(frozen=True)
class Descriptors:
    """The descriptors that the zygote inherits (the memfd, and its ends of the two pipes), and the launcher's process
    id, which the zygote could no longer find out if the launcher had already ended."""

    plan: int
    commands: int
    reports: int
    launcher: int  # process id

    def text(self) -> str:
        return f"{self.plan},{self.commands},{self.reports},{self.launcher}"

    @staticmethod
    def parse(text: str) -> Descriptors:
        return Descriptors(*map(int, text.split(",")))


PlainValue = str | int | float | bool | None

# The function that a coordinator's "module:function" names. Arguments: its settings, the descriptor that it writes
# reports to, the descriptor that it reads the ends of ranks from, and the zygote's process id. Returns an exit code.
EntryPoint = Callable[[Mapping[str, PlainValue], int, int, int], int]


@dataclass(frozen=True)
class Preparation:
    """What the zygote needs before it forks ranks."""

    world_size: int
    processes: int  # ranks to fork; the others are absent
    share: bool  # import modules before the fork; otherwise every rank executes its command
    torch: bool  # import torch's usual modules as well
    script: str | None  # the file that Python will run; its import statements name modules to import
    module: str | None  # or the module that Python will run (-m)
    modules: tuple[str, ...]  # further modules to import
    rank_variables: tuple[str, ...]  # environment variables that differ between ranks
    coordinator: str = ""  # its entry point, "module:function" (see `EntryPoint`); empty: the job has no coordinator
    coordinator_settings: Mapping[str, PlainValue] = field(default_factory=dict)


@dataclass(frozen=True)
class RankStart:
    """One rank: its command (used only if it is a separate process), its own environment variables, and the files for
    its output (None: the launcher's output)."""

    rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: str | None
    stderr: str | None


@dataclass(frozen=True)
class Start:
    """All ranks."""

    environment: Mapping[str, str]  # common to all ranks
    ranks: Iterable[RankStart]


class PlanFile:
    """The memfd, at either end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, part: Preparation | Start) -> None:
        parts = [asdict(part)] if isinstance(part, Preparation) else [dict(part.environment), *map(asdict, part.ranks)]
        with os.fdopen(os.dup(self._descriptor), "ab") as file:
            file.writelines(json.dumps(fields).encode() + b"\n" for fields in parts)

    def preparation(self) -> Preparation:
        fields = next(self._lines())
        lists = {name: tuple(fields[name]) for name in ("modules", "rank_variables")}
        return Preparation(**{**fields, **lists})

    def start(self) -> Start:
        """The ranks are read one by one, so that a rank forked meanwhile holds little memory of the others."""
        lines = self._lines()
        next(lines)  # the preparation
        environment = next(lines)
        return Start(environment, (RankStart(**{**rank, "command": tuple(rank["command"])}) for rank in lines))

    def _lines(self) -> Iterator[dict[str, Any]]:
        offset, rest = 0, b""
        while chunk := os.pread(self._descriptor, 1 << 14, offset):
            offset += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from map(json.loads, lines)


class Lines:
    """Reads lines of JSON from a pipe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.ended = False
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """The lines that have arrived; blocks if there are none."""
        chunk = os.read(self.descriptor, 1 << 16)
        self.ended = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines]


def write_line(descriptor: int, line: Mapping[str, Any]) -> bool:
    """Write a line; returns whether the other end is still open."""
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    except BrokenPipeError:
        return False
    return True
