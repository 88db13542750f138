"""Whether the communication of ranks fits together, where some ranks are assumed to do what others did.

In: the rank classes of a job, with absent ranks in the classes of their representatives. Out: a sentence about the
first collective whose members call it with different sizes, or the first send whose receiver expects another size.
Present ranks have been compared while the job ran (coordinator/communicators.py). So a difference shows that an absent
rank does something else than its representative: it has other shapes, or gets other token counts.

Calls are compared as far as both ranks make them, and at most a million pairs of ranks and communicators or peers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from maya.replay.rank_class import RankClass, TracedCommunicator
from maya.replay.record_kinds import P2P_CALLS

_MOST_PAIRS = 1 << 20

_Collectives = tuple[tuple[str, int, str, int], ...]  # function, count, dtype and root of each, in order
_Sizes = tuple[int, ...]  # bytes of each send or recv, in order
_OfCommunicator = TypeVar("_OfCommunicator")


@dataclass(frozen=True)
class _Transfers:
    """The sends, or the recvs, of a rank class on one communicator to one peer."""

    peer: int
    place: int  # its own, in its trace
    sizes: _Sizes


@dataclass(frozen=True)
class _ClassCalls:
    """All calls of a rank class, by number of the communicator in its trace."""

    collectives: dict[int, _Collectives]
    sends: dict[int, list[_Transfers]]
    receives: dict[int, list[_Transfers]]


def find_mismatch(classes: Sequence[RankClass]) -> str:
    """The first call that does not match; empty: all do."""
    calls = [_calls_of(each) for each in classes]
    differences = _Differences()
    return _mismatched_collective(classes, calls, differences) or _mismatched_transfer(classes, calls, differences)


def _calls_of(rank_class: RankClass) -> _ClassCalls:
    which = rank_class.call
    rows = np.flatnonzero(which >= 0)
    sequence = rank_class.trace.records["value"][rank_class.records[rows]]
    collectives: dict[int, list[tuple[str, int, str, int]]] = {}
    transfers: dict[tuple[str, int, int, int], list[int]] = {}
    for number in which[rows[np.argsort(sequence, kind="stable")]].tolist():
        call = rank_class.calls[number]
        if call.call in P2P_CALLS:
            transfers.setdefault((call.call, call.communicator, call.peer, call.place), []).append(call.size)
        else:
            its = collectives.setdefault(call.communicator, [])
            its.append((call.call, call.count, call.dtype, call.peer))
    ways: dict[str, dict[int, list[_Transfers]]] = {"ncclSend": {}, "ncclRecv": {}}
    for (name, communicator, peer, place), sizes in transfers.items():
        ways[name].setdefault(communicator, []).append(_Transfers(peer, place, tuple(sizes)))
    return _ClassCalls(
        {communicator: tuple(its) for communicator, its in collectives.items()}, ways["ncclSend"], ways["ncclRecv"]
    )


def _mismatched_collective(
    classes: Sequence[RankClass], calls: Sequence[_ClassCalls], differences: _Differences
) -> str:
    first: dict[TracedCommunicator, tuple[int, _Collectives]] = {}  # for each communicator, a rank and its calls
    for rank, communicator, mine in _of_all_ranks(classes, [each.collectives for each in calls]):
        other, its = first.setdefault(communicator, (rank, mine))
        at = differences.find(its, mine)
        if at >= 0:
            return f"rank {other} calls {_text(*its[at])} where rank {rank} calls {_text(*mine[at])}"
    return ""


def _mismatched_transfer(classes: Sequence[RankClass], calls: Sequence[_ClassCalls], differences: _Differences) -> str:
    expected: dict[tuple[TracedCommunicator, int, int], _Sizes] = {}  # by communicator, sender and receiver
    for rank, communicator, receives in _of_all_ranks(classes, [each.receives for each in calls]):
        for each in receives:
            expected[communicator, each.peer, communicator.place(rank, each.place)] = each.sizes
    for rank, communicator, sends in _of_all_ranks(classes, [each.sends for each in calls]):
        for each in sends:
            its = expected.get((communicator, communicator.place(rank, each.place), each.peer), ())
            at = differences.find(each.sizes, its)
            if at >= 0:
                receiver = communicator.members[each.peer]
                return f"rank {rank} sends {each.sizes[at]:,} B to rank {receiver}, which receives {its[at]:,} B"
    return ""


class _Differences:
    """Where two tuples differ, found once for each two."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}  # by identity: hashing a tuple takes as long as comparing it

    def find(self, one: tuple[object, ...], other: tuple[object, ...]) -> int:
        """The first index at which both have an item and these differ; -1: none."""
        if one is other:
            return -1
        key = id(one), id(other)
        if key not in self._known:
            items = enumerate(zip(one, other, strict=False))
            self._known[key] = next((at for at, (mine, its) in items if mine != its), -1)
        return self._known[key]


def _of_all_ranks(
    classes: Sequence[RankClass], by_number: Sequence[dict[int, _OfCommunicator]]
) -> Iterator[tuple[int, TracedCommunicator, _OfCommunicator]]:
    """For each rank and each of its communicators, what `by_number` has of it."""
    left = _MOST_PAIRS
    for rank_class, of_class in zip(classes, by_number, strict=True):
        size = sum(len(found) if isinstance(found, list) else 1 for found in of_class.values())
        for rank, communicators in zip(rank_class.ranks, rank_class.communicators, strict=True):
            for number, found in of_class.items():
                if number in communicators:
                    yield rank, communicators[number], found
            left -= size
            if left <= 0:
                return


def _text(call: str, count: int, dtype: str, root: int) -> str:
    of_root = f" of root {root}" if root >= 0 else ""
    return f"{call} of {count:,} {dtype}{of_root}"
