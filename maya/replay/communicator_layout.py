"""Which communicators a number of a trace stands for among ranks that did the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.replay.rank_class import TracedCommunicator


@dataclass(frozen=True, eq=False)
class Layout:
    """The communicators, and which ranks are in which."""

    communicators: list[TracedCommunicator]
    numbers: list[int]  # as Meetings knows them
    of_rank: npt.NDArray[np.intp]  # for each rank, the place in `communicators`
    counts: list[int]  # ranks in each
    order: npt.NDArray[np.intp]  # ranks by communicator
    begins: npt.NDArray[np.intp]  # of each communicator in `order`


def lay_out(of_each: Sequence[TracedCommunicator], number_of: Callable[[TracedCommunicator], int]) -> Layout:
    """`of_each` is the communicator of each rank."""
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
    return Layout(communicators, list(places), of_rank, counts.tolist(), order, np.cumsum(counts) - counts)
