"""Which communicators one communicator number of a trace stands for on the ranks of a class.

A collective brings together all ranks of the class that are in a communicator, so it has one entry for each
communicator. A send or recv has one for each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from maya.replay.rank_class import TracedCommunicator
from maya.util.arrays import Indices


@dataclass(frozen=True, eq=False)
class CommunicatorLayout:
    """The entries, and the ranks of each."""

    communicators: list[TracedCommunicator]  # for each entry
    numbers: list[int]  # for each entry, as RendezvousTable.number returns it
    of_rank: Indices  # for each rank, its entry
    counts: list[int]  # number of ranks of each entry
    order: Indices  # ranks by entry
    begins: Indices  # for each entry, its first position in `order`
    is_whole: bool  # all members of all communicators are ranks of the class
    places: list[int] | None = None  # only for send/recv: for each rank, its place in its communicator

    @cached_property
    def keys(self) -> list[tuple[int, int]]:
        """For each entry what identifies it among all entries of the job."""
        return list(zip(self.numbers, self.places or [-1] * len(self.numbers), strict=True))

    @cached_property
    def common_place(self) -> int:
        """Of a send or recv: the place of all ranks, each in a communicator of its own; -1: there is none."""
        assert self.places is not None
        is_common = len(set(self.places)) == 1 and len(set(self.numbers)) == len(self.numbers)
        return self.places[0] if is_common else -1


def lay_out(
    of_each: Sequence[TracedCommunicator], number_of: Callable[[TracedCommunicator], int]
) -> CommunicatorLayout:
    """`of_each` has the communicator of each rank."""
    places: dict[int, int] = {}
    communicators: list[TracedCommunicator] = []
    of_rank = np.empty(len(of_each), dtype=np.intp)
    for rank, communicator in enumerate(of_each):
        number = number_of(communicator)
        if number not in places:
            places[number] = len(places)
            communicators.append(communicator)
        of_rank[rank] = places[number]
    counts = np.bincount(of_rank)
    order = np.argsort(of_rank, kind="stable")
    is_whole = counts.tolist() == [len(communicator.members) for communicator in communicators]
    begins = np.cumsum(counts) - counts
    return CommunicatorLayout(communicators, list(places), of_rank, counts.tolist(), order, begins, is_whole)


def lay_out_p2p(
    ranks: Sequence[int],
    of_each: Sequence[TracedCommunicator],
    number_of: Callable[[TracedCommunicator], int],
    recorded: int,
) -> CommunicatorLayout:
    """`of_each` has the communicator of each of the ranks; `recorded`: the place in the trace of the class."""
    each = np.arange(len(ranks))
    return CommunicatorLayout(
        list(of_each),
        [number_of(communicator) for communicator in of_each],
        each,
        [1] * len(ranks),
        each,
        each,
        is_whole=False,
        places=[communicator.place(rank, recorded) for rank, communicator in zip(ranks, of_each, strict=True)],
    )
