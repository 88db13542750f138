"""Which communicators one communicator number of a trace stands for on the ranks of a class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from maya.replay.rank_class import TracedCommunicator
from maya.util.arrays import Indices


@dataclass(frozen=True, eq=False)
class CommunicatorLayout:
    """The communicators, and the ranks in each."""

    communicators: list[TracedCommunicator]
    numbers: list[int]  # as RendezvousTable.number returns them
    of_rank: Indices  # for each rank, its position in `communicators`
    counts: list[int]  # number of ranks in each
    order: Indices  # ranks by communicator
    begins: Indices  # for each communicator, its first position in `order`
    is_whole: bool  # all members of all communicators are ranks of the class


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
