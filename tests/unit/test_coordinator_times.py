"""Times that the coordinator gives: collectives start with their last member, sends as NCCL's buffer allows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.coordinator_ranks import Ranks, post

from coordinator.point_to_point import BUFFER_BYTES
from coordinator.state import State
from coordinator.time_model import RunTimeModel
from maya.replay.run_settings import NO_COSTS, RunSettings
from maya.trace import RecordKind
from rank_runtime.messages import Alive, Ask, Call, DataType, Describe, Described, Done, Post, Times


class SimpleTimes:
    """A collective takes 1000 ns and one more for each byte of its buffer, a message 100 ns and one for each byte."""

    def __init__(self) -> None:
        self.asked: list[int] = []  # how many questions there were at a time

    def collective_ns(self, post: Post, members: tuple[int, ...]) -> int:
        return 1000 + 4 * post.count

    def p2p_ns(self, sender: int, receiver: int, size: int) -> int:
        return 100 + size

    def answers(self, asks: Sequence[tuple[int, Ask]]) -> list[int]:
        self.asked.append(len(asks))
        return [10 * ask.number + rank for rank, ask in asks]

    def communicator_log(self, members: tuple[int, ...], member: int, handle: int) -> str:
        return f"INIT\tmember {member} of {len(members)}\n"


class TimedRanks(Ranks):
    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self.times = SimpleTimes()
        self.state = State(self.times)
        for rank in range(world_size):
            self.state.start(rank)

    def at(self, rank: int, communicator: int, sequence: int, arrival_ns: int, **fields: int) -> None:
        """A post of a rank whose stream reaches it then."""
        shared_bytes = fields.pop("shared_bytes", 0)
        message = post(communicator, sequence, None, **fields)
        message.arrival_ns, message.shared_bytes = arrival_ns, shared_bytes
        self.say(rank, message)

    def span(self, rank: int) -> tuple[int, int]:
        """When the one thing started and ended that the rank was told is done."""
        ((answer, _),) = self.told(rank)
        assert isinstance(answer, Done)
        return answer.started_ns, answer.ended_ns


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_collective_starts_when_its_last_member_arrives(order: tuple[int, ...]) -> None:
    ranks = TimedRanks(3)
    number = ranks.join([0, 1, 2])
    arrivals = [5_000, 7_000, 100]
    for rank in order:
        ranks.at(rank, number, 0, arrivals[rank], count=50)
    assert [ranks.span(rank) for rank in range(3)] == [(7_000, 8_200)] * 3


def test_a_member_learns_what_nccl_would_log() -> None:
    ranks = TimedRanks(2)
    number = ranks.join([1, 0])
    ranks.say(0, Describe(7, number, 0x55))
    assert ranks.told(0) == [(Described(7, "INIT\tmember 1 of 2\n"), None)]
    ranks.say(1, Describe(8, number + 1, 0x55))  # no such communicator
    assert ranks.told(1) == [(Described(8, ""), None)]


def test_collectives_of_one_communicator_have_times_of_their_own() -> None:
    ranks = TimedRanks(2)
    number = ranks.join([0, 1])
    for sequence, arrival in ((1, 9_000), (0, 10)):  # the second one is complete first
        for rank in (0, 1):
            ranks.at(rank, number, sequence, arrival + rank, count=1)
            if rank:
                assert ranks.span(0) == ranks.span(1) == (arrival + 1, arrival + 1005)


def _message(ranks: TimedRanks, number: int, rank: int, arrival_ns: int, size: int, shared_bytes: int = 0) -> None:
    """From rank 0 to rank 1."""
    ranks.at(
        rank,
        number,
        0,
        arrival_ns,
        call=Call.RECEIVE if rank else Call.SEND,
        count=size,
        data_type=DataType.UINT8,
        peer=1 - rank,
        shared_bytes=shared_bytes,
    )


@pytest.mark.parametrize("sender_first", [True, False])
@pytest.mark.parametrize("sender_is_late", [True, False])
def test_a_small_send_does_not_wait_for_its_receive(sender_first: bool, sender_is_late: bool) -> None:
    ranks = TimedRanks(2)
    number = ranks.join([0, 1])
    sent, received = (9_000, 4_000) if sender_is_late else (4_000, 9_000)
    for rank in (0, 1) if sender_first else (1, 0):
        _message(ranks, number, rank, received if rank else sent, BUFFER_BYTES)
    assert ranks.span(0) == (sent, sent + 100 + BUFFER_BYTES)
    assert ranks.span(1) == (9_000, 9_100 + BUFFER_BYTES)


@pytest.mark.parametrize("sender_first", [True, False])
def test_a_large_send_and_its_receive_begin_together(sender_first: bool) -> None:
    ranks = TimedRanks(2)
    number = ranks.join([0, 1])
    for rank in (0, 1) if sender_first else (1, 0):
        _message(ranks, number, rank, 9_000 if rank else 4_000, BUFFER_BYTES + 1)
    assert ranks.span(0) == ranks.span(1) == (9_000, 9_101 + BUFFER_BYTES)


def test_sends_that_share_a_link_take_as_long_as_all_of_them() -> None:
    ranks = TimedRanks(2)
    number = ranks.join([0, 1])
    _message(ranks, number, 0, 0, 10, shared_bytes=50)
    _message(ranks, number, 1, 0, 10, shared_bytes=70)
    assert ranks.span(0) == (0, 150)  # it does not know of the other end
    assert ranks.span(1) == (0, 170)


def test_a_send_to_itself_shares_no_link() -> None:
    ranks = TimedRanks(2)
    number = ranks.join([0, 1])
    for call in (Call.SEND, Call.RECEIVE):
        ranks.at(0, number, 0, 0, call=call, count=10, data_type=DataType.UINT8, peer=0, shared_bytes=50)
    answers = [answer for answer, _ in ranks.told(0) if isinstance(answer, Done)]
    assert [(answer.started_ns, answer.ended_ns) for answer in answers] == [(0, 110), (0, 110)]


def test_questions_of_one_poll_are_answered_together() -> None:
    ranks = TimedRanks(3)
    for rank, number in ((0, 1), (2, 1), (0, 2)):
        ranks.say(rank, Ask(number, RecordKind.KERNEL, "{}", "", 0))
    answers = {rank: message for rank, message, _ in ranks.state.answer_asks()}
    assert answers == {0: Times([1, 2], [10, 20]), 2: Times([1], [12])}
    assert ranks.times.asked == [3]
    assert ranks.state.answer_asks() == []


def test_the_coordinator_knows_the_ranks_clocks() -> None:
    ranks = TimedRanks(3)
    ranks.say(0, Alive(3, 700))
    ranks.say(1, Alive(3, 800))
    ranks.state.say_bye(1, 900)
    assert [ranks.state.clock(rank) for rank in range(3)] == [700, 900, 0]


# ---- times of a run ----

KERNEL = '{"kernel":"_ZN2at6native29vectorized_elementwise_kernelILi4E","grid":[512,1,1],"block":[128,1,1],"shared":0}'
ADD = '{"op":"aten::add","inputs":[{"shape":[1024,1024],"dtype":"float32"},{"shape":[1024,1024],"dtype":"float32"},1]}'
ALL_REDUCE = '{"call":"ncclAllReduce","communicator":1,"ranks":1,"rank":0,"count":1024,"dtype":"fp32","op":"sum"}'


def test_times_of_a_run_come_from_its_settings(tmp_path: Path) -> None:
    RunSettings(16, 8, "h100", "dgx-h100", NO_COSTS).save(tmp_path)
    times = RunTimeModel(tmp_path)
    everybody = tuple(range(16))
    reduce = post(1, 0, None, count=1 << 20)
    assert times.collective_ns(reduce, everybody[:8]) < times.collective_ns(reduce, everybody)
    assert times.p2p_ns(0, 1, 1 << 20) < times.p2p_ns(0, 8, 1 << 20)
    kernel, copy, reduction, again = times.answers(
        [
            (0, Ask(1, RecordKind.KERNEL, KERNEL, ADD, 0)),
            (0, Ask(2, RecordKind.MEMCPY, '{"copy":"HtoD"}', "", 1 << 20)),
            (3, Ask(3, RecordKind.COLLECTIVE, ALL_REDUCE, "", 0)),
            (9, Ask(4, RecordKind.KERNEL, KERNEL, ADD, 0)),
        ]
    )
    assert kernel == again
    assert 4_000 < kernel < 20_000  # three times 4 MiB at 3.35 TB/s is 3.8 us
    assert copy > 1 << 14  # more than 64 GB/s is not to be had
    assert reduction > 0


@pytest.mark.parametrize("call", [call for call in Call if call < Call.SEND])
def test_every_collective_has_a_time(tmp_path: Path, call: Call) -> None:
    RunSettings(4, 4, "h100", "dgx-h100", NO_COSTS).save(tmp_path)
    message = post(1, 0, None, call=call, count=1 << 20, data_type=DataType.BFLOAT16)
    assert RunTimeModel(tmp_path).collective_ns(message, (0, 1, 2, 3)) > 1000
