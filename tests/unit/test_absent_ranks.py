"""A job with absent ranks: present ranks get every answer without them, as if each were a copy of a present one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from helpers.coordinator_ranks import Ranks, done, failure, join

from coordinator.absent_ranks import ID_BYTES, AbsentRanks, join_key
from coordinator.communicators import PendingWait
from coordinator.point_to_point import BUFFER_BYTES
from coordinator.state import State
from rank_runtime.messages import (
    Call,
    DataType,
    Done,
    Ending,
    Joined,
    Leave,
    Message,
    ProcessGroup,
    Reduction,
    Shrink,
    Split,
)

ID_KEY = "/default_pg/0//cuda//0"  # of the first communicator of process group "0", which has all ranks


class PresentRanks(Ranks):
    """The present ranks of a job."""

    def __init__(self, world_size: int, present: Iterable[int]) -> None:
        super().__init__(0)
        self.absent = AbsentRanks(world_size, present)
        self.state = State(absent=self.absent)
        self.answers = [[] for _ in range(world_size)]
        for rank in self.absent.present:
            self.state.start(rank)

    def announce(self, name: str, members: Sequence[int]) -> None:
        """All ranks create a process group."""
        for rank in sorted(self.absent.present):
            self.say(rank, ProcessGroup(name, "", members))

    def complete_joins(self) -> None:
        for to, answer, payload in self.state.complete_joins():
            assert payload is None
            self.answers[to].append((answer, None))

    def identifiers(self, *keys: str) -> bytes:
        """Unique ids, each set by its member or filled in; as the key of a join."""
        values = []
        for number, key in enumerate(keys):
            value = self.absent.value_for(key, keys)
            if value is None:
                value = b"maya present %d" % number + key.encode()
                value = value.ljust(ID_BYTES, b"\0")
                self.absent.note_value(key, value)
            values.append(value)
        return join_key(b"".join(values))

    def say_join(self, members: Sequence[int], key: bytes, *ranks: int) -> None:
        """Of some of the members."""
        for rank in ranks:
            self.say(rank, join(rank, key, members.index(rank), len(members)))

    def make(self, members: Sequence[int], name: str = "0") -> int:
        """A process group and its communicator."""
        self.announce(name, members)
        key = self.identifiers(f"/default_pg/0//{name}//cuda//0")
        present = [rank for rank in members if self.absent.is_present(rank)]
        self.say_join(members, key, *present)
        self.complete_joins()
        numbers = {self.joined(rank).communicator for rank in present}
        (number,) = numbers
        return number

    def joined(self, rank: int) -> Joined:
        """The one answer to a rank."""
        ((answer, _),) = self.told(rank)
        assert isinstance(answer, Joined), answer
        return answer

    def collective(
        self, communicator: int, call: Call, values: dict[int, Sequence[int]], sequence: int = 0, **fields: Any
    ) -> list[bytes]:
        """A collective of uint8 to which present ranks contribute these bytes; what each of them gets."""
        fields = {"count": 1, "data_type": DataType.UINT8, **fields}
        for rank, value in values.items():
            assert not any(self.answers)
            self.post(rank, communicator, sequence, bytes(value) or None, call=call, **fields)
        got = []
        for rank in values:
            ((answer, payload),) = self.told(rank)
            assert isinstance(answer, Done)
            assert list(answer.known) == ([0, len(payload)] if payload else [])
            got.append(payload or b"")
        return got


# ---- new communicators ----


def test_a_join_is_complete_when_the_present_members_have_joined() -> None:
    ranks = PresentRanks(4, [0, 2])
    ranks.announce("0", range(4))
    key = ranks.identifiers(ID_KEY)
    ranks.say_join(range(4), key, 2)
    ranks.complete_joins()
    assert not any(ranks.answers)
    ranks.say_join(range(4), key, 0)
    ranks.complete_joins()
    assert ranks.joined(0) == Joined(1, 1, 0, (0, 1, 2, 3), 0)
    assert ranks.joined(2) == Joined(1, 1, 2, (0, 1, 2, 3), 0)
    assert list(ranks.state.waits()) == []


def test_one_present_rank_joins_alone() -> None:
    ranks = PresentRanks(64, [17])
    ranks.announce("0", range(64))
    ranks.say_join(range(64), ranks.identifiers(ID_KEY), 17)
    ranks.complete_joins()
    assert ranks.joined(17) == Joined(1, 1, 17, tuple(range(64)), 0)


def test_members_have_the_order_of_the_process_group() -> None:
    ranks = PresentRanks(8, [1, 5])
    ranks.announce("3", [7, 5, 3, 1])
    key = ranks.identifiers("/default_pg/0//3//cuda//0")
    ranks.say_join([7, 5, 3, 1], key, 1, 5)
    ranks.complete_joins()
    assert (ranks.joined(5).member, ranks.joined(1)) == (1, Joined(1, 1, 3, (7, 5, 3, 1), 0))


def test_a_join_waits_until_its_group_is_known() -> None:
    ranks = PresentRanks(4, [1])
    key = join_key(b"maya".ljust(ID_BYTES, b" "))
    ranks.say_join([1, 2], key, 1)
    ranks.complete_joins()
    assert not any(ranks.answers)
    ranks.announce("5", [1, 2])
    ranks.absent.note_value("/default_pg/0//5//cuda//0", b"maya".ljust(ID_BYTES, b" "))
    ranks.complete_joins()
    assert ranks.joined(1).members == (1, 2)


def test_a_communicator_of_unknown_origin_waits_for_all_its_members() -> None:
    ranks = PresentRanks(4, [0, 1])
    ranks.say_join([0, 1], b"key", 0)
    ranks.complete_joins()
    assert [str(wait) for wait in ranks.state.waits()] == ["rank 0 waits for member 1 of a new communicator of 2"]
    ranks.say_join([0, 1], b"key", 1)
    ranks.complete_joins()
    assert (ranks.joined(0).members, ranks.joined(1).members) == ((0, 1), (0, 1))


def test_a_communicator_of_unknown_origin_with_as_many_members_as_the_job_has_all_ranks() -> None:
    ranks = PresentRanks(4, [2])
    ranks.say_join(range(4), b"key", 2)
    ranks.complete_joins()
    assert ranks.joined(2).members == (0, 1, 2, 3)


def test_a_rank_that_joins_in_the_place_of_another_is_refused() -> None:
    ranks = PresentRanks(4, [1])
    ranks.announce("0", range(4))
    ranks.say(1, join(1, ranks.identifiers(ID_KEY), 3, 4))
    ranks.complete_joins()
    assert failure(ranks.told(1)).endswith("rank 1 joined it as member 3, which is rank 3 of process group 0")


def test_a_pair_of_members_has_a_communicator_of_its_own() -> None:
    ranks = PresentRanks(8, [3, 5])
    ranks.announce("0", range(8))
    ranks.announce("2", [1, 3, 5, 7])
    for pair, members in (("0:1", [1, 3]), ("2:3", [5, 7]), ("1:2", [3, 5])):
        key = ranks.identifiers(f"/default_pg/0//2//cuda//{pair}")
        present = [rank for rank in members if rank in (3, 5)]
        ranks.say_join(members, key, *present)
        ranks.complete_joins()
        assert {ranks.joined(rank).members for rank in present} == {tuple(members)}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_communicator_may_have_several_ids(order: Sequence[int]) -> None:
    """In whatever order they become known."""
    ranks = PresentRanks(6, [2, 5])
    ranks.announce("0", range(6))
    keys = [f"/default_pg/0//cuda//UniqueNCCLID:{root}" for root in range(3)]
    values: dict[int, bytes] = {}
    for root in order:
        filled = ranks.absent.value_for(keys[root], keys)
        values[root] = filled or b"maya of rank 2".ljust(ID_BYTES, b"\0")
        assert (filled is None) == (root == 1)  # members 0, 2 and 4 set one each
        if filled is None:
            ranks.absent.note_value(keys[root], values[root])
    ranks.say_join(range(6), join_key(b"".join(values[root] for root in range(3))), 5, 2)
    ranks.complete_joins()
    assert (ranks.joined(2).member, ranks.joined(5).members) == (2, tuple(range(6)))


def test_present_members_that_share_a_gpu_are_refused() -> None:
    ranks = PresentRanks(4, [0, 1])
    ranks.announce("0", range(4))
    key = ranks.identifiers(ID_KEY)
    for rank in (0, 1):
        ranks.say(rank, join(0, key, rank, 4))
    ranks.complete_joins()
    assert "Duplicate GPU detected" in failure(ranks.told(0))
    assert "Duplicate GPU detected" in failure(ranks.told(1))


def test_communicators_are_counted_by_their_members() -> None:
    ranks = PresentRanks(4, [1])
    ranks.announce("0", range(4))
    for number in range(2):
        ranks.say_join(range(4), ranks.identifiers(f"/default_pg/0//cuda//{number}"), 1)
        ranks.complete_joins()
        assert (ranks.joined(1).instance, ranks.state.communicators) == (number, number + 1)
    assert [origin and origin.group.name for origin in ranks.state.origins.values()] == ["0", "0"]


def test_a_communicator_ends_when_its_present_members_have_left() -> None:
    ranks = PresentRanks(4, [0, 2])
    everybody = ranks.make(range(4))
    ranks.say(0, Leave(everybody, Ending.DESTROYED))
    assert ranks.state.communicator(everybody) is not None
    ranks.say(2, Leave(everybody, Ending.DESTROYED))
    assert ranks.state.communicator(everybody) is None


# ---- splits and shrinks ----


def test_a_split_has_the_members_of_the_group_that_was_announced() -> None:
    ranks = PresentRanks(8, [0, 1, 5])
    everybody = ranks.make(range(8))
    for members in ([0, 2, 4, 6], [7, 5, 3, 1]):
        ranks.announce(str(members), members)
    for rank, color, key in ((5, 1, 1), (0, 0, 0)):
        ranks.say(rank, Split(1, everybody, 0, color, key))
    assert not any(ranks.answers)
    ranks.say(1, Split(1, everybody, 0, 1, 3))
    assert ranks.joined(0) == Joined(1, everybody + 1, 0, (0, 2, 4, 6), 0)
    assert ranks.joined(5) == Joined(1, everybody + 2, 1, (7, 5, 3, 1), 0)
    assert ranks.joined(1) == Joined(1, everybody + 2, 3, (7, 5, 3, 1), 0)


def test_a_present_rank_may_be_in_no_group_of_a_split() -> None:
    ranks = PresentRanks(4, [0, 1])
    everybody = ranks.make(range(4))
    ranks.announce("1", [1, 3])
    ranks.say(0, Split(1, everybody, 0, -1, 0))
    ranks.say(1, Split(1, everybody, 0, 7, 0))
    assert ranks.joined(0) == Joined(1, 0, 0, (), 0)
    assert ranks.joined(1) == Joined(1, everybody + 1, 0, (1, 3), 0)


def test_a_split_that_no_group_explains_is_refused() -> None:
    ranks = PresentRanks(4, [0, 1])
    pair = ranks.make([0, 1, 2], "1")
    ranks.announce("0", range(4))  # not a part of the parent
    for rank in (0, 1):
        ranks.say(rank, Split(1, pair, 0, 0, rank))
    for rank in (0, 1):
        assert "called ncclCommSplit outside of torch's functions" in failure(ranks.told(rank))


def test_a_shrink_waits_for_present_members_only() -> None:
    ranks = PresentRanks(6, [1, 2, 4])
    everybody = ranks.make(range(6))
    ranks.say(4, Shrink(1, everybody, 0, [1, 3]))
    assert not any(ranks.answers)
    ranks.say(2, Shrink(1, everybody, 0, [1, 3]))
    assert ranks.joined(2) == Joined(1, everybody + 1, 1, (0, 2, 4, 5), 0)
    assert ranks.joined(4) == Joined(1, everybody + 1, 2, (0, 2, 4, 5), 0)


# ---- collectives ----


def test_a_collective_is_complete_when_the_present_members_have_posted_it() -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    ranks.post(4, everybody, 0)
    assert not any(ranks.answers)
    ranks.post(1, everybody, 0)
    assert (ranks.told(1), ranks.told(4)) == (done(0), done(0))
    assert ranks.state.collectives == 1


# Of ranks 0 to 5, ranks 1 and 4 are present. Rank 1 stands for ranks 0, 2 and 3, rank 4 for rank 5.


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [(Reduction.SUM, 4 * 3 + 2 * 10), (Reduction.MAX, 10), (Reduction.MIN, 3)],
)
def test_absent_members_are_copies_in_an_all_reduce(reduction: Reduction, expected: int) -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    got = ranks.collective(everybody, Call.ALL_REDUCE, {4: [10], 1: [3]}, reduction=reduction)
    assert got == [bytes([expected])] * 2


def test_absent_members_count_in_an_average() -> None:
    ranks = PresentRanks(4, [0, 3])
    everybody = ranks.make(range(4))
    for rank, value in ((0, 2.0), (3, 10.0)):
        ranks.post(rank, everybody, 0, np.float32(value).tobytes(), reduction=Reduction.AVG)
    assert ranks.told(0) == [(Done(0, (0, 4), True, guessed=True), np.float32(4).tobytes())]


@pytest.mark.parametrize(("second", "guessed"), [(2.0, False), (10.0, True)])
def test_values_that_differ_between_present_members_are_placeholders(second: float, guessed: bool) -> None:
    ranks = PresentRanks(4, [0, 3])
    for members, expected in ((range(4), guessed), ([0, 3], False)):
        communicator = ranks.make(members)
        for rank, value in ((0, 2.0), (3, second)):
            ranks.post(rank, communicator, 0, np.float32(value).tobytes(), reduction=Reduction.MAX)
        ((answer, _),) = ranks.told(0)
        assert isinstance(answer, Done)
        assert answer.guessed == expected
        ranks.told(3)


def test_absent_members_are_copies_in_an_all_gather() -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    got = ranks.collective(everybody, Call.ALL_GATHER, {1: [3, 4], 4: [7, 8]}, count=2)
    assert got == [bytes([3, 4, 3, 4, 3, 4, 3, 4, 7, 8, 7, 8])] * 2


def test_absent_members_are_copies_in_a_reduce_scatter() -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    got = ranks.collective(everybody, Call.REDUCE_SCATTER, {4: range(6), 1: range(10, 16)})
    assert got == [bytes([2 * 4 + 4 * 14]), bytes([2 * 1 + 4 * 11])]


def test_absent_members_are_copies_in_an_all_to_all() -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    got = ranks.collective(everybody, Call.ALL_TO_ALL, {1: range(6), 4: range(10, 16)})
    assert got == [bytes([1, 1, 1, 1, 11, 11]), bytes([4, 4, 4, 4, 14, 14])]


def test_a_broadcast_of_a_present_root_has_its_values() -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    assert ranks.collective(everybody, Call.BROADCAST, {1: (), 4: [7]}, peer=4) == [b"\x07"] * 2


def test_nothing_is_known_of_what_an_absent_root_broadcasts() -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    assert ranks.collective(everybody, Call.BROADCAST, {1: (), 4: ()}, peer=0) == [b""] * 2


def test_an_absent_root_broadcasts_what_its_sibling_does() -> None:
    """The second group is created when the communicator of the first one exists."""
    ranks = PresentRanks(4, [0, 3])
    first = ranks.make([0, 1], "1")
    second = ranks.make([2, 3], "2")
    assert ranks.collective(first, Call.BROADCAST, {0: [7]}, peer=0) == [b"\x07"]
    assert ranks.collective(second, Call.BROADCAST, {3: []}, peer=0) == [b"\x07"]


def test_siblings_may_make_different_calls_between_broadcasts() -> None:
    """As the stages of a pipeline do: the last one reduces a loss. Its second broadcast is that of the sibling, though
    the sequence numbers differ."""
    ranks = PresentRanks(4, [0, 3])
    first, second = ranks.make([0, 1], "1"), ranks.make([2, 3], "2")
    assert ranks.collective(first, Call.BROADCAST, {0: [7]}, peer=0) == [b"\x07"]
    assert ranks.collective(second, Call.BROADCAST, {3: []}, peer=0) == [b"\x07"]
    ranks.collective(second, Call.ALL_REDUCE, {3: [1]}, sequence=1)
    assert ranks.collective(first, Call.BROADCAST, {0: [8]}, peer=0, sequence=1) == [b"\x08"]
    assert ranks.collective(second, Call.BROADCAST, {3: []}, peer=0, sequence=2) == [b"\x08"]


@pytest.mark.parametrize("order", [(0, 2), (2, 0)])
def test_of_several_siblings_the_one_with_the_smallest_rank_counts(order: tuple[int, int]) -> None:
    ranks = PresentRanks(6, [0, 2, 5])
    groups = {first: ranks.make([first, first + 1], str(first)) for first in (0, 2, 4)}
    for first in order:
        assert ranks.collective(groups[first], Call.BROADCAST, {first: [first]}, peer=0) == [bytes([first])]
    assert ranks.collective(groups[4], Call.BROADCAST, {5: []}, peer=0) == [b"\0"]


def test_a_scatter_of_a_present_root_has_a_part_for_every_member() -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    assert ranks.collective(everybody, Call.SCATTER, {1: range(6), 4: ()}, peer=1) == [b"\x01", b"\x04"]


def test_a_gather_to_a_present_root_has_a_part_of_every_member() -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    got = ranks.collective(everybody, Call.GATHER, {1: [3], 4: [7]}, peer=4)
    assert got == [b"", bytes([3, 3, 3, 3, 7, 7])]


@pytest.mark.parametrize("call", [Call.REDUCE, Call.GATHER])
def test_nobody_gets_what_is_sent_to_an_absent_root(call: Call) -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    assert ranks.collective(everybody, call, {1: [3], 4: [7]}, peer=0) == [b"", b""]


def test_one_unknown_contribution_makes_a_reduction_unknown() -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    assert ranks.collective(everybody, Call.ALL_REDUCE, {1: [3], 4: ()}) == [b"", b""]


def test_values_that_are_unknown_in_a_present_member_are_unknown_in_its_copies() -> None:
    ranks = PresentRanks(4, [0, 2])
    everybody = ranks.make(range(4))
    fields: dict[str, Any] = {"call": Call.ALL_GATHER, "count": 2, "data_type": DataType.UINT8}
    ranks.post(0, everybody, 0, b"a", known=[1, 2], **fields)
    ranks.post(2, everybody, 0, b"bc", **fields)
    ((answer, payload),) = ranks.told(0)
    assert isinstance(answer, Done)
    assert (list(answer.known), payload) == ([1, 2, 3, 8], b"aabcbc")


def test_a_group_without_absent_members_is_as_ever() -> None:
    ranks = PresentRanks(6, [1, 2, 4])
    pair = ranks.make([4, 1], "1")
    assert ranks.collective(pair, Call.ALL_GATHER, {1: [3], 4: [7]}) == [bytes([7, 3])] * 2


def test_present_members_that_disagree_are_a_mismatch() -> None:
    ranks = PresentRanks(6, [1, 4])
    everybody = ranks.make(range(6))
    ranks.post(1, everybody, 0, count=8)
    ranks.post(4, everybody, 0, count=9)
    text = "does not match: rank 1 posted all_reduce of 8 fp32 sum; rank 4 posted all_reduce of 9 fp32 sum"
    assert text in failure(ranks.told(1))
    assert text in failure(ranks.told(4))
    for rank in (1, 4):  # what comes next is not affected
        ranks.post(rank, everybody, 1)
    assert (ranks.told(1), ranks.told(4)) == (done(1), done(1))


# ---- send and receive ----


def test_a_send_to_an_absent_rank_completes_by_itself() -> None:
    ranks = PresentRanks(4, [1])
    everybody = ranks.make(range(4))
    ranks.post(1, everybody, 0, b"1234", call=Call.SEND, peer=2)
    assert ranks.told(1) == done(0)


def test_sends_to_an_absent_rank_fill_no_buffer() -> None:
    ranks = PresentRanks(4, [1])
    everybody = ranks.make(range(4))
    for sequence in range(3):
        ranks.post(1, everybody, sequence, call=Call.SEND, peer=2, count=BUFFER_BYTES + 1)
        assert ranks.told(1) == done(sequence)


def test_a_receive_from_an_absent_rank_completes_with_nothing_known() -> None:
    ranks = PresentRanks(4, [1])
    everybody = ranks.make(range(4))
    ranks.post(1, everybody, 0, call=Call.RECEIVE, peer=0)
    assert ranks.told(1) == done(0)
    assert list(ranks.state.waits()) == []


def test_a_send_to_an_absent_rank_cannot_be_posted_twice() -> None:
    ranks = PresentRanks(4, [1])
    everybody = ranks.make(range(4))
    for _ in range(2):
        ranks.post(1, everybody, 0, call=Call.SEND, peer=2)
    first, second = ranks.told(1)
    assert [first] == done(0)
    assert failure([second]).endswith("it was posted before")


def test_present_ranks_send_to_each_other() -> None:
    ranks = PresentRanks(4, [1, 3])
    everybody = ranks.make(range(4))
    ranks.post(3, everybody, 0, call=Call.RECEIVE, peer=1)
    assert not any(ranks.answers)
    ranks.post(1, everybody, 0, b"1234", call=Call.SEND, peer=3)
    received: list[tuple[Message, bytes | None]] = [(Done(0, [0, 4], True), b"1234")]
    assert (ranks.told(1), ranks.told(3)) == (done(0), received)


# ---- waiting ----


def test_waits_name_present_ranks_only() -> None:
    ranks = PresentRanks(6, [1, 2, 4])
    everybody = ranks.make(range(6))
    ranks.post(4, everybody, 0)
    ranks.post(1, everybody, 0, call=Call.RECEIVE, peer=4)
    ranks.say(2, Split(1, everybody, 0, 0, 0))
    assert list(ranks.state.waits()) == [
        PendingWait("ncclCommSplit", everybody, 0, (2,), (1, 4)),
        PendingWait("all_reduce of 1 fp32 sum", everybody, 0, (4,), (1, 2)),
        PendingWait("receive of 1 fp32 from rank 4", everybody, 0, (1,), (4,)),
    ]


def test_a_join_of_a_known_group_waits_for_its_present_members() -> None:
    ranks = PresentRanks(4, [1, 3])
    ranks.announce("0", range(4))
    ranks.say_join(range(4), ranks.identifiers(ID_KEY), 3)
    ranks.complete_joins()
    assert [str(wait) for wait in ranks.state.waits()] == ["rank 3 waits for member 1 of a new communicator of 4"]


def test_a_rank_that_ended_is_waited_for_and_an_absent_one_is_not() -> None:
    ranks = PresentRanks(4, [0, 2])
    everybody = ranks.make(range(4))
    ranks.state.end(2)
    ranks.post(0, everybody, 0)
    assert ranks.state.describe() == {0: [PendingWait("all_reduce of 1 fp32 sum", everybody, 0, (0,), (2,))]}
