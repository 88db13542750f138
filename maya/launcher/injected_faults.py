"""Parses the faults to inject, from the command line or a TOML file.

In: `kill:rank=3,call=10`, or a file with one table `[[kill]]` per fault and the same keys. Out: an `InjectedFault`,
which happens inside its rank (rank_runtime/shim/device/faults.h), or an `InjectedLinkFault` for the network model.

    kill    rank, call|step               the process is killed
    raise   rank, call|step               the call fails, or a RuntimeError is raised after the step
    delay   rank, call|step, seconds      the rank is late, also by the virtual clock
    drop    rank, call                    the call completes for this rank, but never reaches the others
    error   rank, call                    the communicator fails later, as after a network failure (ncclRemoteError)
    oom     rank, allocation|bytes|step   that allocation, the first of that size, or the first after the step, fails
    link    at, left                      a link of the cluster is lost, or keeps a part of its rate

`call` counts the rank's NCCL calls on communicators of several ranks: collectives, sends and recvs. `step` counts
optimizer steps; with several optimizers, those of the one with the most steps. `allocation` counts allocations of
device memory, not of tensors. All count from 1. `attempt` is the attempt of the job in which the fault happens, or
"all"; the default is 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maya.util.catalogue import Catalogue, as_value
from maya.util.suggestions import did_you_mean, listed
from maya.util.units import BYTES
from netmodel.cluster.faults import parse_fault
from netmodel.cluster.keys import count_up_to, text

EVERY_ATTEMPT = 0
_FROM_ZERO, _FROM_ONE = (count_up_to((1 << 63) - 1, least) for least in (0, 1))


class FaultError(ValueError):
    """The description of a fault is invalid."""


@dataclass(frozen=True)
class InjectedFault:
    """A fault inside a rank."""

    kind: str
    rank: int
    at: str  # the counted event: call, step, allocation or bytes
    number: int
    seconds: float = 0
    attempt: int = 1

    def __str__(self) -> str:
        if self.attempt == 1:
            return self.for_rank()
        return f"{self.for_rank()},attempt={'all' if self.attempt == EVERY_ATTEMPT else self.attempt}"

    def for_rank(self) -> str:
        """The text for the rank, without the attempt."""
        delay = f",seconds={self.seconds}" if self.seconds else ""
        return f"{self.kind}:rank={self.rank},{self.at}={self.number}{delay}"


@dataclass(frozen=True)
class InjectedLinkFault:
    """A link that is slow or lost during the whole job."""

    link: str  # in the syntax of netmodel/cluster/faults.py

    def __str__(self) -> str:
        at, _, left = self.link.rpartition("=")
        return f"link:at={at},left={left}"


@dataclass(frozen=True)
class _Kind:
    points: tuple[str, ...]  # keys that say when; exactly one is given
    needed: tuple[str, ...] = ("rank",)
    optional: tuple[str, ...] = ("attempt",)

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.needed, *self.points, *self.optional)

    def text(self) -> str:
        points = [listed(self.points, "or")] if self.points else []
        optional = f", and optionally {listed(self.optional)}" if self.optional else ""
        return listed([*self.needed, *points]) + optional


_KINDS = {
    "kill": _Kind(("call", "step")),
    "raise": _Kind(("call", "step")),
    "delay": _Kind(("call", "step"), ("rank", "seconds")),
    "drop": _Kind(("call",)),
    "error": _Kind(("call",)),
    "oom": _Kind(("allocation", "bytes", "step")),
    "link": _Kind((), ("at",), ("left",)),
}
KINDS = tuple(_KINDS)


def parse(word: str) -> InjectedFault | InjectedLinkFault:
    """`kill:rank=3,call=10`"""
    kind, _, rest = word.partition(":")
    values: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not value:
            raise FaultError(f'"{word}": "{item}" is not a key and its value, as in rank=3')
        if key in values:
            raise FaultError(f'"{word}": {key} is given twice')
        values[key] = as_value(value)
    return _fault(f'"{word}"', kind, values)


def read_file(path: str) -> tuple[InjectedFault | InjectedLinkFault, ...]:
    """All faults of a TOML file."""
    table = Catalogue(Path(), "faults", FaultError).read(Path(path))
    found = []
    for kind, entries in table.items():
        if kind in _KINDS and not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
            raise FaultError(f"{path}: {kind} is {entries!r}; expected tables, [[{kind}]]")
        for place, entry in enumerate(entries if kind in _KINDS else [{}], 1):
            found.append(_fault(f"{path}: [[{kind}]] number {place}", kind, entry))
    return tuple(found)


def _fault(where: str, kind: str, values: Mapping[str, Any]) -> InjectedFault | InjectedLinkFault:
    if kind not in _KINDS:
        near = did_you_mean(kind, _KINDS)
        raise FaultError(
            f'{where}: there is no fault "{kind}"{near}; expected {listed(KINDS, "or")}, as in kill:rank=3,call=10'
        )
    made = _KINDS[kind]
    read: dict[str, Any] = {}
    for key, value in values.items():
        if key not in made.keys:
            near = did_you_mean(key, made.keys)
            raise FaultError(f'{where}: unknown key "{key}"{near}; {kind} takes {made.text()}')
        try:
            read[key] = _READERS[key](value)
        except ValueError as error:
            raise FaultError(f"{where}: {key}: {error}") from error
    points = [point for point in made.points if point in read]
    if any(key not in read for key in made.needed) or len(points) != bool(made.points):
        raise FaultError(f"{where}: {kind} takes {made.text()}")
    if kind == "link":
        return InjectedLinkFault(_link(where, read["at"], read.get("left", "lost")))
    return InjectedFault(kind, read["rank"], points[0], read[points[0]], read.get("seconds", 0), read.get("attempt", 1))


def _link(where: str, at: str, left: str) -> str:
    try:
        parse_fault(f"{at}={left}")
    except ValueError as error:
        raise FaultError(f"{where}: {error}") from error
    return f"{at}={left}"


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
        raise ValueError(f"{value!r} is not a number of seconds")
    return value


def _attempt(value: object) -> int:
    if value == "all":
        return EVERY_ATTEMPT
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f'{value!r} is neither a number from 1 on nor "all"')
    return value


def _bytes(value: object) -> int:
    return _FROM_ONE(value if isinstance(value, int) else BYTES.parse(value))


def _left(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"lost|\d+(\.\d+)?%", value):
        raise ValueError(f'{value!r} is neither a percentage of its rate, such as "25%", nor "lost"')
    return value


_READERS: dict[str, Callable[[object], Any]] = {
    "rank": _FROM_ZERO,
    "call": _FROM_ONE,
    "step": _FROM_ONE,
    "allocation": _FROM_ONE,
    "bytes": _bytes,
    "seconds": _seconds,
    "attempt": _attempt,
    "at": text,
    "left": _left,
}
