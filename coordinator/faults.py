"""Faults that are made on purpose: what a rank or its network would do wrong, at a point that is always the same.

In: texts such as `kill:rank=3,call=10`, and the messages of ranks. Out: what happens instead of what usually would.

    kill:rank=R,call=N              the process of the rank is killed when it makes its N-th call
    kill:rank=R,step=S              the same, after its S-th step of the optimizer
    drop:rank=R,call=N              the rank takes its N-th call for complete, and nobody else has heard of it
    error:rank=R,call=N             the N-th call fails, as if the network had (ncclRemoteError)
    delay:rank=R,call=N,seconds=T   the N-th call comes that much later

Calls are collectives and messages of a rank, on whatever communicator, counted from 1 in the order in which its streams
come to them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rank_runtime.messages import Alive, Done, Failed, Message, Post

if TYPE_CHECKING:  # the launcher reads faults, too, and needs no numpy
    from coordinator.arithmetic import Buffer
    from coordinator.communicators import Outgoing

_REMOTE_ERROR = 6  # ncclResult_t
_KEYS = {
    "kill": ({"rank", "call"}, {"rank", "step"}),
    "drop": ({"rank", "call"},),
    "error": ({"rank", "call"},),
    "delay": ({"rank", "call", "seconds"},),
}


class FaultError(ValueError):
    """A fault that cannot be meant."""


@dataclass(frozen=True)
class Fault:
    """One of them."""

    kind: str
    rank: int
    call: int = 0
    step: int = 0
    seconds: float = 0.0


def parse(text: str) -> Fault:
    """`kill:rank=3,call=10`"""
    kind, _, rest = text.partition(":")
    if kind not in _KEYS:
        raise FaultError(f"{text!r}: expected kill, drop, error or delay, as in kill:rank=3,call=10")
    values: dict[str, float] = {}
    for item in rest.split(","):
        key, _, value = item.partition("=")
        try:
            values[key] = float(value) if key == "seconds" else int(value)
        except ValueError:
            raise FaultError(f"{text!r}: {item!r} is not a key and a number, as in rank=3") from None
    if set(values) not in _KEYS[kind]:
        expected = " or ".join(",".join(f"{key}=" for key in sorted(keys)) for keys in _KEYS[kind])
        raise FaultError(f"{text!r}: {kind} takes {expected}")
    numbers = {key: value for key, value in values.items() if key in ("call", "step")}
    if values["rank"] < 0 or min(numbers.values()) < 1 or values.get("seconds", 1) <= 0:
        raise FaultError(f"{text!r}: ranks begin at 0, calls and steps at 1, and seconds are more than none")
    integers = {key: int(value) for key, value in values.items() if key != "seconds"}
    return Fault(kind, seconds=values.get("seconds", 0.0), **integers)


class Faults:
    """The faults of a run, until they have happened."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = list(faults)
        self._calls: dict[int, int] = {}  # rank -> how many it has made
        self._delayed: list[tuple[float, int, Message, Buffer | None]] = []

    @property
    def delays(self) -> bool:
        """Whether something is held back at the moment."""
        return bool(self._delayed)

    def instead(
        self, rank: int, process: int, message: Message, payload: Buffer | None, now: float
    ) -> list[Outgoing] | None:
        """The answers to a message, if there is a fault in it; None: it is to be handled as usual."""
        if type(message) is Alive:
            for fault in self._faults:
                if fault.rank == rank and 0 < fault.step <= message.steps:
                    return self._happens(fault, process, message, payload, now)
            return None
        if type(message) is not Post:
            return None
        call = self._calls[rank] = self._calls.get(rank, 0) + 1
        for fault in self._faults:
            if fault.rank == rank and fault.call == call:
                return self._happens(fault, process, message, payload, now)
        return None

    def due(self, now: float) -> list[tuple[int, Message, Buffer | None]]:
        """Messages that were held back for long enough."""
        ready = [each for each in self._delayed if each[0] <= now]
        self._delayed = [each for each in self._delayed if each[0] > now]
        return [(rank, message, payload) for _, rank, message, payload in ready]

    def _happens(
        self, fault: Fault, process: int, message: Post | Alive, payload: Buffer | None, now: float
    ) -> list[Outgoing]:
        self._faults.remove(fault)
        if fault.kind == "kill" or isinstance(message, Alive):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            return []
        if fault.kind == "drop":
            return [(fault.rank, Done(message.token, (), False), None)]
        if fault.kind == "error":
            text = f"call {fault.call} of rank {fault.rank} fails, as --inject asked for"
            return [(fault.rank, Failed(message.token, _REMOTE_ERROR, text), None)]
        self._delayed.append((now + fault.seconds, fault.rank, message, payload))
        return []
