"""Any job: the replay, which takes ranks and kernels together where it can, against the definition of the clock word by
word; and what holds for all timelines."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from helpers.clock_reference import Reference
from helpers.timeline_text import ends, text_of
from helpers.trace_writer import FROM_GRAPH, GROUPED, TraceWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.replay.null_model import NullDurations, NullNetwork, null_settings
from maya.replay.run_settings import HostCosts
from maya.replay.simulate import simulate
from maya.trace import RecordKind, read

WORK_NS, NETWORK_NS = 50_000, 130_001
LARGE = 2 << 20  # elements of 4 bytes: more than NCCL's buffer holds
STREAMS = st.integers(0, 4)  # 3 is a blocking one
EVENTS = st.integers(1, 4)


@dataclass(frozen=True)
class Step:
    """Something that all ranks do, one of them, or a group of them."""

    what: str
    who: int  # -1: all
    stream: int
    other: int
    event: int
    ops: int
    thread: int


STEPS = st.lists(
    st.builds(
        Step,
        what=st.sampled_from(
            [
                *("kernel",) * 5,
                *("record", "wait") * 3,
                *("collective", "pair", "overlap", "swapped") * 2,
                *("send", "exchange", "copy", "host function", "graph", "delay"),
                *("stream", "event", "device"),
            ]
        ),
        who=st.integers(-3, 5),
        stream=STREAMS,
        other=st.integers(0, 5),
        event=EVENTS,
        ops=st.integers(0, 3),
        thread=st.sampled_from([1, 1, 2, 3]),
    ),
    max_size=50,
)
COSTS = st.builds(
    HostCosts,
    op=st.sampled_from([0, 4_000]),
    latency=st.sampled_from([0, 3_000]),
    wake=st.sampled_from([0, 5_500]),
    clock_read=st.just(0),
    calls=st.sampled_from([{}, {RecordKind.KERNEL: 7_000, RecordKind.COLLECTIVE: 11_000, RecordKind.SYNCHRONIZE: 900}]),
    overlap=st.sampled_from([0, 121]),
)


def write_job(world: int, steps: Sequence[Step]) -> list[TraceWriter]:
    """Ranks that come to their collectives in the same order: such a job never stands still."""
    ranks = [TraceWriter(number) for number in range(world)]
    for rank in ranks:
        rank.create_stream(3, blocking=True)
        rank.thread(2, "pt_autograd_0")
        rank.thread(3, "loader")
        rank.join(1, range(world))
        rank.join(2, [number for number in range(world) if number % 2 == rank.rank % 2], instance=1)
    for step in steps:
        chosen = ranks if step.who < 0 else [ranks[step.who % world]]
        if step.what in ("collective", "pair"):
            for rank in ranks:
                if step.what == "collective":
                    rank.collective(1 + step.event % 2, stream=step.stream, ops=step.ops, thread=step.thread)
                elif rank.rank % 2 == step.who % 2:
                    rank.collective(2, stream=step.stream, thread=step.thread)
        elif step.what in ("send", "exchange"):
            write_messages(ranks, step)
        elif step.what == "swapped":
            for rank in ranks:  # on two streams, so that their order on the host does not matter
                for number in (1, 2) if (rank.rank + step.who) % 2 else (2, 1):
                    rank.collective(number, stream=number, thread=step.thread)
        elif step.what == "overlap":
            for rank in ranks:
                rank.collective(1, stream=step.stream)
            for rank in chosen:
                for _ in range(4):
                    rank.kernel("beside", step.other, ops=step.ops)
                rank.after(step.other, step.stream, step.event)
        else:
            for rank in chosen:
                write_step(rank, step)
    return ranks


def write_messages(ranks: Sequence[TraceWriter], step: Step) -> None:
    one, other = ranks[step.who % len(ranks)], ranks[step.other % len(ranks)]
    count = LARGE if step.event == 1 else 1024
    if one is other:
        return
    one.send(1, other.rank, count, stream=step.stream)
    if step.what == "exchange":
        if step.ops == 3:
            one.record(step.event, step.stream)  # amid the group
        one.receive(1, other.rank, count, stream=step.stream, flags=GROUPED)
        other.send(1, one.rank, count, stream=step.other)
        other.receive(1, one.rank, count, stream=step.other, flags=GROUPED)
    else:
        other.receive(1, one.rank, count, stream=step.other)


def write_step(rank: TraceWriter, step: Step) -> None:
    fields = {"ops": step.ops, "thread": step.thread}
    if step.what == "kernel":
        rank.kernel(f"k{step.event}", step.stream, **fields)
    elif step.what == "graph":
        rank.kernel("in a graph", step.stream, flags=FROM_GRAPH)
    elif step.what == "copy":
        rank.copy("DtoD", 1 << step.event, step.stream, **fields)
    elif step.what == "host function":
        rank.add(RecordKind.HOST_FUNCTION, stream=step.stream, **fields)
    elif step.what == "delay":
        rank.add(RecordKind.HOST_DELAY, value=step.event * 30_000, thread=step.thread)
    elif step.what == "record":
        rank.record(step.event, step.stream, **fields)
    elif step.what == "wait":
        rank.wait(step.event, step.stream, **fields)
    else:
        rank.synchronise(step.what, step.stream, step.event, **fields)


@contextmanager
def folder_of(ranks: Sequence[TraceWriter]) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="maya-timeline-"))
    try:
        for rank in ranks:
            rank.save(folder)
        yield folder
    finally:
        shutil.rmtree(folder)


@settings(max_examples=60, deadline=None)
@given(world=st.integers(1, 6), steps=STEPS, costs=COSTS)
def test_the_replay_agrees_with_the_reference(world: int, steps: list[Step], costs: HostCosts) -> None:
    with folder_of(write_job(world, steps)) as folder:
        timeline = simulate(
            folder,
            null_settings(world, costs),
            durations=NullDurations(WORK_NS),
            network=NullNetwork(NETWORK_NS),
            detailed=range(world),
        )
        traces = {rank: read(folder / f"rank{rank}.trace") for rank in range(world)}
        expected = Reference(traces, costs, WORK_NS, NETWORK_NS).run()
    assert not timeline.problems
    for part in timeline.groups:
        for column, rank in enumerate(part.ranks.tolist()):
            times = zip(part.arrival_ns[:, column], part.start_ns[:, column], part.end_ns[:, column], strict=True)
            found = {int(at): tuple(map(int, row)) for at, row in zip(part.rank_class.records, times, strict=True)}
            assert found == expected[rank].rows
            assert int(timeline.host_end_ns[rank]) == expected[rank].host[0]
            assert timeline.details[rank].host_ns.tolist() == expected[rank].cursors


@settings(max_examples=20, deadline=None)
@given(world=st.integers(2, 6), steps=STEPS, costs=COSTS, slow=st.integers(0, 5), factor=st.integers(1000, 5000))
def test_a_straggler_never_makes_a_job_faster_and_replays_are_deterministic(
    world: int, steps: list[Step], costs: HostCosts, slow: int, factor: int
) -> None:
    costs = HostCosts(**{**vars(costs), "overlap": 0})  # a rank that comes late may overlap less
    with folder_of(write_job(world, steps)) as folder:

        def run(slow_ranks: dict[int, int] | None = None) -> str:
            timeline = simulate(
                folder,
                null_settings(world, costs),
                durations=NullDurations(WORK_NS),
                network=NullNetwork(NETWORK_NS),
                slow_ranks=slow_ranks,
            )
            all_ends.append(ends(timeline))
            return text_of(timeline)

        all_ends: list[Sequence[int]] = []
        assert run() == run() == run({slow: 1000})
        run({slow % world: factor})
        for before, after in zip(all_ends[0], all_ends[-1], strict=True):
            assert after >= before


@settings(max_examples=15, deadline=None)
@given(world=st.integers(2, 6), steps=STEPS, costs=COSTS)
def test_the_order_in_which_files_were_written_does_not_matter(world: int, steps: list[Step], costs: HostCosts) -> None:
    ranks = write_job(world, steps)
    texts = []
    for order in (ranks, ranks[::-1]):
        with folder_of(order) as folder:
            timeline = simulate(
                folder, null_settings(world, costs), durations=NullDurations(WORK_NS), network=NullNetwork(NETWORK_NS)
            )
        texts.append(text_of(timeline))
    assert texts[0] == texts[1]
