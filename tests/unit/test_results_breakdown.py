"""The anatomy of a step: every nanosecond is in one time class, and in the right one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.training_traces import COMMUNICATION, TrainingWriter, timeline_of
from hypothesis import given
from hypothesis import strategies as st

from maya.replay.run_settings import HostCosts
from maya.replay.timeline import Timeline
from maya.results.exposed_calls import find_exposed_calls
from maya.results.step_breakdown import StepWindow, break_down_step
from maya.results.steps import find_steps
from maya.results.time_breakdown import TimeBreakdown, find_time_breakdown
from maya.results.time_classes import CLASSES, NUMBER, TimeClass
from maya.trace import RecordKind

MS = 1_000_000


def breakdown_of(timeline: Timeline) -> TimeBreakdown:
    steps = find_steps(timeline)
    found = find_time_breakdown(timeline, steps)
    assert (found.ns.sum(axis=2) == found.length_ns).all()
    assert (found.ns >= 0).all()
    exposed = found.ns[:, list(steps.measured), NUMBER[TimeClass.COMMUNICATION]].sum()
    assert sum(find_exposed_calls(timeline, steps).total_ns.values()) == exposed
    return found


def of_rank(breakdown: TimeBreakdown, rank: int) -> dict[str, int]:
    """What is not zero, in milliseconds."""
    return {name.value: ns // MS for name, ns in breakdown.of_rank(rank).items() if ns}


def test_the_time_of_a_rank_alone_is_divided_by_class(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for _ in range(3):
        rank.copy("HtoD", 1 << 20)
        rank.batch()
        rank.optimizer()
    assert of_rank(breakdown_of(timeline_of(tmp_path, [rank])), 0) == {"gemm": 6, "memory_bound": 1, "copy": 1}


def test_communication_beside_computing_is_hidden(tmp_path: Path) -> None:
    ranks = [TrainingWriter(0), TrainingWriter(1)]
    for rank in ranks:
        rank.join(1, range(2))
        for _ in range(3):
            rank.batch(layers=1)
            rank.reduce(1)
            rank.gemm()  # hides 1 ms of 2
            rank.join_streams()
            rank.optimizer()
    breakdown = breakdown_of(timeline_of(tmp_path, ranks, network_ns=2 * MS))
    assert of_rank(breakdown, 0) == {"gemm": 4, "memory_bound": 1, "communication": 1}
    assert breakdown.mean_hidden_ns.tolist() == [MS, MS]
    assert breakdown.mean_communication_ns.tolist() == [2 * MS, 2 * MS]
    assert breakdown.slowest.reason is None
    assert breakdown.slowest.text == "none"


def test_exposed_communication_belongs_to_the_call_that_began_first(tmp_path: Path) -> None:
    ranks = [TrainingWriter(rank) for rank in range(3)]
    for number, rank in enumerate(ranks):
        rank.join(1, range(3))
        rank.join(2, range(2) if number < 2 else [2])
        for _ in range(3):
            rank.batch(layers=1)
            rank.reduce(1)
            rank.gemm()  # hides 1 ms of 2
            rank.reduce(2, stream=COMMUNICATION + 1)  # begins in the middle of the first one
            rank.join_streams()
            rank.join_streams(COMMUNICATION + 1)
            rank.optimizer()
    timeline = timeline_of(tmp_path, ranks, network_ns=2 * MS)
    found = find_exposed_calls(timeline, find_steps(timeline))
    breakdown_of(timeline)
    assert found.mean_ns() == {
        ("ncclAllReduce", 3): MS,
        ("ncclAllReduce", 2): MS * 2 // 3,
        ("ncclAllReduce", 1): MS // 3,
    }


def test_a_straggler_is_waited_for(tmp_path: Path) -> None:
    ranks = [TrainingWriter(number) for number in range(3)]
    for rank in ranks:
        rank.join(1, range(3))
        for _ in range(3):
            rank.batch(layers=1)
            for _ in range(4 if rank.rank == 1 else 0):
                rank.elementwise("extra")
            rank.reduce(1)
            rank.join_streams()
            rank.optimizer()
    breakdown = breakdown_of(timeline_of(tmp_path, ranks, network_ns=MS))
    assert of_rank(breakdown, 0) == {"gemm": 3, "memory_bound": 1, "communication": 1, "waiting": 4}
    assert of_rank(breakdown, 1) == {"gemm": 3, "memory_bound": 5, "communication": 1}
    slowest = breakdown.slowest
    assert (slowest.rank, slowest.reason, slowest.difference_ns) == (1, TimeClass.MEMORY_BOUND, 4 * MS)
    assert slowest.text == "rank 1 takes 4 ms longer than the median rank, mostly memory-bound (+4 ms)"
    assert breakdown.median_rank == 0


def test_a_pipeline_stage_waits_for_its_receives(tmp_path: Path) -> None:
    first, second = TrainingWriter(0), TrainingWriter(1)
    for rank in (first, second):
        rank.join(1, range(2))
        for _ in range(3):
            if rank is first:
                rank.batch(layers=1)
                rank.after(COMMUNICATION, 0, 1)
                rank.send(1, to=1, stream=COMMUNICATION)
            else:
                rank.receive(1, source=0, stream=COMMUNICATION)
                rank.join_streams()
                rank.gemm()
            rank.optimizer()
    breakdown = breakdown_of(timeline_of(tmp_path, [first, second], network_ns=MS))
    later = of_rank(breakdown, 1)
    assert later["gemm"] == 1
    assert later["bubble"] == 1  # its own kernels and the transfer hide the rest of the first stage's time
    assert later["communication"] == 1


def test_a_slow_host_leaves_the_device_idle(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    rank.train(steps=3, layers=1)
    host = HostCosts(op=0, latency=0, wake=0, clock_read=0, calls={RecordKind.LIBRARY: 3 * MS, RecordKind.KERNEL: MS})
    assert of_rank(breakdown_of(timeline_of(tmp_path, [rank], host)), 0) == {
        "gemm": 3,
        "memory_bound": 1,
        "host_bound": 6,
    }


def test_computing_slowed_by_communication(tmp_path: Path) -> None:
    ranks = [TrainingWriter(0), TrainingWriter(1)]
    for rank in ranks:
        rank.join(1, range(2))
        for _ in range(3):
            rank.batch(layers=1)
            rank.reduce(1)
            rank.gemm()
            rank.gemm()
            rank.join_streams()
            rank.optimizer()
    host = HostCosts(op=0, latency=0, wake=0, clock_read=0, overlap=500)
    breakdown = breakdown_of(timeline_of(tmp_path, ranks, host, network_ns=2 * MS))
    assert of_rank(breakdown, 0) == {"gemm": 5, "memory_bound": 1, "slowed": 1}


def test_ranks_without_a_trace_are_idle(tmp_path: Path) -> None:
    rank = TrainingWriter(1)
    rank.train(steps=3)
    timeline = timeline_of(tmp_path, [TrainingWriter(0), rank])
    (tmp_path / "rank0.trace").unlink()
    from maya.replay.null_model import NullDurations, NullNetwork
    from maya.replay.simulate import simulate

    timeline = simulate(tmp_path, timeline.settings, durations=NullDurations(), network=NullNetwork())
    assert of_rank(breakdown_of(timeline), 0) == {"idle": 7}


@st.composite
def windows(draw: st.DrawFn) -> StepWindow:
    length = draw(st.integers(1, 50))
    count = draw(st.integers(0, 12))
    moments = st.lists(st.integers(0, length), min_size=3, max_size=3).map(sorted)
    times = [draw(moments) for _ in range(count)]
    numbers = [draw(st.integers(0, NUMBER[TimeClass.COPY])) for _ in range(count)]
    is_call = [number == NUMBER[TimeClass.COMMUNICATION] for number in numbers]
    arrival, start, end = (np.array([one[at] for one in times], dtype=np.int64) for at in range(3))
    return StepWindow(
        length,
        np.array(numbers, dtype=np.int8),
        np.array([call and draw(st.booleans()) for call in is_call], dtype=bool),
        np.where(is_call, arrival, start) if count else arrival,
        start,
        end,
        np.array([draw(st.integers(0, length)) for _ in range(count)], dtype=np.int64),
        following_ready=draw(st.integers(0, length)),
    )


@given(windows())
def test_classes_add_up_to_the_step(window: StepWindow) -> None:
    part = break_down_step(window)
    assert sum(part.ns) == window.length
    assert min(part.ns) >= 0
    assert 0 <= part.hidden_ns <= part.communication_ns
    assert part.communication_ns - part.hidden_ns == part.ns[NUMBER[TimeClass.COMMUNICATION]]


@given(windows())
def test_every_moment_has_the_first_class_that_runs_then(window: StepWindow) -> None:
    """Moment by moment, as the definition has it."""
    expected = [0] * len(CLASSES)
    for moment in range(window.length):
        running = window.number[(window.start <= moment) & (moment < window.end)]
        waiting = (window.arrival <= moment) & (moment < window.start)
        if len(running):
            expected[int(running.min())] += 1
        elif waiting.any():
            kind = TimeClass.BUBBLE if window.p2p[waiting].any() else TimeClass.WAITING
            expected[NUMBER[kind]] += 1
    assert list(break_down_step(window).ns[: NUMBER[TimeClass.SLOWED]]) == expected[: NUMBER[TimeClass.SLOWED]]


@pytest.mark.parametrize("ranks", [1, 3])
def test_means_are_rounded_without_loss(tmp_path: Path, ranks: int) -> None:
    writers = [TrainingWriter(number) for number in range(ranks)]
    for writer in writers:
        writer.train(steps=4, layers=3)
    breakdown = breakdown_of(timeline_of(tmp_path, writers))
    count = len(breakdown.measured)
    assert (
        breakdown.mean_ns.sum(axis=1) == breakdown.length_ns[:, list(breakdown.measured)].sum(axis=1) // count
    ).all()
