"""Faults that users ask for: words of the command line, or a TOML file, to what goes wrong where.

In: `kill:rank=3,call=10`, or a file with a table `[[kill]]` for each of them and the same keys. Out: a `InjectedFault`
of a rank, which happens inside it (rank_runtime/shim/device/faults.h), or a `InjectedLinkFault`, which the network
model takes.

    kill    rank, call|step               the process is killed
    raise   rank, call|step               an exception: the call fails, or after the step a RuntimeError
    delay   rank, call|step, seconds      the rank is late, by the virtual clock, too
    drop    rank, call                    the rank takes the call for complete, nobody else has heard of it
    error   rank, call                    the communicator fails later, as if the network had (ncclRemoteError)
    oom     rank, allocation|bytes|step   that allocation, the first of that size, or the first after the step, fails
    link    at, left                      a link of the cluster is lost, or has a part of its rate left

Calls are those that the rank's host makes of NCCL on communicators of several ranks, collectives and messages; steps
are the optimizer's, and of several optimizers those of the one that has made most; allocations those of device memory,
not of tensors. All are counted from 1. `attempt` says in which attempt of the job it happens: 1 unless said otherwise,
or "all".
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
from netmodel.cluster.keys import count, count_or_none, text

EVERY_ATTEMPT = 0


class FaultError(ValueError):
    """A fault that cannot be meant."""


@dataclass(frozen=True)
class InjectedFault:
    """Something that goes wrong in a rank."""

    kind: str
    rank: int
    at: str  # what is counted: call, step, allocation or bytes
    number: int
    seconds: float = 0
    attempt: int = 1

    def __str__(self) -> str:
        if self.attempt == 1:
            return self.for_rank()
        return f"{self.for_rank()},attempt={'all' if self.attempt == EVERY_ATTEMPT else self.attempt}"

    def for_rank(self) -> str:
        """What the rank is told, if it is its attempt."""
        delay = f",seconds={self.seconds}" if self.seconds else ""
        return f"{self.kind}:rank={self.rank},{self.at}={self.number}{delay}"


@dataclass(frozen=True)
class InjectedLinkFault:
    """A link that is slow or lost, for the whole job."""

    link: str  # as the network model's faults are written

    def __str__(self) -> str:
        at, _, left = self.link.rpartition("=")
        return f"link:at={at},left={left}"


@dataclass(frozen=True)
class _Kind:
    points: tuple[str, ...]  # one of them says when
    needed: tuple[str, ...] = ("rank",)
    optional: tuple[str, ...] = ("attempt",)

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.needed, *self.points, *self.optional)

    def text(self) -> str:
        points = [listed(self.points, "or")] if self.points else []
        optional = f", and, if you like, {listed(self.optional)}" if self.optional else ""
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
            raise FaultError(f'"{word}": {key} is there twice')
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
        raise ValueError(f'{value!r} is neither a number, from 1 on, nor "all"')
    return value


def _bytes(value: object) -> int:
    return count(value if isinstance(value, int) else BYTES.parse(value))


def _left(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"lost|\d+(\.\d+)?%", value):
        raise ValueError(f'{value!r} is neither a part of its rate, e.g. "25%", nor "lost"')
    return value


_READERS: dict[str, Callable[[object], Any]] = {
    "rank": count_or_none,
    "call": count,
    "step": count,
    "allocation": count,
    "bytes": _bytes,
    "seconds": _seconds,
    "attempt": _attempt,
    "at": text,
    "left": _left,
}
