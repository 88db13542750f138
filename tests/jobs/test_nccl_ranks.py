"""NCCL's operations among several ranks: small programs, one process each, on the fake libraries, and a real
coordinator. Data arrives in the order of streams, and contents that do not travel are known to be unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.checks import Checks
from helpers.nccl_ranks import RankOutcomes, Ranks, ranks_fixture, ranks_once_fixture, run_checks  # noqa: F401

from maya.trace import RecordKind, read

OPERATIONS = Checks(
    """
    world, other = Communicator.join(), Communicator.join("other")
    streams = Stream(), Stream()
    everyone = [np.arange(6, dtype=np.int64) * 10 + rank for rank in range(WORLD)]
    mine, two = everyone[RANK], size_t(2)
    REDUCTIONS = ((SUM, np.sum), (PROD, np.prod), (MAX, np.max), (MIN, np.min))

    def result(name, count, *middle, size, sent=mine):
        received = Buffer(count=size, dtype=np.int64)
        world.call(name, Buffer(sent).address, received.address, size_t(count), INT64, *middle)
        return received.read().tolist()

    def all_reduce_combines_the_contributions():
        for op, numpy_op in REDUCTIONS:
            assert result("AllReduce", 6, op, size=6) == numpy_op(everyone, axis=0).tolist()

    def reduce_scatter_gives_each_rank_its_part():
        for op, numpy_op in REDUCTIONS:
            expected = numpy_op(everyone, axis=0).tolist()
            assert result("ReduceScatter", 2, op, size=2) == expected[2 * RANK : 2 * RANK + 2]

    def reduce_gives_the_result_to_any_root():
        for op, numpy_op in REDUCTIONS:
            expected = numpy_op(everyone, axis=0).tolist()
            for root in range(WORLD):
                assert result("Reduce", 6, op, root, size=6) == (expected if RANK == root else [0] * 6)

    def all_gather_concatenates():
        assert result("AllGather", 6, size=18) == np.concatenate(everyone).tolist()

    def all_to_all_transposes_the_parts():
        parts = [each[2 * RANK : 2 * RANK + 2] for each in everyone]
        assert result("AlltoAll", 2, size=6) == np.concatenate(parts).tolist()

    def broadcast_sends_the_data_of_any_root():
        for root in range(WORLD):
            assert result("Broadcast", 6, root, size=6) == everyone[root].tolist()

    def gather_concatenates_at_any_root():
        for root in range(WORLD):
            gathered = np.concatenate(everyone).tolist() if RANK == root else [0] * 18
            assert result("Gather", 6, root, size=18) == gathered

    def scatter_deals_out_the_data_of_any_root():
        for root in range(WORLD):
            assert result("Scatter", 2, root, size=2) == everyone[root][2 * RANK : 2 * RANK + 2].tolist()

    def bcast_works_in_place():
        x = Buffer(mine)
        world.call("Bcast", x.address, size_t(6), INT64, 2)
        assert x.read().tolist() == everyone[2].tolist()

    def all_gather_works_in_place():  # the own part of the receive buffer is the send buffer
        x = Buffer(np.repeat(RANK, 6))
        world.call("AllGather", x.at(2 * RANK), x.address, two, INT64)
        assert x.read().tolist() == [0, 0, 1, 1, 2, 2]

    def reduce_scatter_works_in_place():
        x = Buffer(mine)
        world.call("ReduceScatter", x.address, x.at(2 * RANK), two, INT64, SUM)
        assert x.read()[2 * RANK :][:2].tolist() == np.sum(everyone, axis=0)[2 * RANK :][:2].tolist()

    def all_reduce_averages():
        x = Buffer(np.array([4.0, RANK]))
        world.all_reduce(x, op=AVG)
        assert x.read().tolist() == [4.0, 1.0]

    def a_collective_of_no_elements_needs_no_buffers():
        world.call("AllReduce", None, None, size_t(0), FP32, SUM)

    # ---- groups ----

    def sends_and_receives_form_a_ring():
        next_one, previous = (RANK + 1) % WORLD, (RANK - 1) % WORLD
        x = Buffer(count=6, dtype=np.int64)
        with group():
            world.send(Buffer(mine), next_one)
            world.receive(x, previous)
        assert x.read().tolist() == everyone[previous].tolist()

    def a_group_sends_to_all_ranks_and_to_itself():
        x = [Buffer(np.array([RANK, peer])) for peer in range(WORLD)]
        y = [Buffer(count=2, dtype=np.int64) for _ in range(WORLD)]
        with group():
            for peer in range(WORLD):
                world.receive(y[peer], peer, stream=streams[0])
            for peer in range(WORLD):
                world.send(x[peer], peer, stream=streams[0])
        streams[0].synchronize()
        assert [each.read().tolist() for each in y] == [[peer, RANK] for peer in range(WORLD)]

    def collectives_of_several_communicators_in_a_group_may_come_in_any_order():
        a, b, c = (Buffer(np.array([float(RANK + i)])) for i in range(3))
        with group():
            if RANK == 1:
                other.all_reduce(b, stream=streams[1])
                world.all_reduce(a, stream=streams[0])
            else:
                world.all_reduce(a, stream=streams[0])
                other.all_reduce(b, stream=streams[1])
            other.all_reduce(c, stream=streams[0])
        for stream in streams:
            stream.synchronize()
        assert [each.read()[0] for each in (a, b, c)] == [3.0, 6.0, 9.0]

    def sends_to_one_rank_keep_their_order():
        if RANK == 2:
            return
        first, second = Buffer(np.arange(4) + RANK), Buffer(np.arange(4) * 2 + RANK)
        one, two = Buffer(count=4, dtype=np.int64), Buffer(count=4, dtype=np.int64)
        with group():
            world.send(first, 1 - RANK)
            world.send(second, 1 - RANK)
            world.receive(one, 1 - RANK)
            world.receive(two, 1 - RANK)
        assert one.read().tolist() == (np.arange(4) + 1 - RANK).tolist()
        assert two.read().tolist() == (np.arange(4) * 2 + 1 - RANK).tolist()

    def a_rank_sends_to_itself_from_one_stream_to_another():
        x, y = Buffer(np.arange(3)), Buffer(count=3, dtype=np.int64)
        with group():
            world.send(x, RANK, stream=streams[0])
            world.receive(y, RANK, stream=streams[1])
        streams[1].synchronize()
        assert y.read().tolist() == [0, 1, 2]

    def a_refused_call_refuses_its_group_and_later_calls_still_match():
        a = Buffer(np.array([3.0]))
        check("ncclGroupStart")
        world.all_reduce(a)
        assert refusal(lambda: world.all_reduce(a, kind=99)) == INVALID_ARGUMENT
        assert nccl.ncclGroupEnd() == INVALID_ARGUMENT
        world.all_reduce(a)
        assert a.read()[0] == 9.0
    """
)


@pytest.fixture(scope="module")
def operations(ranks_once: Ranks) -> RankOutcomes:
    return run_checks(OPERATIONS, ranks_once, 3)


@pytest.mark.parametrize("check", OPERATIONS.names)
def test_operations(operations: RankOutcomes, check: str) -> None:
    operations.require(check)


def test_all_ranks_get_the_same_sum(ranks: Ranks) -> None:
    outputs = ranks(
        3,
        """
        world = Communicator.join()
        assert (world.rank, world.ranks) == (RANK, WORLD)
        x = Buffer(np.arange(5, dtype=np.float32) + RANK)
        world.all_reduce(x)
        print(x.read().tolist())
        world.destroy()
        """,
    )
    assert outputs == ["[3.0, 6.0, 9.0, 12.0, 15.0]\n"] * 3


STREAM_ORDER = Checks(
    """
    import pathlib, sys, time

    world, quick = Communicator.join(), Communicator.join("quick")
    held = Stream()

    def streams_behind_a_late_rank_wait_and_nothing_else_does():  # rank 0 posts long before rank 1 does
        signal = pathlib.Path(sys.argv[0]).with_name("go")
        free = Stream()
        x, y, z = Buffer(np.array([1.0])), Buffer(np.array([0.0])), Buffer(np.array([5.0]))
        if RANK == 1:
            while not signal.exists():
                time.sleep(0.01)
            quick.all_reduce(z, stream=free)  # another communicator, first here and second there
            world.all_reduce(x, stream=held)
            held.synchronize(), free.synchronize()
        else:
            before, after = Event(), Event()
            before.record(held)
            world.all_reduce(x, stream=held)
            after.record(held)
            checked("cudaMemcpyAsync", y.address, x.address, size_t(8), 3, held.handle)
            free.wait_for(after)
            quick.all_reduce(z, stream=free)
            try:
                assert before.is_complete() and not after.is_complete()
                assert not held.is_idle() and not free.is_idle()
                other = Stream()
                w = Buffer(np.array([3.0]))
                checked("cudaMemsetAsync", w.address, 0, size_t(8), other.handle)
                other.synchronize()
                assert w.read().tolist() == [0.0]
            finally:
                signal.touch()
            checked("cudaEventSynchronize", after.handle)
            held.synchronize(), free.synchronize()
            assert y.read().tolist() == [2.0]
        assert x.read().tolist() == [2.0] and z.read().tolist() == [10.0]

    def the_legacy_stream_waits_for_a_collective_on_a_blocking_stream():
        x, y = Buffer(np.array([2.0])), Buffer(np.array([0.0]))
        blocking = Stream(flags=0)
        gate = hold(blocking)
        world.all_reduce(x, stream=blocking)
        assert cuda.cudaStreamQuery(None) in (0, NOT_READY)
        checked("cudaMemcpyAsync", y.address, x.address, size_t(8), 3, None)
        waits = cuda.cudaStreamQuery(None) == NOT_READY
        gate.set()
        assert waits and y.read().tolist() == [4.0]

    def a_collective_sends_the_bytes_of_the_moment_its_stream_gets_there():
        x = Buffer(np.array([2.0]))
        gate = hold(held)
        checked("cudaMemsetAsync", x.address, 0, size_t(8), held.handle)
        world.all_reduce(x, stream=held)
        gate.set()
        held.synchronize()
        assert x.read().tolist() == [0.0]
    """
)


@pytest.fixture(scope="module")
def stream_order(ranks_once: Ranks) -> RankOutcomes:
    return run_checks(STREAM_ORDER, ranks_once, 2)


@pytest.mark.parametrize("check", STREAM_ORDER.names)
def test_stream_order(stream_order: RankOutcomes, check: str) -> None:
    stream_order.require(check)


def test_a_graph_posts_its_collectives_at_every_launch(ranks: Ranks, tmp_path: Path) -> None:
    ranks(
        2,
        """
        world = Communicator.join()
        x, y, z = Buffer(np.array([1.0])), Buffer(np.array([0.0])), Buffer(np.array([0.0]))
        stream, graph = Stream(), Graph()
        world.all_reduce(x, stream=stream)
        stream.synchronize()
        with graph.capture(stream):
            with group():
                world.send(x, 1 - RANK, stream=stream)
                world.receive(y, 1 - RANK, stream=stream)
            world.all_reduce(x, z, stream=stream)
            checked("cudaMemcpyAsync", x.address, z.address, size_t(8), 3, stream.handle)
        assert stream.is_idle()
        for expected in (4.0, 8.0, 16.0):
            graph.launch(stream)
        stream.synchronize()
        assert (x.read()[0], y.read()[0]) == (16.0, 8.0), (x.read(), y.read())
        world.all_reduce(x, stream=stream)
        stream.synchronize()
        assert x.read()[0] == 32.0
        world.destroy()
        """,
    )
    trace = read(tmp_path / "rank1.trace")
    calls: dict[str, list[int]] = {}
    for record in trace.select(RecordKind.COLLECTIVE):
        calls.setdefault(trace.signature(int(record["signature"]))["call"], []).append(int(record["value"]))
    assert calls == {
        "ncclCommInitRank": [0],
        "ncclAllReduce": [0, 1, 2, 3, 4],
        "ncclSend": [0, 1, 2],
        "ncclRecv": [0, 1, 2],
    }


KNOWN_CONTENTS = Checks(
    """
    world = Communicator.join()

    def reduced(buffer, **options):
        world.all_reduce(buffer, **options)
        return buffer.read()

    def floats_up_to_the_limit_travel():
        assert reduced(Buffer(np.ones(25000, np.float32))).tolist() == [2.0] * 25000

    def floats_beyond_the_limit_become_unknown():
        assert reduced(Buffer(np.ones(25001, np.float32))).tolist() == [0.0] * 25001

    def integers_travel_at_any_size():
        assert reduced(Buffer(np.ones(30000, np.int32))).tolist() == [2] * 30000

    def unknown_buffers_stay_unknown():
        assert reduced(Buffer(count=4)).tolist() == [0.0] * 4

    def a_sum_is_known_where_both_contributions_are():
        x = Buffer(count=4)
        checked("cudaMemcpy", x.at(1 + RANK), Buffer(np.ones(2, np.float32)).address, size_t(8), 3)
        assert reduced(x).tolist() == [0.0, 0.0, 2.0, 0.0], x.read()

    def the_own_part_of_an_all_gather_stays_known_when_the_others_do_not_travel():
        x = Buffer(np.zeros(40000, np.float32))
        x.write(np.full(40000, RANK + 1.0))
        world.call("AllGather", x.at(20000 * RANK), x.address, size_t(20000), FP32)
        kept = [1.0] * 20000 + [0.0] * 20000 if RANK == 0 else [0.0] * 20000 + [2.0] * 20000
        assert x.read().tolist() == kept

    def the_root_of_a_broadcast_keeps_what_does_not_travel():
        x = Buffer(np.full(20000, RANK + 1.0))
        world.call("Broadcast", x.address, x.address, size_t(20000), FP64, 0)
        assert x.read().tolist() == [1.0 - RANK] * 20000
    """
)


@pytest.fixture(scope="module")
def known_contents(ranks_once: Ranks) -> RankOutcomes:
    return run_checks(KNOWN_CONTENTS, ranks_once, 2, variables={"MAYA_COLLECTIVE_BYTES": "100000"})


@pytest.mark.parametrize("check", KNOWN_CONTENTS.names)
def test_known_contents(known_contents: RankOutcomes, check: str) -> None:
    known_contents.require(check)


def test_contents_that_do_not_travel_are_no_reason_for_a_warning(known_contents: RankOutcomes) -> None:
    assert all("maya:" not in output for output in known_contents.outputs)


def test_small_buffers_travel_at_any_limit(ranks: Ranks) -> None:
    """Even buffers that are known in many places, and unknown in between."""
    outputs = ranks(
        2,
        """
        world = Communicator.join()
        for kind in (np.float32, np.int64, np.uint8):
            x = Buffer(np.ones(8000, kind))
            world.all_reduce(x)
            assert x.read().tolist() == [2] * 8000
            x, one = Buffer(count=1000, dtype=kind), Buffer(np.ones(1, kind))
            for i in range(0, 1000, 2):
                checked("cudaMemcpy", x.at(i), one.address, size_t(one.bytes), 3)
            world.all_reduce(x)
            assert x.read().tolist() == [2, 0] * 500
        x = Buffer(np.ones(100_000, np.int64))
        assert not x.read().any()
        world.destroy()
        """,
        variables={
            "MAYA_COLLECTIVE_BYTES": "0",
            "MAYA_COPY_BYTES": "0",
            "MAYA_KEPT_BYTES": "0",
            "MAYA_OBJECT_BYTES": "0",
            "MAYA_COMPUTE_BYTES": "0",
        },
    )
    for output in outputs:
        assert "800000 bytes of integers written to the GPU become placeholders" in output
        assert "--copy-bytes is 0" in output


SCALED_SUMS = Checks(
    """
    world = Communicator.join()
    half = np.array([0.5 + RANK], np.float32)

    def operator(address, kind, on_host):
        made = ctypes.c_int()
        check("ncclRedOpCreatePreMulSum", ctypes.byref(made), address, kind, int(on_host), world.handle)
        return made.value

    def a_factor_on_the_host_scales_the_input_of_its_rank():
        op = operator(half.ctypes.data_as(ctypes.c_void_p), FP32, on_host=True)
        x = Buffer(np.array([2.0, 4.0], np.float32))
        world.all_reduce(x, op=op)
        check("ncclRedOpDestroy", op, world.handle)
        assert x.read().tolist() == [4.0, 8.0]

    def a_factor_on_the_device_is_read_in_stream_order():
        stream, factor = Stream(), Buffer(np.array([9.0], np.float32))
        op = operator(factor.address, FP32, on_host=False)
        gate = hold(stream)
        checked("cudaMemcpyAsync", factor.address, Buffer(half).address, size_t(4), 3, stream.handle)
        x = Buffer(np.array([2.0, 4.0], np.float32))
        world.all_reduce(x, op=op, stream=stream)
        gate.set()
        stream.synchronize()
        assert x.read().tolist() == [4.0, 8.0]

    def floats_of_8_bits_are_scaled():  # e4m3: 1.5, 448 (the largest), not a number; times 2
        x = Buffer(np.array([0x3C, 0x7E, 0x7F], np.uint8))
        two = np.array([0x40 if RANK == 0 else 0x00], np.uint8)
        op = operator(two.ctypes.data_as(ctypes.c_void_p), E4M3, on_host=True)
        world.all_reduce(x, kind=E4M3, op=op)
        assert x.read()[0] == 0x44, x.read()
    """
)


@pytest.fixture(scope="module")
def scaled_sums(ranks_once: Ranks) -> RankOutcomes:
    return run_checks(SCALED_SUMS, ranks_once, 2)


@pytest.mark.parametrize("check", SCALED_SUMS.names)
def test_scaled_sums(scaled_sums: RankOutcomes, check: str) -> None:
    scaled_sums.require(check)


def test_the_trace_names_the_members_of_every_communicator(ranks: Ranks, tmp_path: Path) -> None:
    ranks(
        4,
        """
        world = Communicator.join()
        again = Communicator.join("again")
        odd_and_even = world.split(RANK % 2)
        turned = world.split(0, key=-RANK)
        odd_and_even.all_reduce(Buffer(np.zeros(3, np.float32)))
        alone = Communicator.join("alone", 1, 0)
        """,
    )
    trace = read(tmp_path / "rank2.trace")
    inits: list[dict[str, Any]] = []
    for record in trace.select(RecordKind.COLLECTIVE):
        signature = trace.signature(int(record["signature"]))
        if "members" in signature:
            inits.append(signature)
        else:
            assert signature == {
                **{"call": "ncclAllReduce", "communicator": 3, "ranks": 2, "rank": 1},
                **{"count": 3, "dtype": "fp32", "op": "sum"},
            }
    assert [(init["call"], init["communicator"], init["rank"], init["ranks"]) for init in inits] == [
        ("ncclCommInitRank", 1, 2, 4),
        ("ncclCommInitRank", 2, 2, 4),
        ("ncclCommSplit", 3, 1, 2),
        ("ncclCommSplit", 4, 1, 4),
        ("ncclCommInitRank", 5, 0, 1),
    ]
    assert [(init["members"], init["instance"]) for init in inits] == [
        ("0-3", 0),
        ("0-3", 1),
        ("0,2", 0),
        ("3,2,1,0", 0),
        ("2", 0),
    ]
