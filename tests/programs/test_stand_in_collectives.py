"""Gloo's collectives in a group with absent members: present members are threads, the store is torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from rank_runtime.absent_members.known_groups import KnownGroups, parse_present
from rank_runtime.absent_members.stand_in_collectives import AVG, BXOR, MAX, PRODUCT, SUM, StandInCollectives
from rank_runtime.absent_members.store_exchange import ASSUMED, ExchangeError, StoreExchange

PATIENCE = timedelta(seconds=60)
Program = Callable[[int, StandInCollectives], Any]


class Job:
    """Present ranks, and their groups."""

    def __init__(self, world_size: int, present: Sequence[int], groups: Sequence[Sequence[int]] = ()) -> None:
        self.store = HashStore()
        self.present = present
        self.known = KnownGroups(world_size, present)
        for number, members in enumerate(groups or [range(world_size)]):
            self.known.add(str(number), members)

    def exchange(self, rank: int, name: str = "0", timeout: timedelta = PATIENCE) -> StoreExchange:
        group = self.known.named(name)
        assert group is not None
        return StoreExchange(self.store, group, group.members.index(rank), self.known, timeout)

    def run(self, program: Program, name_of: Callable[[int], str] = lambda rank: "0") -> dict[int, Any]:
        """What the program returns on each present rank."""
        with ThreadPoolExecutor(len(self.present)) as pool:
            started = {
                rank: pool.submit(program, rank, StandInCollectives(self.exchange(rank, name_of(rank))))
                for rank in self.present
            }
            return {rank: future.result() for rank, future in started.items()}

    def left_over(self) -> int:
        return int(self.store.num_keys())


def test_the_closest_present_member_before_stands_in() -> None:
    group = KnownGroups(6, [1, 4]).add("0", range(6))
    assert group is not None
    assert group.stand_ins == [1, 1, 1, 1, 4, 4]
    assert group.shares == {1: 4, 4: 2}


def test_siblings_are_in_the_same_place_of_corresponding_groups() -> None:
    known = KnownGroups(6, [0, 3])
    pairs = [known.add(str(at), [2 * at, 2 * at + 1]) for at in range(3)]
    assert all(pairs)
    one, two, three = (pair for pair in pairs if pair is not None)
    assert known.sibling(three, 0) is one
    assert known.sibling(one, 1) is two
    assert known.takers(one, 0, None) == 1  # rank 3, whose root is absent; group three has no present member


def test_a_name_that_is_used_again_is_another_group() -> None:
    known = KnownGroups(2, [0])
    first, second = known.add("0", [0, 1]), known.add("0", [0, 1])
    assert first is not None
    assert second is not None
    assert first.name != second.name
    assert known.named("0") is second


def test_ranks_are_read_from_ranges() -> None:
    assert parse_present("0-2,8") == [0, 1, 2, 8]


@pytest.mark.parametrize(
    ("operation", "expected"), [(SUM, 3 + 3 + 5), (AVG, 11 / 3), (PRODUCT, 45), (MAX, 5), (BXOR, 5)]
)
def test_a_reduction_counts_a_stand_in_for_each_of_its_members(operation: int, expected: float) -> None:
    """Rank 0 has 3 and stands for rank 1; rank 2 has 5."""

    def program(rank: int, collectives: StandInCollectives) -> float:
        kind = torch.float64 if operation == AVG else torch.int64
        tensor = torch.tensor([{0: 3, 2: 5}[rank]], dtype=kind)
        collectives.all_reduce([tensor], operation)()
        return float(tensor.item())

    job = Job(3, [0, 2])
    assert job.run(program) == {0: expected, 2: expected}
    assert job.left_over() == 0


def test_an_all_gather_has_copies_of_stand_ins() -> None:
    def program(rank: int, collectives: StandInCollectives) -> list[int]:
        outputs = [torch.zeros(1, dtype=torch.int64) for _ in range(4)]
        collectives.all_gather([outputs], [torch.tensor([10 + rank])])()
        return [int(each) for each in outputs]

    assert Job(4, [0, 2]).run(program) == {key: [10, 10, 12, 12] for key in (0, 2)}


def test_one_present_member_needs_no_store() -> None:
    job = Job(4, [2])
    tensor = torch.ones(3)
    StandInCollectives(job.exchange(2)).all_reduce([tensor], SUM)()
    assert tensor.tolist() == [4.0, 4.0, 4.0]
    assert job.left_over() == 0


def test_an_all_to_all_may_have_parts_of_different_sizes() -> None:
    def program(rank: int, collectives: StandInCollectives) -> list[list[float]]:
        inputs = [torch.full((to + 1,), float(rank)) for to in range(3)]
        outputs = [torch.empty(rank + 1) for _ in range(3)]
        collectives.all_to_all(outputs, inputs)()
        return [each.tolist() for each in outputs]

    assert Job(3, [0, 1]).run(program) == {0: [[0.0], [1.0], [1.0]], 1: [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]}


def test_several_collectives_may_be_waited_for_in_any_order() -> None:
    def program(rank: int, collectives: StandInCollectives) -> list[float]:
        tensors = [torch.tensor([float(rank + at)]) for at in range(3)]
        begun = [collectives.all_reduce([tensor], SUM) for tensor in tensors]
        for finish in begun if rank else reversed(begun):
            finish()
        return [tensor.item() for tensor in tensors]

    assert Job(2, [0, 1]).run(program) == {key: [1.0, 3.0, 5.0] for key in (0, 1)}


def test_members_that_receive_before_they_send_do_not_block_each_other() -> None:
    def program(rank: int, collectives: StandInCollectives) -> float:
        received = torch.zeros(1)
        finish = collectives.recv(received, 1 - rank, 0)
        collectives.send(torch.tensor([float(rank)]), 1 - rank, 0)()
        finish()
        return float(received.item())

    assert Job(3, [0, 1]).run(program) == {0: 1.0, 1: 0.0}


def test_a_broadcast_from_an_absent_root_has_the_siblings_values() -> None:
    """Pairs (0, 1) and (2, 3): rank 2, the root of the second, is absent; rank 0 is in its place."""
    job = Job(4, [0, 1, 3], [range(4), [0, 1], [2, 3]])

    def program(rank: int, collectives: StandInCollectives) -> float:
        tensor = torch.tensor([100.0 + rank])
        collectives.broadcast([tensor], 0)()
        return float(tensor.item())

    assert job.run(program, lambda rank: str(1 + rank // 2)) == {0: 100.0, 1: 100.0, 3: 100.0}
    assert job.left_over() == 0


def test_values_of_an_absent_root_without_sibling_are_zeros_and_reported() -> None:
    job = Job(2, [0])
    tensor = torch.ones(2)
    StandInCollectives(job.exchange(0)).broadcast([tensor], 1)()
    assert tensor.tolist() == [0.0, 0.0]
    assert job.store.check([f"{ASSUMED}zeros: broadcast from rank 1 (Gloo group 0)"])


def test_calls_that_do_not_match_name_both_ranks() -> None:
    def program(rank: int, collectives: StandInCollectives) -> str:
        try:
            collectives.all_reduce([torch.ones(2 + rank)], SUM)()
        except ExchangeError as error:
            return str(error)
        return ""

    texts = Job(3, [0, 1]).run(program)
    assert "rank 0 called all_reduce(sum) of 2 float32, rank 1 called all_reduce(sum) of 3 float32" in texts[0]


def test_a_monitored_barrier_names_the_present_rank_that_does_not_come() -> None:
    collectives = StandInCollectives(Job(4, [0, 2]).exchange(0))
    with pytest.raises(RuntimeError, match=r"Rank 2 failed to pass monitoredBarrier in 50 ms"):
        collectives.monitored_barrier(timedelta(milliseconds=50), wait_all=True)
