"""The coordinator's state machine: in any order of posts, every rank gets the oracle's answer, once."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.coordinator_ranks import Ranks, done, failure, join, post
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.communicators import PendingWait
from coordinator.point_to_point import BUFFER_BYTES
from rank_runtime.messages import (
    Abandoned,
    Alive,
    Call,
    DataType,
    Done,
    Drain,
    Ending,
    Join,
    Joined,
    Leave,
    Message,
    Post,
    Reduction,
    RequestFailed,
    Shrink,
    Split,
    Welcome,
)

Array = npt.NDArray[Any]

# ---- any order, against an oracle ----

TYPES = {DataType.INT32: np.int32, DataType.FLOAT32: np.float32, DataType.UINT8: np.uint8, DataType.FLOAT64: np.float64}
ROOTED = (Call.REDUCE, Call.BROADCAST, Call.GATHER, Call.SCATTER)
REDUCING = (Call.ALL_REDUCE, Call.REDUCE, Call.REDUCE_SCATTER)


@dataclass(frozen=True)
class Event:
    """A post, and what is to be answered."""

    rank: int
    post: Post
    payload: bytes | None
    expected: tuple[Message, bytes | None]


@dataclass(frozen=True)
class Contribution:
    """A member's send buffer: elements (zeros if it sends none), which bytes are known, and whether it sends them."""

    values: Array
    known: Array
    is_sent: bool


def _intervals(mask: Array) -> list[int]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [int(edge) for edge in edges]


def _known_bytes(values: Array, known: Array) -> bytes:
    return np.frombuffer(values.tobytes(), np.uint8)[known].tobytes()


def _oracle(call: Call, reduction: Reduction, root: int, given_: list[Contribution]) -> list[tuple[Array, Array]]:
    """Values and known bytes that each member receives."""
    members = range(len(given_))
    nothing = (np.zeros(0), np.zeros(0, bool))
    parts = [np.split(each.values, len(given_)) for each in given_ if len(each.values) % len(given_) == 0]
    known_parts = [np.split(each.known, len(given_)) for each in given_ if len(each.known) % len(given_) == 0]
    if call in REDUCING:
        stacked = np.stack([each.values for each in given_])
        known = np.logical_and.reduce([each.known for each in given_])
        item = stacked.dtype.itemsize
        known = np.repeat(known.reshape(-1, item).all(1), item)
        total = {
            Reduction.PROD: lambda: stacked.prod(0, dtype=stacked.dtype),
            Reduction.MAX: lambda: stacked.max(0),
            Reduction.MIN: lambda: stacked.min(0),
        }.get(reduction, lambda: stacked.sum(0, dtype=stacked.dtype))()
        if call == Call.ALL_REDUCE:
            return [(total, known)] * len(given_)
        if call == Call.REDUCE:
            return [(total, known) if member == root else nothing for member in members]
        return list(zip(np.split(total, len(given_)), np.split(known, len(given_)), strict=True))
    if call == Call.BROADCAST:
        return [(given_[root].values, given_[root].known)] * len(given_)
    if call == Call.SCATTER:
        return list(
            zip(np.split(given_[root].values, len(given_)), np.split(given_[root].known, len(given_)), strict=True)
        )
    if call == Call.ALL_TO_ALL:
        return [
            (np.concatenate([part[member] for part in parts]), np.concatenate([part[member] for part in known_parts]))
            for member in members
        ]
    gathered = (np.concatenate([each.values for each in given_]), np.concatenate([each.known for each in given_]))
    return [gathered if call == Call.ALL_GATHER or member == root else nothing for member in members]


def _contribution(random: np.random.Generator, count: int, data_type: DataType, sends: bool) -> Contribution:
    stored = np.dtype(TYPES[data_type])
    is_sent = sends and random.random() < 0.85
    values = random.integers(0, 4, count).astype(stored) if is_sent else np.zeros(count, stored)
    known = np.zeros(count * stored.itemsize, bool)
    if is_sent:
        known[:] = True
        if random.random() < 0.3:  # some of it is random
            first = int(random.integers(0, len(known) + 1))
            known[first : int(random.integers(first, len(known) + 1))] = False
    return Contribution(values, known, is_sent)


@st.composite
def _jobs(draw: st.DrawFn) -> tuple[int, list[list[int]], list[Event]]:
    """World size, members of the communicators (number 1, 2, ...), and what happens on them, in order."""
    world_size = draw(st.integers(2, 6))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    groups = [list(range(world_size))]
    for _ in range(draw(st.integers(0, 3))):
        size = int(random.integers(2, world_size + 1))
        groups.append([int(rank) for rank in random.permutation(world_size)[:size]])
    sequences: dict[object, itertools.count[int]] = {}
    tokens = itertools.count()
    events = []
    for _ in range(draw(st.integers(1, 10))):
        number = int(random.integers(0, len(groups)))
        group = groups[number]
        call = draw(st.sampled_from(Call))
        data_type = draw(st.sampled_from(list(TYPES)))
        count = int(random.integers(0, 5))
        if call in (Call.SEND, Call.RECEIVE):
            ends = (int(random.integers(0, len(group))), int(random.integers(0, len(group))))
            sequence = next(sequences.setdefault((number, ends), itertools.count()))
            events += _message_events(random, number + 1, group, ends, sequence, count, data_type, tokens)
            continue
        reduction = draw(st.sampled_from(Reduction)) if call in REDUCING else Reduction.SUM
        if reduction == Reduction.AVG:
            reduction = Reduction.PREMULSUM  # averages have tests of their own
        root = int(random.integers(0, len(group))) if call in ROOTED else -1
        sequence = next(sequences.setdefault(number, itertools.count()))
        elements = count * (len(group) if call in (Call.REDUCE_SCATTER, Call.ALL_TO_ALL, Call.SCATTER) else 1)
        contributions = [
            _contribution(random, elements, data_type, call not in (Call.BROADCAST, Call.SCATTER) or member == root)
            for member in range(len(group))
        ]
        expected = _oracle(call, reduction, root, contributions)
        for rank, contribution, (values, known) in zip(group, contributions, expected, strict=True):
            token = next(tokens)
            payload = _known_bytes(contribution.values, contribution.known) if contribution.is_sent else None
            posted = Post(
                *(token, number + 1, call, sequence, count, data_type, reduction, root),
                known=_intervals(contribution.known),
                payload=payload is not None,
            )
            answer = Done(token, _intervals(known), bool(known.any()))
            events.append(Event(rank, posted, payload, (answer, _known_bytes(values, known) if known.any() else None)))
    return world_size, groups, [events[int(i)] for i in random.permutation(len(events))]


def _message_events(
    random: np.random.Generator,
    communicator: int,
    group: Sequence[int],
    ends: tuple[int, int],
    sequence: int,
    count: int,
    data_type: DataType,
    tokens: itertools.count[int],
) -> list[Event]:
    sender, receiver = ends
    contribution = _contribution(random, count, data_type, sends=True)
    payload = _known_bytes(contribution.values, contribution.known) if contribution.is_sent else None
    known = _intervals(contribution.known)
    sent, received = next(tokens), next(tokens)
    send = Post(
        *(sent, communicator, Call.SEND, sequence, count, data_type, 0, receiver),
        known=known,
        payload=payload is not None,
    )
    receive = Post(
        *(received, communicator, Call.RECEIVE, sequence, count, data_type, 0, sender), known=[], payload=False
    )
    answer = Done(received, known, bool(known))
    return [
        Event(group[sender], send, payload, (Done(sent, [], False), None)),
        Event(group[receiver], receive, None, (answer, payload if known else None)),
    ]


def _comparable(answers: Sequence[tuple[Message, bytes | None]]) -> list[tuple[int, list[int], bool, bytes | None]]:
    compared = []
    for answer, payload in answers:
        assert isinstance(answer, Done), answer
        compared.append((answer.token, list(answer.known), answer.payload, payload))
    return sorted(compared, key=lambda each: each[0])


@given(_jobs())
@settings(deadline=None, max_examples=300)
def test_every_rank_gets_what_the_oracle_says_once_in_whatever_order(
    job: tuple[int, list[list[int]], list[Event]],
) -> None:
    world_size, groups, events = job
    ranks = Ranks(world_size)
    assert [ranks.join(group, b"%d" % i) for i, group in enumerate(groups)] == list(range(1, len(groups) + 1))
    for event in events:
        ranks.say(event.rank, event.post, event.payload)
    for rank in range(world_size):
        expected = [event.expected for event in events if event.rank == rank]
        assert _comparable(ranks.told(rank)) == _comparable(expected)
    assert ranks.state.describe() == {}


def test_a_collective_is_complete_only_when_all_have_posted_it() -> None:
    ranks = Ranks(3)
    everybody = ranks.join([0, 1, 2])
    for rank in (2, 0):
        ranks.post(rank, everybody, 0)
    assert not any(ranks.answers)
    ranks.post(1, everybody, 0)
    assert [ranks.told(rank) for rank in range(3)] == [done(0)] * 3


@pytest.mark.parametrize("reduction", [Reduction.AVG, Reduction.SUM])
def test_large_contributions_are_reduced_as_small_ones_are(reduction: Reduction) -> None:
    count = 1 << 17
    ranks = Ranks(5)
    everybody = ranks.join(range(5))
    for rank in (3, 0, 4, 2, 1):
        values = np.full(count, rank + 1, np.float32)
        ranks.post(rank, everybody, 0, values.tobytes(), count=count, reduction=reduction)
    for rank in range(5):
        ((answer, payload),) = ranks.told(rank)
        assert answer == Done(0, (0, 4 * count), True)
        assert payload == np.full(count, 3 if reduction == Reduction.AVG else 15, np.float32).tobytes()


def test_the_same_payload_is_not_copied_for_every_rank() -> None:
    ranks = Ranks(4)
    everybody = ranks.join(range(4))
    outgoing = []
    for rank in range(4):
        outgoing += ranks.state.handle(rank, post(everybody, 0, bytes(4), call=Call.ALL_GATHER), bytes(4))
    assert len({id(payload) for _, _, payload in outgoing}) == 1


# ---- send and receive ----


def test_small_sends_complete_before_their_receives() -> None:
    ranks = Ranks(2)
    both = ranks.join([0, 1])
    ranks.post(0, both, 0, b"1234", call=Call.SEND, peer=1)
    assert ranks.told(0) == done(0)
    ranks.post(1, both, 0, call=Call.RECEIVE, peer=0)
    assert ranks.told(1) == [(Done(0, [0, 4], True), b"1234")]
    assert ranks.told(0) == []


def test_sends_wait_when_the_buffer_is_full() -> None:
    """And those that wait go on in their order when there is room."""
    half: dict[str, Any] = {"count": BUFFER_BYTES // 2, "data_type": DataType.UINT8}
    ranks = Ranks(2)
    both = ranks.join([0, 1])
    for sequence in range(4):
        ranks.post(0, both, sequence, call=Call.SEND, peer=1, **half)
    assert ranks.told(0) == done(0) + done(1)
    ranks.post(0, both, 4, call=Call.SEND, peer=1, count=1)  # small, but not before its turn
    ranks.post(1, both, 3, call=Call.RECEIVE, peer=0, **half)  # received out of order, so not through the buffer
    assert (ranks.told(0), ranks.told(1)) == (done(3), done(3))
    ranks.post(1, both, 0, call=Call.RECEIVE, peer=0, **half)
    assert ranks.told(0) == done(2)
    ranks.post(1, both, 1, call=Call.RECEIVE, peer=0, **half)
    assert ranks.told(0) == done(4)


def test_a_send_larger_than_the_buffer_waits_for_its_receive() -> None:
    large: dict[str, Any] = {"count": BUFFER_BYTES + 1, "data_type": DataType.UINT8}
    ranks = Ranks(2)
    both = ranks.join([0, 1])
    ranks.post(0, both, 0, call=Call.SEND, peer=1, **large)
    assert ranks.told(0) == []
    ranks.post(1, both, 0, call=Call.RECEIVE, peer=0, **large)
    assert (ranks.told(0), ranks.told(1)) == (done(0), done(0))


def test_buffers_of_different_pairs_are_apart() -> None:
    full: dict[str, Any] = {"count": BUFFER_BYTES, "data_type": DataType.UINT8}
    ranks = Ranks(3)
    everybody = ranks.join([0, 1, 2])
    ranks.post(0, everybody, 0, call=Call.SEND, peer=1, **full)
    ranks.post(0, everybody, 0, call=Call.SEND, peer=2, token=1, **full)
    ranks.post(1, everybody, 0, call=Call.SEND, peer=0, **full)
    assert (ranks.told(0), ranks.told(1)) == (done(0) + done(1), done(0))


def test_types_may_differ_if_sizes_do_not() -> None:
    ranks = Ranks(2)
    both = ranks.join([0, 1])
    ranks.post(0, both, 0, b"12345678", call=Call.SEND, peer=1, count=8, data_type=DataType.UINT8)
    ranks.post(1, both, 0, call=Call.RECEIVE, peer=0, count=2, data_type=DataType.FLOAT32)
    assert ranks.told(1) == [(Done(0, [0, 8], True), b"12345678")]


@pytest.mark.parametrize("receive_first", [True, False])
def test_sizes_that_differ_are_a_mismatch(receive_first: bool) -> None:
    ranks = Ranks(2)
    both = ranks.join([0, 1])
    posts: list[Callable[[], None]] = [
        lambda: ranks.post(0, both, 0, call=Call.SEND, peer=1, count=3),
        lambda: ranks.post(1, both, 0, call=Call.RECEIVE, peer=0, count=2),
    ]
    for each in reversed(posts) if receive_first else posts:
        each()
    text = (
        "send and receive 0 do not match: rank 0 posted send of 3 fp32 to rank 1; "
        "rank 1 posted receive of 2 fp32 from rank 0"
    )
    assert failure(ranks.told(1)) == text
    if receive_first:
        assert failure(ranks.told(0)) == text
    else:
        assert ranks.told(0) == done(0)  # the send was complete before anybody could know


# ---- what does not match ----


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"count": 1023}, "all_reduce of 1023 fp32 sum"),
        ({"data_type": DataType.BFLOAT16}, "all_reduce of 1024 bf16 sum"),
        ({"reduction": Reduction.MAX}, "all_reduce of 1024 fp32 max"),
        ({"call": Call.ALL_GATHER}, "all_gather of 1024 fp32"),
        ({"call": Call.BROADCAST, "peer": 2}, "broadcast of 1024 fp32 from rank 2"),
        ({"call": Call.REDUCE, "peer": 2}, "reduce of 1024 fp32 sum to rank 2"),
    ],
)
def test_posts_that_disagree_are_a_mismatch(fields: dict[str, Any], text: str) -> None:
    ranks = Ranks(8)
    everybody = ranks.join(range(8))
    for rank in range(7):
        ranks.post(rank, everybody, 0, count=1024)
    ranks.post(7, everybody, 0, **{"count": 1024, **fields})
    expected = (
        f"collective 0 on communicator {everybody} (ranks 0-7) does not match: "
        f"ranks 0-6 posted all_reduce of 1024 fp32 sum; rank 7 posted {text}"
    )
    for rank in range(8):
        assert failure(ranks.told(rank)) == expected
    for rank in range(8):  # what comes next is not affected
        ranks.post(rank, everybody, 1)
    assert [ranks.told(rank) for rank in range(8)] == [done(1)] * 8


def test_a_mismatch_is_reported_at_once_and_to_late_ranks() -> None:
    ranks = Ranks(4)
    everybody = ranks.join([3, 2, 1, 0])
    ranks.post(3, everybody, 0)
    ranks.post(1, everybody, 0, count=2)
    first = "does not match: rank 3 posted all_reduce of 1 fp32 sum; rank 1 posted all_reduce of 2 fp32 sum"
    assert first in failure(ranks.told(3))
    assert first in failure(ranks.told(1))
    ranks.post(2, everybody, 0)
    assert "ranks 2-3 posted all_reduce of 1 fp32 sum; rank 1 posted" in failure(ranks.told(2))
    ranks.post(0, everybody, 0, call=Call.BROADCAST, peer=3)
    assert "rank 0 posted broadcast of 1 fp32 from rank 0" in failure(ranks.told(0))
    assert not any(ranks.answers)
    ranks.post(0, everybody, 0)
    assert "it was posted before and is complete" in failure(ranks.told(0))


# ---- what must not be ----


def test_invalid_posts_are_refused() -> None:
    ranks = Ranks(3)
    pair = ranks.join([0, 1])

    def answer_to(rank: int, communicator: int, sequence: int, payload: bytes | None = None, **fields: Any) -> str:
        ranks.post(rank, communicator, sequence, payload, **fields)
        return failure(ranks.told(rank))

    assert answer_to(0, 99, 0) == "rank 0 used communicator 99, which does not exist or was destroyed"
    assert answer_to(2, pair, 0) == f"rank 2 is not a member of communicator {pair}"
    prefix = f"rank 0 posted broadcast of 1 fp32 from member 2 (out of range) (0 on communicator {pair}): "
    assert answer_to(0, pair, 0, call=Call.BROADCAST, peer=2) == f"{prefix}its root or peer is 2, expected 0 to 1"
    assert "its root or peer is -1, expected 0 to 1" in answer_to(0, pair, 0, call=Call.SEND)
    assert "bytes up to 5 are known of its send buffer, which has 4" in answer_to(0, pair, 0, b"12345")
    assert "bytes up to 9 are known of its send buffer, which has 8" in answer_to(
        0, pair, 0, b"1", known=[8, 9], call=Call.ALL_TO_ALL
    )
    assert "send buffer, which has 0" in answer_to(0, pair, 0, b"1234", call=Call.BROADCAST, peer=1)
    assert "send buffer, which has 0" in answer_to(0, pair, 0, b"1234", call=Call.RECEIVE, peer=1)
    assert "more than any memory holds" in answer_to(0, pair, 0, count=(1 << 63) - 1)
    ranks.post(0, pair, 0)
    assert answer_to(0, pair, 0).endswith("it was posted before")
    ranks.post(1, pair, 0)
    assert [ranks.told(0), ranks.told(1)] == [done(0), done(0)]  # the violations have done no harm
    assert answer_to(0, pair, 0).endswith("it was posted before and is complete")
    ranks.post(0, pair, 0, call=Call.SEND, peer=1)
    assert ranks.told(0) == done(0)
    assert answer_to(0, pair, 0, call=Call.SEND, peer=1).endswith("it was posted before")
    ranks.post(1, pair, 0, call=Call.RECEIVE, peer=0)
    assert ranks.told(1) == done(0)
    assert answer_to(1, pair, 0, call=Call.RECEIVE, peer=0).endswith("it was posted before")


def test_messages_that_only_coordinators_send_are_ignored() -> None:
    ranks = Ranks(1)
    ranks.say(0, Welcome(1))
    ranks.say(0, Leave(7, Ending.DESTROYED))
    assert ranks.told(0) == []


@given(st.data())
@settings(deadline=None)
def test_nothing_that_a_rank_sends_raises(data: st.DataObject) -> None:
    ranks = Ranks(3)
    ranks.join([0, 1, 2])
    small = st.integers(-1, 3)
    messages = st.one_of(
        st.builds(Join, small, st.sampled_from([b"a", b"b"]), small, st.integers(1, 3), small, small, small),
        st.builds(Split, small, small, small, small, small),
        st.builds(Shrink, small, small, small, st.lists(st.integers(0, 4), max_size=3)),
        st.builds(
            *(Post, small, small, st.sampled_from(Call), small, st.integers(0, 2), st.sampled_from(DataType)),
            *(st.sampled_from(Reduction), small, st.just([]), st.booleans()),
        ),
        st.builds(Leave, small, st.sampled_from(Ending)),
        st.builds(Alive, small),
    )
    for rank, message in data.draw(st.lists(st.tuples(st.integers(0, 2), messages), max_size=40)):
        ranks.say(rank, message, bytes(4) if isinstance(message, Post) and message.payload else None)
        if data.draw(st.integers(0, 30)) == 0:
            ranks.state.end(rank)
    ranks.state.describe()


# ---- communicators ----


def test_instances_number_the_communicators_of_the_same_members() -> None:
    ranks = Ranks(3)
    instances = []
    for key, members in enumerate([(0, 1), (0, 1), (1, 0), (0, 1, 2), (0, 1)]):
        for member, rank in enumerate(members):
            ranks.say(rank, join(rank, b"%d" % key, member, len(members), 5))
        for rank in members:
            ((answer, _),) = ranks.told(rank)
            assert isinstance(answer, Joined)
            assert answer.request == 5
            instances.append(answer.instance)
    assert instances == [0, 0, 1, 1, 0, 0, 0, 0, 0, 2, 2]


def test_contradictory_joins_are_refused() -> None:
    ranks = Ranks(4)

    def texts(*joins: tuple[int, int, int]) -> list[str]:
        for rank, member, size in joins:
            ranks.say(rank, join(rank, repr(joins).encode(), member, size))
        return [failure(ranks.told(rank)) for rank in sorted({rank for rank, _, _ in joins})]

    text = "a communicator cannot be made: ranks 0-1 joined it as one of 3, rank 2 as one of 4"
    assert texts((0, 0, 3), (1, 1, 3), (2, 2, 4), (3, 3, 3)) == [text] * 4
    text = "a communicator cannot be made: rank 1 and rank 0 both joined it as member 1"
    assert texts((1, 1, 2), (0, 1, 2)) == [text] * 2
    text = "a communicator cannot be made: rank 0 joined it as member 2, expected 0 to 1"
    assert texts((1, 1, 2), (0, 2, 2)) == [text] * 2


def test_members_that_share_a_gpu_are_refused() -> None:
    """All of them, when all have come; with NCCL's words, which name members, and then the ranks of the job."""
    ranks = Ranks(12)
    on_gpu_two = {3: 0, 4: 1, 5: 2}  # rank -> member
    for rank, member in on_gpu_two.items():
        ranks.say(rank, Join(member, b"key", member, 4, 0, 2, 0x1B000))
        assert ranks.told(rank) == []
    ranks.say(11, Join(3, b"key", 3, 4, 1, 2, 0x1B000))  # the same GPU of another node
    for rank, member in on_gpu_two.items():
        text = failure(ranks.told(rank))
        other = 1 if member == 0 else 0
        assert text.startswith(f"Duplicate GPU detected : rank {member} and rank {other} both on CUDA device 1b000 (")
        assert text.endswith("(GPU 2 of node 0 is used by ranks 3-5 of the job)")
    assert "Duplicate GPU" in failure(ranks.told(11))
    assert list(ranks.state.waits()) == []


def test_a_gpu_of_another_node_is_another_gpu() -> None:
    ranks = Ranks(9)
    for member, rank in enumerate((0, 8)):
        ranks.say(rank, Join(1, b"key", member, 2, member, 0, 0x1000))
    for rank in (0, 8):
        ((answer, _),) = ranks.told(rank)
        assert isinstance(answer, Joined)


def test_a_communicator_of_one_rank_does_not_wait() -> None:
    ranks = Ranks(1)
    ranks.say(0, join(0, b"alone", 0, 1, 9))
    assert ranks.told(0) == [(Joined(9, 1, 0, (0,), 0), None)]
    ranks.say(0, Split(10, 1, 0, 0, 0))
    assert ranks.told(0) == [(Joined(10, 2, 0, (0,), 1), None)]
    ranks.post(0, 2, 0, b"1234")
    assert ranks.told(0) == [(Done(0, (0, 4), True), b"1234")]


def test_a_split_orders_ranks_by_key_and_leaves_out_ranks_without_a_colour() -> None:
    ranks = Ranks(6)
    everybody = ranks.join([5, 4, 3, 2, 1, 0])
    colors = {5: 0, 4: 1, 3: 0, 2: 1, 1: -1, 0: 0}
    keys = {5: 7, 4: -1, 3: 7, 2: -2, 1: 0, 0: 3}
    for rank in (2, 5, 0, 1, 4):
        ranks.say(rank, Split(10 + rank, everybody, 0, colors[rank], keys[rank]))
    assert not any(ranks.answers)
    ranks.say(3, Split(13, everybody, 0, colors[3], keys[3]))
    first, second = everybody + 1, everybody + 2
    expected = {
        0: Joined(10, first, 0, (0, 5, 3), 0),  # by key, then as in the parent
        5: Joined(15, first, 1, (0, 5, 3), 0),
        3: Joined(13, first, 2, (0, 5, 3), 0),
        2: Joined(12, second, 0, (2, 4), 0),
        4: Joined(14, second, 1, (2, 4), 0),
        1: Joined(11, 0, 0, (), 0),
    }
    for rank, answer in expected.items():
        assert ranks.told(rank) == [(answer, None)]
    for rank in (0, 3, 5):
        ranks.post(rank, first, 0)
    assert ranks.told(5) == done(0)


def test_splits_are_matched_by_sequence_number() -> None:
    ranks = Ranks(2)
    both = ranks.join([0, 1])
    ranks.say(0, Split(1, both, 1, 0, 0))
    ranks.say(0, Split(2, both, 0, 0, 0))
    ranks.say(1, Split(3, both, 0, 0, 0))
    assert [answer for answer, _ in ranks.told(0)] == [Joined(2, both + 1, 0, (0, 1), 1)]
    ranks.say(1, Split(4, both, 1, 0, 0))
    assert [answer for answer, _ in ranks.told(0)] == [Joined(1, both + 2, 0, (0, 1), 2)]


def test_shrink_does_not_wait_for_the_excluded() -> None:
    ranks = Ranks(4)
    everybody = ranks.join([3, 2, 1, 0])
    for rank in (0, 2):
        ranks.say(rank, Shrink(1, everybody, 0, [2, 0]))  # members, not ranks: 1 and 3
    assert ranks.told(2) == [(Joined(1, everybody + 1, 0, (2, 0), 0), None)]
    assert ranks.told(0) == [(Joined(1, everybody + 1, 1, (2, 0), 0), None)]


def test_contradictory_splits_and_shrinks_are_refused() -> None:
    ranks = Ranks(3)
    everybody = ranks.join([0, 1, 2])
    ranks.say(0, Split(1, everybody, 0, 0, 0))
    ranks.say(1, Shrink(1, everybody, 0, [2]))
    text = "rank 0 called ncclCommSplit, rank 1 called ncclCommShrink"
    assert [failure(ranks.told(0)), failure(ranks.told(1))] == [text, text]
    ranks.say(2, Split(1, everybody, 0, 0, 0))
    assert failure(ranks.told(2)) == text
    ranks.say(0, Shrink(1, everybody, 1, [2]))
    ranks.say(1, Shrink(1, everybody, 1, [0]))
    assert "rank 0 called ncclCommShrink without members [2], rank 1 without [0]" in failure(ranks.told(0))
    assert "without" in failure(ranks.told(1))
    ranks.say(2, Shrink(1, everybody, 2, [2]))
    assert failure(ranks.told(2)) == "rank 2 called ncclCommShrink though it is excluded"
    ranks.say(2, Shrink(1, everybody, 3, [3]))
    assert failure(ranks.told(2)) == "ncclCommShrink without members [3], expected 0 to 2"
    ranks.say(0, Split(1, everybody, 4, 0, 0))
    ranks.say(0, Split(2, everybody, 4, 0, 0))
    assert ranks.told(0) == [
        (RequestFailed(2, 4, "rank 0 has already called ncclCommSplit with sequence number 4"), None)
    ]
    ranks.say(0, Split(3, 99, 0, 0, 0))
    assert "communicator 99, which does not exist" in failure(ranks.told(0))


# ---- leaving, ending, waiting ----


def test_an_aborted_post_is_withdrawn() -> None:
    ranks = Ranks(3)
    everybody = ranks.join([0, 1, 2])
    ranks.post(0, everybody, 0)
    ranks.post(1, everybody, 0)
    ranks.say(0, Leave(everybody, Ending.ABORTED))
    ranks.post(2, everybody, 0)
    assert not any(ranks.answers)
    assert ranks.state.describe()[1] == [PendingWait("all_reduce of 1 fp32 sum", everybody, 0, (1, 2), (0,))]
    ranks.post(0, everybody, 1)
    assert failure(ranks.told(0)).endswith("it has left the communicator")


def test_posts_of_a_rank_that_has_ended_count() -> None:
    ranks = Ranks(2)
    both = ranks.join([0, 1])
    ranks.post(0, both, 0, b"1234", call=Call.ALL_GATHER)
    ranks.post(0, both, 0, b"5678", call=Call.SEND, peer=1, token=1)
    ranks.post(0, both, 1, call=Call.SEND, peer=1, token=2, count=BUFFER_BYTES)
    assert ranks.told(0) == done(1)
    ranks.state.end(0)
    ranks.post(1, both, 0, b"abcd", call=Call.ALL_GATHER)
    ranks.post(1, both, 0, call=Call.RECEIVE, peer=0, token=1)
    ranks.post(1, both, 1, call=Call.RECEIVE, peer=0, token=2, count=BUFFER_BYTES)
    assert ranks.told(1) == [(Done(0, [0, 8], True), b"1234abcd"), (Done(1, [0, 4], True), b"5678"), *done(2)]
    assert ranks.told(0) == []  # it would not be read
    ranks.post(1, both, 1)
    assert ranks.state.describe() == {1: [PendingWait("all_reduce of 1 fp32 sum", both, 1, (1,), (0,))]}


def _abandoned(ranks: Ranks, rank: int) -> str:
    """The text of the one answer to a rank whose program has ended."""
    ((answer, payload),) = ranks.told(rank)
    assert payload is None
    assert isinstance(answer, Abandoned), answer
    return answer.text


def _say_end(ranks: Ranks, rank: int) -> None:
    for to, answer, _ in ranks.state.end(rank):
        ranks.answers[to].append((answer, None))


@pytest.mark.parametrize("order", ["drain, end, post", "drain, post, end", "post, drain, end", "end, post, drain"])
def test_a_rank_that_drains_does_not_wait_for_one_that_ended(order: str) -> None:
    ranks = Ranks(3)
    number = ranks.join([0, 1, 2])
    ranks.post(2, number, 0)  # its program goes on: it waits for ever, and is reported
    for event in order.split(", "):
        if event == "drain":
            ranks.say(1, Drain())
            assert ranks.state.is_draining(1)
        elif event == "post":
            ranks.post(1, number, 0)
        else:
            _say_end(ranks, 0)
    assert "was queued when the program ended and is dropped: rank 0 left" in _abandoned(ranks, 1)
    assert ranks.told(2) == []
    (wait,) = ranks.state.waits()
    assert (wait.waiting, wait.missing) == ((2,), (0,))


def test_a_rank_that_drains_waits_for_ranks_that_may_still_come() -> None:
    ranks = Ranks(2)
    number = ranks.join([0, 1])
    ranks.say(1, Drain(5))
    ranks.post(1, number, 0)
    ranks.post(1, number, 0, call=Call.RECEIVE, peer=0)
    assert ranks.told(1) == []
    assert ranks.state.clock(1) == 5
    ranks.post(0, number, 0)
    assert ranks.told(1) == done(0)
    ranks.say(0, Leave(number, Ending.DESTROYED))
    assert "receive of 1 fp32 from rank 0" in _abandoned(ranks, 1)
    assert list(ranks.state.waits()) == []


def test_a_rank_that_ended_while_it_joined_is_a_member_that_never_posts() -> None:
    ranks = Ranks(2)
    ranks.say(0, join(0, b"key", 0, 2))
    ranks.state.end(0)
    ranks.say(1, join(1, b"key", 1, 2))
    assert ranks.told(0) == []
    ((answer, _),) = ranks.told(1)
    assert isinstance(answer, Joined)
    ranks.post(1, answer.communicator, 0)
    assert [str(wait) for wait in ranks.state.waits()] == [
        f"rank 1 waits for rank 0: all_reduce of 1 fp32 sum (0 on communicator {answer.communicator})"
    ]


def test_waits_name_the_waiting_and_the_missing_ranks() -> None:
    ranks = Ranks(16)
    everybody = ranks.join(range(16))
    odd = ranks.join(range(1, 16, 2))
    for rank in range(16):
        if rank not in (3, 4, 9):
            ranks.post(rank, everybody, 7, count=1024)
    ranks.post(3, odd, 0, call=Call.SEND, peer=2, count=BUFFER_BYTES)  # waits for rank 5, its member 2
    ranks.post(9, odd, 0, call=Call.RECEIVE, peer=2)
    ranks.say(4, join(4, b"new", 2, 3))
    ranks.say(3, Split(1, odd, 0, 0, 0))
    assert sorted(str(wait) for wait in ranks.state.waits()) == [
        "rank 3 waits for rank 5: send of 4194304 fp32 to rank 5 (0 on communicator 2)",
        "rank 3 waits for ranks 1, 5, 7, 9, 11, 13, 15: ncclCommSplit (0 on communicator 2)",
        "rank 4 waits for members 0-1 of a new communicator of 3",
        "rank 9 waits for rank 5: receive of 1 fp32 from rank 5 (0 on communicator 2)",
        "ranks 0-2, 5-8, 10-15 wait for ranks 3-4, 9: all_reduce of 1024 fp32 sum (7 on communicator 1)",
    ]
    described = ranks.state.describe()
    assert sorted(described) == list(range(16))
    assert len(described[3]) == 2


def test_a_new_process_of_a_rank_starts_afresh() -> None:
    ranks = Ranks(2)
    both = ranks.join([0, 1])
    ranks.post(0, both, 0)
    ranks.state.end(0)
    ranks.state.start(0)
    ranks.post(1, both, 0)
    assert (ranks.told(0), ranks.told(1)) == ([], done(0))
    ranks.post(0, both, 1)
    assert failure(ranks.told(0)).endswith("it has left the communicator")


def test_progress_counts_joined_and_ended_ranks_and_common_steps() -> None:
    ranks = Ranks(3)
    state = ranks.state
    assert (state.joined, state.ended, state.steps) == (3, 0, 0)
    for rank, steps in enumerate((5, 4, 6)):
        ranks.say(rank, Alive(steps))
    state.end(2)
    assert (state.joined, state.ended, state.steps) == (3, 1, 4)


# ---- memory ----


def _everything_once(ranks: Ranks, everybody: int, number: int) -> None:
    """One of each kind of operation, and a communicator that comes and goes."""
    members = ranks.world_size
    for call in (Call.ALL_REDUCE, Call.ALL_GATHER, Call.BROADCAST, Call.ALL_TO_ALL):
        sequence = 4 * number + (Call.ALL_REDUCE, Call.ALL_GATHER, Call.BROADCAST, Call.ALL_TO_ALL).index(call)
        for rank in range(members):
            root = {Call.BROADCAST: 0}.get(call, -1)
            payload = None if call == Call.BROADCAST and rank != 0 else bytes(64)
            count = 64 // (4 * members) if call == Call.ALL_TO_ALL else 16
            ranks.post(rank, everybody, sequence, payload, call=call, count=count, peer=root)
    for rank in range(members):
        ranks.post(rank, everybody, number, bytes(64), call=Call.SEND, count=16, peer=(rank + 1) % members)
        ranks.post((rank + 1) % members, everybody, number, call=Call.RECEIVE, count=16, peer=rank)
    for rank in range(members):
        ranks.say(rank, Split(1, everybody, number, 0, 0))
    for rank in range(members):
        *_, (joined, _) = ranks.told(rank)
        assert isinstance(joined, Joined)
        ranks.say(rank, Leave(joined.communicator, Ending.DESTROYED))


def test_memory_stays_flat() -> None:
    ranks = Ranks(4)
    everybody = ranks.join(range(4))
    tracemalloc.start()
    try:
        for number in range(400):
            if number == 200:  # the histories of calls are full
                gc.collect()  # empties the interpreter's own free lists as well
                before = tracemalloc.get_traced_memory()[0]
            _everything_once(ranks, everybody, number)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 1024, f"{grown} bytes more after 200 rounds"
    assert ranks.state.describe() == {}
    assert ranks.state.collectives == 400 * 4
