"""Timelines of small traces, with a cost model that shows nothing but the order of events."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.timeline_text import ends, text_of
from helpers.trace_writer import GROUPED, TraceWriter

from maya.replay.null_model import MILLISECOND, NullDurations, NullNetwork, null_settings
from maya.replay.recording import read_recording
from maya.replay.run_settings import NO_COSTS, HostCosts
from maya.replay.simulate import simulate
from maya.replay.timeline import Timeline
from maya.trace import RecordKind

GOLDEN = Path(__file__).parent / "golden"
MS = MILLISECOND
COMMUNICATION = 7  # a stream


def replay(
    folder: Path, ranks: Sequence[TraceWriter], host: HostCosts = NO_COSTS, network_ns: int = 0, **options: Any
) -> Timeline:
    """The timeline of these ranks: every kernel 1 ms."""
    for rank in ranks:
        rank.save(folder)
    settings = null_settings(len(ranks), host)
    return simulate(folder, settings, durations=NullDurations(), network=NullNetwork(network_ns), **options)


def check_golden(name: str, timeline: Timeline) -> None:
    """Compare with the golden text. To accept a change, delete the file and run the test once."""
    path = GOLDEN / name
    text = text_of(timeline)
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path} did not exist; it is written now: look at it, then run this again")
    assert text == path.read_text(encoding="utf-8")


# ---- golden timelines ----


def test_two_streams_and_an_event(tmp_path: Path) -> None:
    rank = TraceWriter(0)
    rank.kernel("first")
    rank.kernel("beside", stream=3)
    rank.kernel("second")
    rank.record(1, stream=0)
    rank.kernel("third")
    rank.wait(1, stream=3)
    rank.kernel("after second", stream=3)
    rank.synchronise("stream", stream=3)
    rank.kernel("launched after the host had waited", stream=4)
    check_golden("two_streams.txt", replay(tmp_path, [rank]))


def ddp_step(rank: TraceWriter, kernels: int, events: int) -> None:
    """Forward, then backward with an all-reduce for every two kernels of it, then the optimizer."""
    for layer in range(kernels):
        rank.kernel(f"forward {layer}")
    for layer in reversed(range(kernels)):
        rank.kernel(f"backward {layer}")
        if layer % 2 == 0:
            rank.after(COMMUNICATION, 0, event=events + layer)
            rank.collective(1, stream=COMMUNICATION)
    rank.after(0, COMMUNICATION, event=events + kernels)
    rank.kernel("optimizer")


def test_ddp_hides_all_but_the_last_all_reduce(tmp_path: Path) -> None:
    ranks = [TraceWriter(number) for number in range(2)]
    for rank in ranks:
        rank.join(1, range(2))
        ddp_step(rank, kernels=4, events=10)
    check_golden("ddp_overlap.txt", replay(tmp_path, ranks, network_ns=1500 * 1000))


def one_f_one_b(rank: TraceWriter, stages: int, batches: int) -> None:
    """A stage of a pipeline as torch.distributed.pipelining schedules it: messages on a stream of their own, backward
    takes twice as long as forward."""
    stage, events = rank.rank, iter(range(1, 10_000))
    warm_up = min(batches, stages - stage - 1)

    def receive(source: int) -> None:
        if 0 <= source < stages:
            rank.after(COMMUNICATION, 0, next(events))
            rank.receive(1, source, stream=COMMUNICATION)
            rank.after(0, COMMUNICATION, next(events))

    def send(target: int) -> None:
        if 0 <= target < stages:
            rank.after(COMMUNICATION, 0, next(events))
            rank.send(1, target, stream=COMMUNICATION)

    def forward(batch: int) -> None:
        receive(stage - 1)
        rank.kernel(f"forward {batch}")
        send(stage + 1)

    def backward(batch: int) -> None:
        receive(stage + 1)
        rank.kernel(f"backward {batch} of inputs")
        rank.kernel(f"backward {batch} of weights")
        send(stage - 1)

    for batch in range(warm_up):
        forward(batch)
    for batch in range(warm_up, batches):
        forward(batch)
        backward(batch - warm_up)
    for batch in range(batches - warm_up, batches):
        backward(batch)


def test_pipeline_of_four_stages(tmp_path: Path) -> None:
    ranks = [TraceWriter(number) for number in range(4)]
    for rank in ranks:
        rank.join(1, range(4))
        one_f_one_b(rank, stages=4, batches=6)
    timeline = replay(tmp_path, ranks)
    assert ends(timeline)[0] == (6 + 3) * 3 * MS  # as the formula has it: (batches + stages - 1) * (1 + 2) ms
    check_golden("pipeline.txt", timeline)


def test_a_straggler_makes_all_wait(tmp_path: Path) -> None:
    ranks = [TraceWriter(number) for number in range(3)]
    for rank in ranks:
        rank.join(1, range(3))
        for _ in range(2):
            rank.kernel("compute")
            rank.collective(1, stream=0)
    timeline = replay(tmp_path, ranks, slow_ranks={1: 1300})
    assert [part.ranks.tolist() for part in timeline.groups] == [[0, 2], [1]]
    check_golden("straggler.txt", timeline)


# ---- the host ----

COSTS = HostCosts(
    op=10_000,
    latency=3_000,
    wake=5_000,
    clock_read=0,
    calls={RecordKind.KERNEL: 2_000, RecordKind.SYNCHRONIZE: 1_000, RecordKind.COLLECTIVE: 4_000},
)


def test_host_pays_for_ops_and_calls_and_wakes_after_the_device(tmp_path: Path) -> None:
    rank = TraceWriter(0)
    rank.kernel("a", ops=2)  # launched at 22 us
    rank.synchronise("stream")  # called at 23 us; a ends at 25 us + 1 ms
    rank.kernel("b", ops=1)
    timeline = replay(tmp_path, [rank], COSTS, detailed=[0])
    assert timeline.details[0].host_ns.tolist() == [22_000, 1_030_000, 1_042_000]
    (part,) = timeline.groups
    assert part.launched_ns[:, 0].tolist() == [22_000, 1_042_000]
    assert part.start_ns[:, 0].tolist() == [25_000, 1_045_000]
    assert ends(timeline) == [2_045_000]


def test_kernels_of_a_graph_cost_the_host_nothing(tmp_path: Path) -> None:
    rank = TraceWriter(0)
    rank.kernel("a", flags=1)
    rank.kernel("b", flags=1)
    assert int(replay(tmp_path, [rank], COSTS).host_end_ns[0]) == 0


def test_autograd_goes_on_where_the_main_thread_waits_and_other_threads_have_their_own_time(tmp_path: Path) -> None:
    rank = TraceWriter(0)
    rank.kernel("forward", ops=1)
    rank.thread(2, "pt_autograd_0")
    rank.kernel("backward", ops=1, thread=2)
    rank.thread(3, "loader")
    rank.kernel("load", stream=5, ops=5, thread=3)
    rank.kernel("optimizer", ops=1)
    timeline = replay(tmp_path, [rank], COSTS)
    assert timeline.groups[0].launched_ns[:, 0].tolist() == [12_000, 24_000, 24_000 + 52_000, 36_000]


def test_a_sleep_takes_its_time(tmp_path: Path) -> None:
    rank = TraceWriter(0)
    rank.add(RecordKind.HOST_DELAY, value=7 * MS)
    rank.kernel("a")
    assert ends(replay(tmp_path, [rank])) == [8 * MS]


def test_default_stream_and_blocking_streams_wait_for_each_other(tmp_path: Path) -> None:
    rank = TraceWriter(0)
    rank.create_stream(1, blocking=True)
    rank.create_stream(2)
    rank.kernel("blocking", stream=1)
    rank.kernel("free", stream=2)
    rank.kernel("default", stream=0)
    rank.kernel("blocking again", stream=1)
    timeline = replay(tmp_path, [rank])
    assert timeline.groups[0].start_ns[:, 0].tolist() == [0, 0, 1 * MS, 2 * MS]


def test_compute_beside_a_collective_is_slower(tmp_path: Path) -> None:
    rank = TraceWriter(0)
    rank.join(1, [0])
    rank.collective(1, stream=COMMUNICATION)  # 2.5 ms
    for _ in range(4):
        rank.kernel("compute")
    rank.after(0, COMMUNICATION, event=1)
    rank.kernel("next")
    slower = dataclasses.replace(NO_COSTS, overlap=200)
    timeline = replay(tmp_path, [rank], slower, network_ns=2_500_000)
    assert int(timeline.groups[0].start_ns[-1, 0]) == 4 * MS + 500_000


# ---- messages ----

LARGE = 2 << 20  # elements of 4 bytes: more than NCCL's buffer holds


@pytest.mark.parametrize(("count", "sent"), [(1024, 0), (LARGE, 2 * MS)])
def test_only_large_sends_wait_for_their_receive(tmp_path: Path, count: int, sent: int) -> None:
    one, other = ranks = [TraceWriter(0), TraceWriter(1)]
    for rank in ranks:
        rank.join(1, range(2))
    one.send(1, 1, count, stream=COMMUNICATION)
    other.kernel("busy", stream=COMMUNICATION)
    other.kernel("busy", stream=COMMUNICATION)
    other.receive(1, 0, count, stream=COMMUNICATION)
    assert ends(replay(tmp_path, ranks)) == [sent, 2 * MS]


def test_sends_of_a_group_start_together(tmp_path: Path) -> None:
    ranks = [TraceWriter(number) for number in range(2)]
    for rank in ranks:
        rank.join(1, range(2))
        rank.send(1, 1 - rank.rank, LARGE, stream=COMMUNICATION)
        rank.receive(1, 1 - rank.rank, LARGE, stream=COMMUNICATION, flags=GROUPED)
    timeline = replay(tmp_path, ranks, network_ns=5 * MS)
    assert ends(timeline) == [5 * MS, 5 * MS]
    assert not timeline.problems


def test_ranks_that_send_to_one_root_are_one_class(tmp_path: Path) -> None:
    """The root receives from one after the other; each of them goes on when its own send has ended."""
    ranks = [TraceWriter(number) for number in range(4)]
    for rank in ranks:
        rank.join(1, range(4))
    for rank in ranks[1:]:
        ranks[0].kernel("busy", stream=COMMUNICATION)
        ranks[0].receive(1, rank.rank, LARGE, stream=COMMUNICATION)
        rank.send(1, 0, LARGE, stream=COMMUNICATION)
        rank.kernel("after", stream=COMMUNICATION)
    timeline = replay(tmp_path, ranks)
    assert len(read_recording(tmp_path).rank_classes) == 2
    assert ends(timeline) == [3 * MS, 2 * MS, 3 * MS, 4 * MS]
    assert not timeline.problems


def test_the_ranks_of_an_all_to_all_of_sends_are_one_class(tmp_path: Path) -> None:
    ranks = [TraceWriter(number) for number in range(4)]
    for rank in ranks:
        rank.join(1, range(rank.rank // 2 * 2, rank.rank // 2 * 2 + 2))
        for peer in range(rank.rank // 2 * 2, rank.rank // 2 * 2 + 2):
            rank.send(1, peer, LARGE, stream=COMMUNICATION, flags=GROUPED)
            rank.receive(1, peer, LARGE, stream=COMMUNICATION, flags=GROUPED)
    timeline = replay(tmp_path, ranks, network_ns=5 * MS)
    assert [part.ranks.tolist() for part in timeline.groups] == [[0, 1, 2, 3]]
    assert ends(timeline) == [5 * MS] * 4
    assert not timeline.problems


# ---- rank classes ----


def test_ranks_that_do_the_same_are_one_class(tmp_path: Path) -> None:
    ranks = [TraceWriter(number) for number in range(8)]
    for rank in ranks:
        node = rank.rank // 4 * 4
        rank.join(1, range(node, node + 4))
        rank.kernel("a", host_ns=rank.rank * 12345)
        rank.add(RecordKind.MALLOC, {"bytes": 512}, value=rank.rank << 30)
        rank.record(rank.rank + 1, stream=0)  # events are numbered as they come
        rank.wait(rank.rank + 1, stream=COMMUNICATION)
        rank.collective(1, stream=COMMUNICATION)
        if rank.rank == 0:
            rank.copy("DtoH", 4)
    timeline = replay(tmp_path, ranks)
    assert [part.ranks.tolist() for part in timeline.groups] == [[0], [1, 2, 3, 4, 5, 6, 7]]
    assert timeline.groups[1].communicators[3] == {1: (4, 5, 6, 7)}


def test_ranks_of_one_class_part_when_their_times_differ(tmp_path: Path) -> None:
    ranks = [TraceWriter(number) for number in range(8)]
    for rank in ranks:
        node = rank.rank // 4 * 4
        rank.join(1, range(node, node + 4))
        rank.kernel("a")
        rank.collective(1, stream=0)
        rank.kernel("b")
    timeline = replay(tmp_path, ranks, slow_ranks={6: 2000})
    assert [part.ranks.tolist() for part in timeline.groups] == [[0, 1, 2, 3], [4, 5, 7], [6]]
    assert len(timeline.rank_classes) == 1
    assert ends(timeline) == [2 * MS] * 4 + [3 * MS, 3 * MS, 4 * MS, 3 * MS]


def test_ranks_of_one_class_need_not_wait_for_each_other(tmp_path: Path) -> None:
    """A chain: every rank first meets the rank after it, then the one before it, all on one stream."""
    last = 5
    ranks = [TraceWriter(number) for number in range(last + 1)]
    for rank in ranks:
        if rank.rank < last:
            rank.join(1, [rank.rank, rank.rank + 1])
            rank.collective(1, stream=0)
        rank.kernel("a")
        if rank.rank > 0:
            rank.join(2, [rank.rank - 1, rank.rank])
            rank.collective(2, stream=0)
    timeline = replay(tmp_path, ranks)
    assert not timeline.problems
    assert ends(timeline) == [(last + 1 - rank) * MS for rank in range(last + 1)]


# ---- what is not as it should be ----


def test_an_incomplete_collective_is_named_and_the_rest_is_replayed(tmp_path: Path) -> None:
    ranks = [TraceWriter(number) for number in range(3)]
    for rank in ranks:
        rank.join(1, range(3))
        rank.kernel("a")
        if rank.rank != 1:
            rank.collective(1, stream=0)
            rank.kernel("b")
    timeline = replay(tmp_path, ranks)
    assert ends(timeline) == [1 * MS] * 3
    (problem,) = timeline.problems
    assert "ranks 0, 2: ncclAllReduce number 0 of ranks 0-2 never completed" in problem


def test_a_truncated_trace_is_replayed_to_its_end(tmp_path: Path) -> None:
    rank = TraceWriter(0)
    rank.kernel("a")
    rank.save(tmp_path, complete=False)
    timeline = simulate(tmp_path, null_settings(1), durations=NullDurations(), network=NullNetwork())
    assert ends(timeline) == [1 * MS]
    assert "rank 0 is cut short" in timeline.problems[0]


def test_a_trace_that_cannot_be_read_is_named_and_left_out(tmp_path: Path) -> None:
    rank = TraceWriter(0)
    rank.kernel("a")
    rank.save(tmp_path)
    (tmp_path / "rank1.trace").write_bytes(b"")
    timeline = simulate(tmp_path, null_settings(2), durations=NullDurations(), network=NullNetwork())
    assert ends(timeline) == [1 * MS, 0]
    (problem,) = timeline.problems
    assert "rank 1 is left out" in problem
    assert "is empty" in problem


def test_missing_traces_and_traces_of_children_are_ignored(tmp_path: Path) -> None:
    rank = TraceWriter(1)
    rank.kernel("a")
    rank.save(tmp_path)
    rank.save(tmp_path, name="rank1.1234.trace")
    timeline = simulate(tmp_path, null_settings(2), durations=NullDurations(), network=NullNetwork())
    assert ends(timeline) == [0, 1 * MS]
    assert not timeline.problems


def test_several_reading_processes_give_the_same_timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [TraceWriter(number) for number in range(5)]
    for rank in ranks:
        rank.join(1, range(5))
        rank.kernel("a" if rank.rank != 3 else "b")
        rank.collective(1, stream=0)
    alone = text_of(replay(tmp_path, ranks))
    monkeypatch.setattr("maya.replay.trace_digests._WORTH_KEEPING", 0)
    assert text_of(replay(tmp_path, ranks)) == alone
    assert (tmp_path / "trace_digests.json").is_file()
    assert text_of(simulate(tmp_path, null_settings(5), durations=NullDurations(), network=NullNetwork())) == alone
    ranks[4].kernel("c")  # what is kept is of another file now
    assert ends(replay(tmp_path, ranks)) == [1 * MS] * 4 + [2 * MS]


def test_ranks_that_wait_for_their_own_device_are_of_one_class(tmp_path: Path) -> None:
    ranks = [TraceWriter(number) for number in range(3)]
    for rank in ranks:
        rank.kernel("a")
        rank.record(1, stream=0)
        rank.synchronise("device", event=rank.rank)  # the number of the device, here also that of an event
    timeline = replay(tmp_path, ranks)
    assert [list(each.ranks) for each in timeline.rank_classes] == [[0, 1, 2]]


def test_a_recording_is_replayed_on_other_hardware(tmp_path: Path) -> None:
    rank = TraceWriter(0)
    matrix = {"shape": [4096, 4096], "dtype": "bfloat16", "strides": [4096, 1]}
    sizes = {"m": 4096, "n": 4096, "k": 4096, "batch": 1, "a": "bf16", "b": "bf16", "c": "bf16", "compute": "fp32"}
    for _ in range(3):
        rank.add(RecordKind.LIBRARY, {"call": "cublasGemmEx", **sizes}, op=1)
    rank.op("aten::mm", [matrix, matrix])
    rank.save(tmp_path)
    settings = null_settings(1).with_host()
    settings.save(tmp_path)
    recording = read_recording(tmp_path)
    before = simulate(recording)
    assert text_of(simulate(tmp_path)) == text_of(before)
    faster = simulate(recording, recording.settings.changed(gpu="b200"))
    assert ends(faster)[0] < ends(before)[0]
    assert text_of(simulate(recording)) == text_of(before)


def test_traces_of_another_job_are_refused(tmp_path: Path) -> None:
    TraceWriter(8).save(tmp_path)
    with pytest.raises(ValueError, match="has a trace of rank 8, but the job has 8 ranks"):
        simulate(tmp_path, null_settings(8), durations=NullDurations(), network=NullNetwork())


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no traces"):
        simulate(tmp_path, null_settings(2), durations=NullDurations(), network=NullNetwork())


def test_an_empty_trace_takes_no_time(tmp_path: Path) -> None:
    assert ends(replay(tmp_path, [TraceWriter(0)])) == [0]


# ---- a network with links ----


@pytest.fixture
def two_pairs() -> Callable[[], list[TraceWriter]]:
    """Two groups of two ranks, in different nodes of 8 GPUs, both across the same pair of nodes."""

    def make() -> list[TraceWriter]:
        ranks = [TraceWriter(number) for number in range(16)]
        for rank in ranks:
            if rank.rank % 8 < 2:
                rank.join(1, [rank.rank % 8, rank.rank % 8 + 8])
                rank.collective(1, count=1 << 24, stream=0)
            rank.kernel("a")
        return ranks

    return make


def test_flows_that_share_no_link_take_the_analytic_time(
    tmp_path: Path, two_pairs: Callable[[], list[TraceWriter]]
) -> None:
    for rank in two_pairs():
        rank.save(tmp_path)
    settings = null_settings(16)
    alone = simulate(tmp_path, settings, durations=NullDurations())
    flow = simulate(tmp_path, dataclasses.replace(settings, network="flow"), durations=NullDurations())
    assert ends(alone) == ends(flow)
    assert text_of(alone) == text_of(flow)


def test_flows_that_share_links_take_longer(tmp_path: Path, two_pairs: Callable[[], list[TraceWriter]]) -> None:
    for rank in two_pairs():
        rank.save(tmp_path)
    # One NIC for all GPUs of a node.
    settings = dataclasses.replace(null_settings(16), cluster="ethernet-25g", network="flow")
    flow = simulate(tmp_path, settings, durations=NullDurations())
    alone = simulate(tmp_path, dataclasses.replace(settings, network="analytic"), durations=NullDurations())
    assert ends(flow)[0] > 1.5 * ends(alone)[0]
    assert ends(flow)[7] == ends(alone)[7]
    again = simulate(tmp_path, settings, durations=NullDurations())
    assert text_of(again) == text_of(flow)


def test_ranks_of_one_class_do_not_wait_for_each_other_on_shared_links(tmp_path: Path) -> None:
    """Pairs within a node are done earlier than pairs across nodes, and then use the network again."""
    pairs = {0: [0, 1], 1: [0, 1], 2: [2, 10], 10: [2, 10]}
    for number in range(16):
        rank = TraceWriter(number)
        if number in pairs:
            rank.join(1, pairs[number])
            for _ in range(3):
                rank.collective(1, count=1 << 22, stream=0)
                rank.kernel("a")
        rank.save(tmp_path)
    settings = null_settings(16)
    flow = simulate(tmp_path, dataclasses.replace(settings, network="flow"), durations=NullDurations(1000))
    assert text_of(flow) == text_of(simulate(tmp_path, settings, durations=NullDurations(1000)))
    assert ends(flow)[0] < ends(flow)[2]
