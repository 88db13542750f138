"""NCCL's operations among several ranks: small programs, one process each, on the fake libraries, and a real
coordinator. What they send arrives, in the order of streams, and it is known how much of it is real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.nccl_ranks import Ranks, ranks_fixture  # noqa: F401

from maya.trace import RecordKind, read


def test_all_reduce(ranks: Ranks) -> None:
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


def test_every_operation(ranks: Ranks) -> None:
    """Each leaves in the receive buffer what NCCL says it does; also in place, and with any root."""
    ranks(
        3,
        """
        world = Communicator.join()
        everyone = [np.arange(6, dtype=np.int64) * 10 + rank for rank in range(WORLD)]
        mine, two = everyone[RANK], size_t(2)

        def result(name, count, *middle, size, sent=mine):
            received = Buffer(count=size, dtype=np.int64)
            world.call(name, Buffer(sent).address, received.address, size_t(count), INT64, *middle)
            return received.read().tolist()

        for op, numpy_op in ((SUM, np.sum), (PROD, np.prod), (MAX, np.max), (MIN, np.min)):
            expected = numpy_op(everyone, axis=0).tolist()
            assert result("AllReduce", 6, op, size=6) == expected
            assert result("ReduceScatter", 2, op, size=2) == expected[2 * RANK : 2 * RANK + 2]
            for root in range(WORLD):
                assert result("Reduce", 6, op, root, size=6) == (expected if RANK == root else [0] * 6)
        assert result("AllGather", 6, size=18) == np.concatenate(everyone).tolist()
        parts = [each[2 * RANK : 2 * RANK + 2] for each in everyone]
        assert result("AlltoAll", 2, size=6) == np.concatenate(parts).tolist()
        for root in range(WORLD):
            assert result("Broadcast", 6, root, size=6) == everyone[root].tolist()
            gathered = np.concatenate(everyone).tolist() if RANK == root else [0] * 18
            assert result("Gather", 6, root, size=18) == gathered
            assert result("Scatter", 2, root, size=2) == everyone[root][2 * RANK : 2 * RANK + 2].tolist()

        x = Buffer(mine)
        world.call("Bcast", x.address, size_t(6), INT64, 2)
        assert x.read().tolist() == everyone[2].tolist()
        x = Buffer(np.repeat(RANK, 6))  # in place: the own part of the receive buffer is the send buffer
        world.call("AllGather", x.at(2 * RANK), x.address, two, INT64)
        assert x.read().tolist() == [0, 0, 1, 1, 2, 2]
        x = Buffer(mine)
        world.call("ReduceScatter", x.address, x.at(2 * RANK), two, INT64, SUM)
        assert x.read()[2 * RANK :][:2].tolist() == np.sum(everyone, axis=0)[2 * RANK :][:2].tolist()
        x = Buffer(np.array([4.0, RANK]))
        world.all_reduce(x, op=AVG)
        assert x.read().tolist() == [4.0, 1.0]

        world.call("AllReduce", None, None, size_t(0), FP32, SUM)  # nothing: NCCL does not even look
        next_one, previous = (RANK + 1) % WORLD, (RANK - 1) % WORLD
        with group():
            world.send(Buffer(mine), next_one)
            x = Buffer(count=6, dtype=np.int64)
            world.receive(x, previous)
        assert x.read().tolist() == everyone[previous].tolist()
        world.destroy()
        """,
    )


def test_groups(ranks: Ranks) -> None:
    """Messages to all, to oneself among them, and collectives on several communicators and streams, in one group."""
    ranks(
        3,
        """
        world, other = Communicator.join(), Communicator.join("other")
        streams = Stream(), Stream()
        x = [Buffer(np.array([RANK, peer])) for peer in range(WORLD)]
        y = [Buffer(count=2, dtype=np.int64) for _ in range(WORLD)]
        with group():
            for peer in range(WORLD):
                world.receive(y[peer], peer, stream=streams[0])
            for peer in range(WORLD):
                world.send(x[peer], peer, stream=streams[0])
        streams[0].synchronize()
        assert [each.read().tolist() for each in y] == [[peer, RANK] for peer in range(WORLD)]

        # the order of the calls may differ where it does not matter, and messages of one direction keep theirs
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

        if RANK < 2:
            first, second = Buffer(np.arange(4) + RANK), Buffer(np.arange(4) * 2 + RANK)
            one, two = Buffer(count=4, dtype=np.int64), Buffer(count=4, dtype=np.int64)
            with group():
                world.send(first, 1 - RANK)
                world.send(second, 1 - RANK)
                world.receive(one, 1 - RANK)
                world.receive(two, 1 - RANK)
            assert one.read().tolist() == (np.arange(4) + 1 - RANK).tolist()
            assert two.read().tolist() == (np.arange(4) * 2 + 1 - RANK).tolist()

        # to oneself, with the two ends on different streams
        x, y = Buffer(np.arange(3)), Buffer(count=3, dtype=np.int64)
        with group():
            world.send(x, RANK, stream=streams[0])
            world.receive(y, RANK, stream=streams[1])
        streams[1].synchronize()
        assert y.read().tolist() == [0, 1, 2]

        # one refused call refuses the group, and what the other ranks do still fits
        check("ncclGroupStart")
        world.all_reduce(a)
        assert refusal(lambda: world.all_reduce(a, kind=99)) == INVALID_ARGUMENT
        assert nccl.ncclGroupEnd() == INVALID_ARGUMENT
        world.all_reduce(a)
        assert a.read()[0] == 9.0
        """,
    )


def test_streams_stand_still_and_hosts_do_not(ranks: Ranks) -> None:
    """Rank 0 posts long before rank 1 does; everything behind the collective waits, and nothing else."""
    ranks(
        2,
        """
        import pathlib, sys, time

        world, quick = Communicator.join(), Communicator.join("quick")
        signal = pathlib.Path(sys.argv[0]).with_name("go")
        held, free = Stream(), Stream()
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
            assert before.is_complete() and not after.is_complete()
            assert not held.is_idle() and not free.is_idle()
            other = Stream()
            w = Buffer(np.array([3.0]))
            checked("cudaMemsetAsync", w.address, 0, size_t(8), other.handle)
            other.synchronize()
            assert w.read().tolist() == [0.0]
            signal.touch()
            checked("cudaEventSynchronize", after.handle)
            held.synchronize(), free.synchronize()
            assert y.read().tolist() == [2.0]
        assert x.read().tolist() == [2.0] and z.read().tolist() == [10.0]

        # the legacy stream waits for blocking streams, and they for it
        blocking = Stream(flags=0)
        gate = hold(blocking)
        world.all_reduce(x, stream=blocking)
        assert cuda.cudaStreamQuery(None) in (0, NOT_READY)
        checked("cudaMemcpyAsync", y.address, x.address, size_t(8), 3, None)
        assert cuda.cudaStreamQuery(None) == NOT_READY
        gate.set()
        assert y.read().tolist() == [4.0]

        # the bytes that are sent are those the buffer holds when the stream gets there
        gate = hold(held)
        checked("cudaMemsetAsync", x.address, 0, size_t(8), held.handle)
        world.all_reduce(x, stream=held)
        gate.set()
        held.synchronize()
        assert x.read().tolist() == [0.0]
        world.destroy(), quick.destroy()
        """,
    )


def test_graphs_post_anew_at_every_launch(ranks: Ranks, tmp_path: Path) -> None:
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


def test_what_is_known_of_the_result(ranks: Ranks) -> None:
    """Small buffers travel, large ones up to a size, integers at any size, and only where something is known."""
    outputs = ranks(
        2,
        """
        world = Communicator.join()

        def reduced(buffer, **options):
            world.all_reduce(buffer, **options)
            return buffer.read()

        assert reduced(Buffer(np.ones(25000, np.float32))).tolist() == [2.0] * 25000  # the limit of this run
        assert reduced(Buffer(np.ones(25001, np.float32))).tolist() == [0.0] * 25001
        assert reduced(Buffer(np.ones(30000, np.int32))).tolist() == [2] * 30000
        assert reduced(Buffer(count=4)).tolist() == [0.0] * 4
        # known here and there: the sum is known where both are
        x = Buffer(count=4)
        checked("cudaMemcpy", x.at(1 + RANK), Buffer(np.ones(2, np.float32)).address, size_t(8), 3)
        assert reduced(x).tolist() == [0.0, 0.0, 2.0, 0.0], x.read()
        # a part that is too large to travel: what this rank has itself stays
        x = Buffer(np.zeros(40000, np.float32))
        x.write(np.full(40000, RANK + 1.0))
        world.call("AllGather", x.at(20000 * RANK), x.address, size_t(20000), FP32)
        kept = [1.0] * 20000 + [0.0] * 20000 if RANK == 0 else [0.0] * 20000 + [2.0] * 20000
        assert x.read().tolist() == kept
        x = Buffer(np.full(20000, RANK + 1.0))
        world.call("Broadcast", x.address, x.address, size_t(20000), FP64, 0)
        assert x.read().tolist() == [1.0 - RANK] * 20000
        world.destroy()
        """,
        variables={"MAYA_COLLECTIVE_BYTES": "100000"},
    )
    assert outputs == ["", ""]


def test_small_buffers_travel_whatever_the_limits(ranks: Ranks) -> None:
    """Also if they are known in many places, and not in between."""
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
        assert "800000 bytes of integers that were written to the GPU are placeholders" in output
        assert "--copy-bytes is 0" in output


def test_scaled_sums(ranks: Ranks) -> None:
    """ncclRedOpCreatePreMulSum: every rank's input times its scalar, on the host or, in stream order, on the device."""
    ranks(
        2,
        """
        world = Communicator.join()
        stream = Stream()

        def operator(address, kind, on_host):
            made = ctypes.c_int()
            check("ncclRedOpCreatePreMulSum", ctypes.byref(made), address, kind, int(on_host), world.handle)
            return made.value

        half = np.array([0.5 + RANK], np.float32)
        op = operator(half.ctypes.data_as(ctypes.c_void_p), FP32, on_host=True)
        x = Buffer(np.array([2.0, 4.0], np.float32))
        world.all_reduce(x, op=op)
        check("ncclRedOpDestroy", op, world.handle)
        assert x.read().tolist() == [4.0, 8.0]
        factor = Buffer(np.array([9.0], np.float32))
        op = operator(factor.address, FP32, on_host=False)
        gate = hold(stream)
        checked("cudaMemcpyAsync", factor.address, Buffer(half).address, size_t(4), 3, stream.handle)
        x = Buffer(np.array([2.0, 4.0], np.float32))
        world.all_reduce(x, op=op, stream=stream)
        gate.set()
        stream.synchronize()
        assert x.read().tolist() == [4.0, 8.0]

        # 8-bit: 1.5, 448 (the largest), not a number, in e4m3; times 2
        x = Buffer(np.array([0x3C, 0x7E, 0x7F], np.uint8))
        two = np.array([0x40 if RANK == 0 else 0x00], np.uint8)
        op = operator(two.ctypes.data_as(ctypes.c_void_p), E4M3, on_host=True)
        world.all_reduce(x, kind=E4M3, op=op)
        assert x.read()[0] == 0x44, x.read()
        world.destroy()
        """,
    )


def test_the_trace_says_who_the_members_are(ranks: Ranks, tmp_path: Path) -> None:
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
    births: list[dict[str, Any]] = []
    for record in trace.select(RecordKind.COLLECTIVE):
        signature = trace.signature(int(record["signature"]))
        if "members" in signature:
            births.append(signature)
        else:
            assert signature == {
                **{"call": "ncclAllReduce", "communicator": 3, "ranks": 2, "rank": 1},
                **{"count": 3, "dtype": "fp32", "op": "sum"},
            }
    assert [(birth["call"], birth["communicator"], birth["rank"], birth["ranks"]) for birth in births] == [
        ("ncclCommInitRank", 1, 2, 4),
        ("ncclCommInitRank", 2, 2, 4),
        ("ncclCommSplit", 3, 1, 2),
        ("ncclCommSplit", 4, 1, 4),
        ("ncclCommInitRank", 5, 0, 1),
    ]
    assert [(birth["members"], birth["instance"]) for birth in births] == [
        ("0-3", 0),
        ("0-3", 1),
        ("0,2", 0),
        ("3,2,1,0", 0),
        ("2", 0),
    ]
