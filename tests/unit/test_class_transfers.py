"""Send/recv between two whole rank classes: the times of a rendezvous on each communicator."""

from __future__ import annotations

import numpy as np
import pytest

from maya.replay.collective_times import BUFFERED_BYTES, CollectiveTimes
from maya.replay.rank_class import CollectiveCall, TracedCommunicator
from maya.replay.rendezvous import Rendezvous, RendezvousTable
from netmodel.cluster import load_cluster

PAIRS = [TracedCommunicator((rank, rank + 12), 0) for rank in range(4)]
SIZES = [BUFFERED_BYTES, 1 << 24]


def table_of_pairs() -> tuple[RendezvousTable, list[int]]:
    table = RendezvousTable(CollectiveTimes(load_cluster("dgx-h100"), None, 16, 8))
    return table, [table.number(each) for each in PAIRS]


def call(sends: bool, size: int) -> CollectiveCall:
    place = 0 if sends else 1
    return CollectiveCall("ncclSend" if sends else "ncclRecv", 1, size, "int8", size, 1 - place, size, place)


def one_by_one(size: int, arrivals: dict[bool, list[int]], first: bool) -> dict[bool, list[tuple[int, int]]]:
    table, numbers = table_of_pairs()
    found: dict[bool, list[Rendezvous]] = {}
    for sends in (first, not first):
        found[sends] = [
            table.arrive_p2p(communicator, number, call(sends, size), 0 if sends else 1, 7, at)
            for communicator, number, at in zip(PAIRS, numbers, arrivals[sends], strict=True)
        ]
    return {sends: [(each.started, each.ended) for each in every] for sends, every in found.items()}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", [True, False], ids=["send first", "recv first"])
def test_classes_meet_at_the_times_of_their_pairs(size: int, first: bool) -> None:
    arrivals = {True: [5, 10, 900, 20], False: [8, 3, 100, 20]}
    table, numbers = table_of_pairs()
    for place in (0, 1):
        table.register_side(numbers, place)
    found = {
        sends: table.arrive_class(PAIRS, numbers, call(sends, size), 0 if sends else 1, 7, np.array(arrivals[sends]))
        for sends in (first, not first)
    }
    expected = one_by_one(size, arrivals, first)
    for sends, transfer in found.items():
        assert transfer is not None
        assert list(zip(transfer.started.tolist(), transfer.ended.tolist(), strict=True)) == expected[sends]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", [True, False], ids=["send first", "recv first"])
def test_a_transfer_taken_apart_ends_at_the_same_times(size: int, first: bool) -> None:
    arrivals = {True: [5, 10, 900, 20], False: [8, 3, 100, 20]}
    table, numbers = table_of_pairs()
    for place in (0, 1):
        table.register_side(numbers, place)
    transfer = table.arrive_class(PAIRS, numbers, call(first, size), 0 if first else 1, 7, np.array(arrivals[first]))
    table.take_apart()
    second = call(not first, size)
    assert table.arrive_class(PAIRS, numbers, second, 1 if first else 0, 7, np.array(arrivals[not first])) is None
    others = [
        table.arrive_p2p(communicator, number, second, 1 if first else 0, 7, at)
        for communicator, number, at in zip(PAIRS, numbers, arrivals[not first], strict=True)
    ]
    expected = one_by_one(size, arrivals, first)
    assert transfer is not None
    assert transfer.parts is not None
    assert [(each.started, each.ended) for each in transfer.parts] == expected[first]
    assert [(each.started, each.ended) for each in others] == expected[not first]


def test_classes_of_other_communicators_meet_one_by_one() -> None:
    table, numbers = table_of_pairs()
    table.register_side(numbers, 0)
    table.register_side(numbers[:2], 1)
    assert table.arrive_class(PAIRS, numbers, call(True, 64), 0, 0, np.zeros(4, dtype=np.int64)) is None


@pytest.mark.parametrize("size", SIZES)
def test_a_send_to_itself_takes_as_long_as_its_own_bytes(size: int) -> None:
    """The other sends of its group go elsewhere."""
    table, numbers = table_of_pairs()
    found = [
        table.arrive_p2p(PAIRS[0], numbers[0], CollectiveCall(name, 1, size, "int8", size, 0, 8 * size, 0), 0, 7, 5)
        for name in ("ncclSend", "ncclRecv")
    ]
    alone = CollectiveTimes(load_cluster("dgx-h100"), None, 16, 8).p2p_ns(0, 0, size)
    assert [(each.started, each.ended) for each in found] == [(5, 5 + alone)] * 2
