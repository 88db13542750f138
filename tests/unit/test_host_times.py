"""Measured host times: their medians over steps, and the rank classes they hold for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.trace_writer import TraceWriter

from maya.replay.null_model import NullDurations, NullNetwork, null_settings
from maya.replay.run_settings import NO_COSTS, HostCosts, SettingsError
from maya.replay.simulate import simulate
from maya.replay.timeline import Timeline
from maya.trace import RecordKind, read


def replay(folder: Path, ranks: Sequence[TraceWriter], host: HostCosts = NO_COSTS) -> Timeline:
    for rank in ranks:
        rank.save(folder)
    settings = dataclasses.replace(null_settings(len(ranks), host), host_time="measured")
    return simulate(folder, settings, durations=NullDurations(ns=0), network=NullNetwork())


def between_launches(timeline: Timeline, rank: int = 0) -> list[int]:
    [launched] = [one.launched_ns[:, 0] for one in timeline.groups if rank in one.ranks]
    found: list[int] = np.diff(launched, prepend=0).tolist()
    return found


def steps(rank: int, *times_of_steps: Sequence[int]) -> TraceWriter:
    """Steps of as many kernels, all the same, as they have times; then the optimizer."""
    trace = TraceWriter(rank, per_block=4, measured=True)
    for times in times_of_steps:
        for ns in times:
            trace.kernel("layer", host_time=ns, ops=3)
        trace.kernel("optimizer", host_time=10)
        trace.annotation("Optimizer.step#SGD.step")
    return trace


# ---- the medians ----


def test_steps_take_the_median_without_warm_up_and_outliers(tmp_path: Path) -> None:
    rest = (20,) * 10
    timeline = replay(tmp_path, [steps(0, (*rest, 9000), (*rest, 100), (*rest, 7000), (*rest, 120))])
    assert between_launches(timeline) == [*rest, 120, 10] * 4


def test_ranks_of_one_class_have_one_median(tmp_path: Path) -> None:
    timeline = replay(tmp_path, [steps(rank, (50, 100 + rank)) for rank in range(3)])
    assert [one.ranks.tolist() for one in timeline.groups] == [[0, 1, 2]]
    assert between_launches(timeline) == [50, 101, 10]


def test_layers_that_look_the_same_keep_their_own_times(tmp_path: Path) -> None:
    times = tuple(range(100, 2100, 100))  # more of them than tell a place
    timeline = replay(tmp_path, [steps(0, times, times, times)])
    assert between_launches(timeline) == [*times, 10] * 3


def test_an_extra_call_in_one_step_leaves_the_others_alone(tmp_path: Path) -> None:
    trace = steps(0, *[(100,) * 20] * 3)
    trace.copy("DtoH", 4, host_time=5000)
    later = steps(0, *[(100,) * 20] * 6)
    trace._records += later._records
    found = between_launches(replay(tmp_path, [trace]))
    assert found.count(5000) == 1
    assert found.count(100) == 20 * 9


def test_measured_time_is_scaled_and_added_to_the_costs_of_calls(tmp_path: Path) -> None:
    host = HostCosts(op=10**6, latency=0, wake=0, clock_read=0, calls={RecordKind.KERNEL: 7}, scale=1500)
    assert between_launches(replay(tmp_path, [steps(0, (100,), (100,))], host)) == [157, 22] * 2


def test_threads_have_their_own_times_and_allocations_pass_theirs_on(tmp_path: Path) -> None:
    trace = TraceWriter(0, measured=True)
    trace.kernel("a", host_time=100)
    trace.add(RecordKind.MALLOC, {"bytes": 1}, host_time=40)
    trace.thread(2, "loader")
    trace.kernel("beside", stream=3, thread=2, host_time=5000)
    trace.kernel("b", host_time=60)
    trace.thread(3, "pt_autograd_0")
    trace.kernel("backward", thread=3, host_time=1000)
    timeline = replay(tmp_path, [trace])
    assert timeline.groups[0].launched_ns[:, 0].tolist() == [100, 100 + 5000, 200, 1200]


def test_a_trace_without_measured_times_is_refused(tmp_path: Path) -> None:
    trace = TraceWriter(0)
    trace.kernel("a")
    with pytest.raises(SettingsError, match=r"rank0\.trace holds no CPU times; run the job with --host-time measured"):
        replay(tmp_path, [trace])


def test_a_truncated_trace_has_the_times_of_its_records(tmp_path: Path) -> None:
    path = steps(0, (100,) * 20).save(tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    trace = read(path)
    assert not trace.complete
    assert trace.host_times is not None
    assert trace.host_times.tolist() == [100] * len(trace.records)
