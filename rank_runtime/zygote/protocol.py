"""What the launcher tells the zygote, and what it hears from it: declared here once, for both.

The launcher writes lines of JSON into a file in memory that the zygote inherits: a `Preparation`, before it starts the
zygote, and, when the coordinator serves and the ranks' environment is therefore known, a `Start`, which is a line for
what they have in common and a line for each of them. Commands go through a pipe, a line each:

    {"start": true}       the `Start` is written: fork the ranks
    {"signal": 15}        the job is being stopped: send it to the process groups of all ranks that run
    {"continue": true}    ranks that were stopped for a debugger go on, and so does the job

The end of that pipe is the end of the job, however it came about: ranks that are left are killed, the coordinator ends.

Reports go the other way through another pipe, lines of JSON, each written at once; the coordinator writes into it, too
(coordinator/process.py):

    {"importing": true}                              the zygote is at work
    {"unshared": {"tokenizers": "starts a thread"}}  modules that every rank imports itself, and why
    {"not_forked": "..."}                            why the ranks are started anew instead of being forked
    {"ready": true}                                  it could fork the ranks
    {"started": {"rank": 3, "pid": 4711}}
    {"forked": true}                                 no more will be started: all are, or the job is being stopped
    {"exited": {"rank": 3, "status": -9}}            an exit code, or a signal's number with a minus, as in `subprocess`
    {"coordinator_exited": {"pid": 4710, "status": -9}}
    {"zygote_failed": "..."}                         what could not be done
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "MAYA_ZYGOTE"
ALONE = "alone"  # its value in a rank that is started anew (alone.py)
ENTRY = Path(__file__).parent / "entry"  # for PYTHONPATH
BIND_AT_ONCE = "LD_BIND_NOW"  # of the dynamic loader; ranks do not see it, unless the user has set it


@dataclass(frozen=True)
class Descriptors:
    """What the zygote inherits: the file in memory, and its ends of the two pipes; and whose child it is, because a
    launcher that has ended already cannot be asked."""

    plan: int
    commands: int
    reports: int
    launcher: int  # its process

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
    """What the zygote does before there are ranks."""

    world_size: int
    share: bool  # import modules before the fork; otherwise the ranks' command is started anew in each
    torch: bool  # torch's usual modules are among them
    script: str | None  # the file that Python will run, in which the modules are named that ranks will need
    module: str | None  # or the module that it will run
    modules: tuple[str, ...]  # more of them
    rank_variables: tuple[str, ...]  # environment variables that differ between ranks
    coordinator: str = ""  # its entry point, "module:function" (see `EntryPoint`); empty: the job has no coordinator
    coordinator_settings: Mapping[str, PlainValue] = field(default_factory=dict)


@dataclass(frozen=True)
class RankStart:
    """One rank: its command (only looked at if it is started anew), its own part of the environment, and the files that
    its output goes to (None: where the launcher's goes)."""

    rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: str | None
    stderr: str | None


@dataclass(frozen=True)
class Start:
    """All ranks."""

    environment: Mapping[str, str]  # what they have in common
    ranks: Iterable[RankStart]


class PlanFile:
    """The file in memory, at either end."""

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
        """Its ranks are read one by one: whoever is forked meanwhile has little of the others to get rid of."""
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
    """Lines of JSON out of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.ended = False
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """What has arrived; waits only if nothing has."""
        chunk = os.read(self.descriptor, 1 << 16)
        self.ended = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines]


def write_line(descriptor: int, line: Mapping[str, Any]) -> bool:
    """Whether there was still somebody to read it."""
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    except BrokenPipeError:
        return False
    return True
