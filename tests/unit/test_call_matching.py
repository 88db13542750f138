"""Calls of absent ranks that do not fit to those of others show that they are not like their representatives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from helpers.trace_writer import TraceWriter

from maya.replay.call_matching import find_mismatch
from maya.replay.null_model import null_settings
from maya.replay.rank_class import read_rank_classes
from maya.replay.represented_ranks import GroupOfCommunicator, RepresentedJob

PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]


def _mismatch(folder: Path, present: Sequence[TraceWriter], groups: Sequence[tuple[int, ...]]) -> str:
    """The mismatch in a job of eight ranks, of which those with a trace were present."""
    for each in present:
        each.save(folder)
    origins = {(members, 0): GroupOfCommunicator(number) for number, members in enumerate(groups)}
    RepresentedJob(8, tuple(each.rank for each in present), groups, origins).save(folder)
    null_settings(8).save(folder)
    return find_mismatch(read_rank_classes(folder)[0])


def _in_pair(rank: int, count: int, steps: int = 3) -> TraceWriter:
    made = TraceWriter(rank)
    made.join(1, PAIRS[rank // 2])
    for _ in range(steps):
        made.collective(1, count=count)
    return made


def test_absent_ranks_that_call_the_same_fit(tmp_path: Path) -> None:
    assert _mismatch(tmp_path, [_in_pair(0, 100), _in_pair(2, 100)], PAIRS) == ""


def test_members_that_are_represented_by_different_ranks_may_call_different_sizes(tmp_path: Path) -> None:
    """Rank 1 is like rank 3, which has a collective of another size with rank 2 than rank 0 has with rank 1."""
    text = _mismatch(tmp_path, [_in_pair(0, 100), _in_pair(3, 200)], PAIRS)
    assert text == "rank 0 calls ncclAllReduce of 100 fp32 where rank 1 calls ncclAllReduce of 200 fp32"


def test_calls_that_one_rank_did_not_get_to_are_not_compared(tmp_path: Path) -> None:
    assert _mismatch(tmp_path, [_in_pair(0, 100), _in_pair(3, 100, steps=2)], PAIRS) == ""


def _exchanging(rank: int, sent: Sequence[int], received: Sequence[int]) -> TraceWriter:
    """A rank that sends to all, and receives from all."""
    made = TraceWriter(rank)
    made.join(1, range(8))
    for peer in range(8):
        made.send(1, peer, count=sent[peer])
        made.receive(1, peer, count=received[peer])
    return made


def test_a_send_has_the_size_that_the_receiver_expects(tmp_path: Path) -> None:
    even = [_exchanging(rank, [10] * 8, [10] * 8) for rank in (0, 1)]
    assert _mismatch(tmp_path, even, [tuple(range(8))]) == ""


def test_token_counts_that_differ_do_not_fit(tmp_path: Path) -> None:
    """Every rank sends twice as much to the next expert. The expert of rank 1 represents all others."""
    counts = [10 * 2**expert for expert in range(8)]
    present = [_exchanging(rank, counts, [counts[rank]] * 8) for rank in (0, 1)]
    assert _mismatch(tmp_path, present, [tuple(range(8))]) == "rank 0 sends 160 B to rank 2, which receives 80 B"
