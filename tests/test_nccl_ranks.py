"""NCCL among several ranks: small programs, one process each, on the fake libraries, and a real coordinator."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgpack
import pytest
import zmq

from maya.devices import load_device
from maya.trace import Kind, read
from rank_runtime.build import Build
from rank_runtime.environment import rank_environment
from rank_runtime.messages import VERSION

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent

Ranks = Callable[..., list[str]]


class Coordinator:
    """`python -m coordinator` for a number of ranks."""

    def __init__(self, world_size: int) -> None:
        self.secret = secrets.token_hex(16)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "coordinator",
                "--world-size",
                str(world_size),
                "--secret",
                self.secret,
                "--no-store",
            ],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.endpoint = json.loads(self._output.readline())["coordinator"]["endpoint"]

    @property
    def _output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


@pytest.fixture
def ranks(build: Build, tmp_path: Path) -> Ranks:
    """Runs a program as `count` ranks and gives their outputs; their traces are rank<N>.trace in the test's folder."""
    running: list[subprocess.Popen[str]] = []

    def run(
        count: int,
        program: str,
        *,
        exit_codes: Mapping[int, int] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> list[str]:
        coordinator = Coordinator(count)
        try:
            script = tmp_path / "program.py"
            script.write_text("from nccl_driver import *\n" + textwrap.dedent(program))
            for rank in range(count):
                environment = {
                    **os.environ,
                    **_variables(build, coordinator.endpoint, coordinator.secret, rank, count, tmp_path),
                    **(variables or {}),
                }
                running.append(
                    subprocess.Popen(
                        [sys.executable, "-u", str(script)],
                        env=environment,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            outputs = [process.communicate(timeout=120) for process in running]
            for rank, process in enumerate(running):
                assert process.returncode == (exit_codes or {}).get(rank, 0), f"rank {rank}: {outputs[rank]}"
        finally:
            for process in running:
                process.kill()
                process.communicate()
            coordinator.close()
        return [out + err for out, err in outputs]

    return run


def _variables(build: Build, endpoint: str, secret: str, rank: int, count: int, folder: Path) -> dict[str, str]:
    chosen = {
        "MAYA_COORDINATOR": endpoint,
        "MAYA_COORDINATOR_SECRET": secret,
        "MAYA_ZMQ": _zmq_library(),
        "MAYA_TRACE": str(folder / "rank%r.trace"),
    }
    runtime = next(path.name for path in build.libraries if path.name.startswith("libcudart"))
    return {
        **rank_environment(build, load_device("h100").cuda_properties(), chosen, os.environ),
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "CUDA_RUNTIME": runtime,
        "PYTHONPATH": str(TESTS),
    }


def _zmq_library() -> str:
    (library,) = (Path(zmq.__file__).parent.parent / "pyzmq.libs").glob("libzmq*")
    return str(library)


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


def test_split(ranks: Ranks) -> None:
    ranks(
        4,
        """
        world = Communicator.join()
        parity = world.split(RANK % 2, key=-RANK)  # the key turns the order around
        assert (parity.ranks, parity.rank) == (2, 1 - RANK // 2)
        x = Buffer(np.array([RANK]))
        parity.all_reduce(x)
        assert x.read().tolist() == [2 if RANK % 2 == 0 else 4]
        some = world.split(0 if RANK < 3 else -1)
        assert (some is None) == (RANK == 3)
        if some:
            x = Buffer(np.array([RANK]))
            some.all_reduce(x, op=MAX)
            assert x.read().tolist() == [2]
            alone = some.split(RANK)
            assert alone.ranks == 1
            alone.all_reduce(x)
            assert x.read().tolist() == [2]
            alone.destroy(), some.destroy()
        again = parity.split(0)
        x = Buffer(np.array([1.0]))
        again.all_reduce(x)
        world.all_reduce(x)
        assert x.read().tolist() == [8.0]
        for each in (again, parity, world):
            each.destroy()
        """,
    )


def test_shrink(ranks: Ranks) -> None:
    """A rank that is excluded need not even be there."""
    ranks(
        3,
        """
        import os

        world = Communicator.join()
        x = Buffer(np.array([1.0]))
        world.all_reduce(x)
        assert x.read().tolist() == [3.0]
        if RANK == 1:
            os._exit(0)
        stream = Stream()
        world.all_reduce(x, stream=stream)  # will never be complete
        assert not stream.is_idle()
        fewer = world.shrink([1], flags=1)
        stream.synchronize()
        assert (fewer.ranks, fewer.rank) == (2, 0 if RANK == 0 else 1)
        y = Buffer(np.array([1.0]))
        fewer.all_reduce(y)
        assert y.read().tolist() == [2.0]
        assert refusal(lambda: world.all_reduce(x)) == INVALID_USAGE
        world.abort(), fewer.destroy()
        """,
    )


def test_communicators_that_do_not_block(ranks: Ranks) -> None:
    ranks(
        2,
        """
        import pathlib, sys, time

        signal = pathlib.Path(sys.argv[0]).with_name("go")
        if RANK == 1:
            while not signal.exists():
                time.sleep(0.01)
        world = Communicator.join_without_waiting()
        if RANK == 0:
            assert world.error == IN_PROGRESS
            x = Buffer(np.array([1.0]))
            assert refusal(lambda: world.all_reduce(x)) == INVALID_ARGUMENT  # not ready
            signal.touch()
        while world.error == IN_PROGRESS:
            time.sleep(0.01)
        assert world.error == SUCCESS and world.ranks == 2
        x = Buffer(np.array([1.0]))
        world.all_reduce(x)
        assert x.read().tolist() == [2.0]

        # several at once, by one thread, in orders that would block each other outside a group
        names = ["one", "two", "three"]
        handles = {name: ctypes.c_void_p() for name in (names if RANK == 0 else reversed(names))}
        with group():
            for name, handle in handles.items():
                check("ncclCommInitRank", ctypes.byref(handle), WORLD, unique_id(name), RANK)
        for name in names:
            each = Communicator(handles[name])
            each.all_reduce(x)
            each.destroy()
        assert x.read().tolist() == [16.0]

        identifiers = (UniqueId * 2)(unique_id("first"), unique_id("second"))
        handle = ctypes.c_void_p()
        check("ncclCommInitRankScalable", ctypes.byref(handle), WORLD, RANK, 2, identifiers, None)
        each = Communicator(handle)
        each.all_reduce(x)
        assert x.read().tolist() == [32.0]
        check("ncclCommFinalize", each.handle)
        assert refusal(lambda: each.all_reduce(x)) == INVALID_USAGE
        each.destroy()
        """,
    )


def test_several_devices_of_one_process(ranks: Ranks) -> None:
    ranks(
        1,
        """
        handles = (ctypes.c_void_p * 3)()
        check("ncclCommInitAll", handles, 3, None)
        communicators = [Communicator(ctypes.c_void_p(handle)) for handle in handles]
        buffers = []
        for device in range(3):
            checked("cudaSetDevice", device)
            buffers.append(Buffer(np.array([1.0 + device])))
        with group():
            for communicator, buffer in zip(communicators, buffers):
                communicator.all_reduce(buffer)
        for device, buffer in enumerate(buffers):
            checked("cudaSetDevice", device)
            assert buffer.read().tolist() == [6.0], buffer.read()
            assert communicators[device].ask("ncclCommCuDevice") == device
        for communicator in communicators:
            communicator.destroy()
        """,
    )


def test_abort_lets_streams_go(ranks: Ranks) -> None:
    outputs = ranks(
        2,
        """
        import threading

        world, second = Communicator.join(), Communicator.join("second")
        x = Buffer(np.array([1.0]))
        if RANK == 0:
            stream = Stream()
            world.all_reduce(x, stream=stream)  # rank 1 never comes
            world.all_reduce(x, stream=stream)
            assert not stream.is_idle()
            waiting = threading.Thread(target=stream.synchronize)
            waiting.start()
            world.abort()
            waiting.join()
            assert stream.is_idle()
            lonely = Communicator.join_without_waiting("lonely")
            lonely.abort()
        else:
            world.abort()
        second.all_reduce(x)  # the process and its other communicators live on
        print(x.read().tolist())
        check("ncclCommRevoke", second.handle, 0)
        assert refusal(lambda: second.all_reduce(x)) == INVALID_USAGE
        second.destroy()
        """,
    )
    assert [output.splitlines()[-1] for output in outputs] == ["[2.0]", "[2.0]"], outputs


def test_a_mismatch_is_an_error_of_the_communicator(ranks: Ranks) -> None:
    outputs = ranks(
        2,
        """
        world, fine = Communicator.join(), Communicator.join("fine")
        x, stream = Buffer(np.zeros(4 + RANK)), Stream()
        world.all_reduce(x, stream=stream)
        stream.synchronize()  # it goes on
        assert world.error == INVALID_USAGE
        assert refusal(lambda: world.all_reduce(x)) == INVALID_USAGE
        print(nccl.ncclGetLastError(world.handle).decode())
        fine.all_reduce(Buffer(np.array([1.0])))
        assert fine.error == SUCCESS
        world.abort(), fine.destroy()
        """,
    )
    for output in outputs:
        assert re.search("rank 0.* 4.*rank 1.* 5|rank 1.* 5.*rank 0.* 4", output), output
        assert output.count("maya: [rank") == 1, output


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
    for record in trace.select(Kind.COLLECTIVE):
        calls.setdefault(trace.signature(int(record["signature"]))["call"], []).append(int(record["value"]))
    assert calls == {
        "ncclCommInitRank": [0],
        "ncclAllReduce": [0, 1, 2, 3, 4],
        "ncclSend": [0, 1, 2],
        "ncclRecv": [0, 1, 2],
    }


def test_what_is_known_of_the_result(ranks: Ranks) -> None:
    """Bytes travel up to a size, integers at any size, and only where something is known."""
    outputs = ranks(
        2,
        """
        world = Communicator.join()

        def reduced(buffer, **options):
            world.all_reduce(buffer, **options)
            return buffer.read()

        assert reduced(Buffer(np.ones(256, np.float32))).tolist() == [2.0] * 256  # 1024 bytes: the limit of this run
        assert reduced(Buffer(np.ones(257, np.float32))).tolist() == [0.0] * 257
        assert reduced(Buffer(np.ones(5000, np.int32))).tolist() == [2] * 5000
        assert reduced(Buffer(count=4)).tolist() == [0.0] * 4
        # known here and there: the sum is known where both are
        x = Buffer(count=4)
        checked("cudaMemcpy", x.at(1 + RANK), Buffer(np.ones(2, np.float32)).address, size_t(8), 3)
        assert reduced(x).tolist() == [0.0, 0.0, 2.0, 0.0], x.read()
        # a part that is too large to travel: what this rank has itself stays
        x = Buffer(np.zeros(1000, np.float32))
        x.write(np.full(1000, RANK + 1.0))
        world.call("AllGather", x.at(500 * RANK), x.address, size_t(500), FP32)
        kept = [1.0] * 500 + [0.0] * 500 if RANK == 0 else [0.0] * 500 + [2.0] * 500
        assert x.read().tolist() == kept
        x = Buffer(np.full(1000, RANK + 1.0))
        world.call("Broadcast", x.address, x.address, size_t(1000), FP64, 0)
        assert x.read().tolist() == [1.0 - RANK] * 1000
        world.destroy()
        """,
        variables={"MAYA_COLLECTIVE_BYTES": "1024"},
    )
    assert outputs == ["", ""]


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


def test_forked_children_leave_the_connection_alone(ranks: Ranks) -> None:
    outputs = ranks(
        2,
        """
        import os, sys

        world = Communicator.join()
        x, stream = Buffer(np.array([1.0])), Stream()
        if RANK == 0:
            world.all_reduce(x, stream=stream)  # under way while the child lives
            child = os.fork()
            if child == 0:
                stream.synchronize()  # nothing is under way here
                result = refusal(lambda: Communicator.join("another"))
                world.abort()
                os._exit(10 + result)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10 + SYSTEM_ERROR
            child = os.fork()
            if child == 0:
                sys.exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        else:
            import time
            time.sleep(0.5)
            world.all_reduce(x, stream=stream)
        stream.synchronize()
        assert x.read().tolist() == [2.0]
        world.all_reduce(x)
        assert x.read().tolist() == [4.0]
        world.destroy()
        """,
    )
    assert "forked from a rank" in outputs[0]


def test_a_process_that_forks_its_ranks(build: Build, tmp_path: Path) -> None:
    """What the launcher does: a process that may have used CUDA forks the ranks, and each is as good as a new one."""
    coordinator = Coordinator(2)
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            from nccl_driver import *
            import nccl_driver, sys

            device = ctypes.CDLL("libmaya_device.so")
            endpoint = os.environ.pop("MAYA_COORDINATOR")
            trace = os.environ.pop("MAYA_TRACE")
            before = Buffer(np.array([5.0]))  # CUDA is in use, and nothing is recorded
            stream = Stream()
            children = []
            for rank in range(2):
                child = os.fork()
                if child == 0:
                    os.environ.update(RANK=str(rank), MAYA_COORDINATOR=endpoint, MAYA_TRACE=trace)
                    device.maya_begin_rank()
                    nccl_driver.RANK = rank
                    world = Communicator.join(rank=rank)
                    x = Buffer(np.array([1.0 + rank]))
                    world.all_reduce(x, stream=stream)
                    stream.synchronize()
                    assert x.read().tolist() == [3.0] and before.read().tolist() == [5.0]
                    worker = os.fork()
                    if worker == 0:
                        sys.exit(1 if refusal(lambda: Communicator.join("of a worker", rank=rank)) else 0)
                    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 1
                    world.destroy()
                    sys.exit(0)
                children.append(child)
            assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
            """
        )
    )
    environment = {**os.environ, **_variables(build, coordinator.endpoint, coordinator.secret, 0, 2, tmp_path)}
    try:
        ended = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=60
        )
    finally:
        coordinator.close()
    assert ended.returncode == 0, ended.stderr
    assert "[rank 1] NCCL: this process was forked from a rank" in ended.stderr
    for rank in range(2):
        trace = read(tmp_path / f"rank{rank}.trace")
        assert trace.complete, trace.problem
        assert trace.header.rank == rank
        calls = [trace.signature(int(record["signature"]))["call"] for record in trace.select(Kind.COLLECTIVE)]
        assert calls == ["ncclCommInitRank", "ncclAllReduce"]


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
    for record in trace.select(Kind.COLLECTIVE):
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


def test_buffers_take_device_memory(ranks: Ranks) -> None:
    """About 150 MiB a communicator of several ranks; none where they are shared or nobody is to be reached."""
    ranks(
        2,
        """
        def free_bytes():
            free, total = size_t(), size_t()
            checked("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
            return free.value

        before = free_bytes()
        world = Communicator.join()
        taken = before - free_bytes()
        assert 100 << 20 < taken < 200 << 20
        alone = world.split(RANK)
        assert before - free_bytes() == taken
        again = world.split(0)
        assert before - free_bytes() == 2 * taken
        for each in (alone, again, world):
            each.destroy()
        assert free_bytes() == before
        everything = ctypes.c_void_p()
        checked("cudaMalloc", ctypes.byref(everything), size_t(before - taken // 2))
        assert refusal(lambda: Communicator.join("too much")) == 1  # ncclUnhandledCudaError
        assert b"out of memory" in nccl.ncclGetLastError(None)
        """,
    )


@pytest.mark.parametrize("ends", ["killed", "refuses", "absent"])
def test_without_a_coordinator(build: Build, tmp_path: Path, ends: str) -> None:
    """One message says what is the matter, and NCCL's results say so, too."""
    coordinator = Coordinator(2)
    script = tmp_path / "program.py"
    script.write_text(
        "from nccl_driver import *\n"
        "import threading, time\n"
        "try:\n"
        "    world = Communicator.join(ranks=int(os.environ['RANKS']), rank=0)\n"
        "except NcclError as error:\n"
        "    print(error.result, flush=True)\n"
        "else:\n"
        "    print('joined', flush=True)\n"
    )
    environment = {
        **os.environ,
        **_variables(build, coordinator.endpoint, coordinator.secret, 0, 2, tmp_path),
        "RANKS": "2",
    }
    if ends == "absent":
        environment["MAYA_COORDINATOR"] = ""
    if ends == "refuses":
        environment["RANK"] = "7"
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        if ends == "killed":
            _wait_for_a_rank(coordinator)
            coordinator.process.kill()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
        coordinator.close()
    assert (out, process.returncode) == ("2\n", 0), err
    said = {"killed": "has ended", "refuses": "refuses this process", "absent": "there is no coordinator"}[ends]
    assert err.count("maya: [rank") == 1, err
    assert said in err


def test_a_coordinator_that_ends_during_the_run(build: Build, tmp_path: Path) -> None:
    """Streams go on, every communicator has the error, and new operations are refused."""
    coordinator = Coordinator(1)
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            from nccl_driver import *
            import time

            handles = (ctypes.c_void_p * 2)()
            check("ncclCommInitAll", handles, 2, None)
            busy, idle = (Communicator(ctypes.c_void_p(handle)) for handle in handles)
            x, stream = Buffer(np.array([1.0])), Stream()
            busy.all_reduce(x, stream=stream)  # the other member never comes
            print("posted", flush=True)
            stream.synchronize()
            assert busy.error == idle.error == SYSTEM_ERROR
            assert refusal(lambda: idle.all_reduce(x)) == SYSTEM_ERROR
            busy.destroy(), idle.destroy()
            assert refusal(lambda: Communicator.join("another", 2, 0)) == SYSTEM_ERROR
            """
        )
    )
    environment = {**os.environ, **_variables(build, coordinator.endpoint, coordinator.secret, 0, 1, tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "posted\n"
            coordinator.process.kill()
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
            coordinator.close()
    assert process.returncode == 0, err
    assert err.count("maya: [rank") == 1, err


def test_a_program_that_ends_in_the_middle(ranks: Ranks) -> None:
    """What is still under way at the end of a process holds up nothing."""
    ranks(
        2,
        """
        import atexit

        world, stream = Communicator.join(), Stream()
        atexit.register(stream.synchronize) if RANK == 1 else None
        x = Buffer(np.array([1.0]))
        world.all_reduce(x, stream=stream)
        if RANK == 0:
            world.all_reduce(x, stream=stream)  # rank 1 never comes
        """,
    )


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1 no msgpack"],
        [msgpack.packb([[99]])],
        [msgpack.packb([[36, 1, [], True]])],  # a payload that does not follow
        [msgpack.packb([[32, 1]]), b"a payload too much"],
        [msgpack.packb([[34, 1, 1, 0, "members", 0]])],
    ],
)
def test_a_coordinator_that_is_none(build: Build, tmp_path: Path, frames: list[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        router.setsockopt(zmq.RCVTIMEO, 30000)
        script = tmp_path / "program.py"
        script.write_text("from nccl_driver import *\nprint(refusal(lambda: Communicator.join()))\n")
        environment = {
            **os.environ,
            **_variables(build, f"tcp://127.0.0.1:{port}", "secret", 0, 2, tmp_path),
        }
        with subprocess.Popen(
            [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                name, hello = router.recv_multipart()
                assert msgpack.unpackb(hello)[0][1:4] == [VERSION, "secret", 0]
                router.send_multipart([name, *frames])
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
    assert (out, process.returncode) == ("2\n", 0), err
    assert err.count("maya: [rank") == 1, err
    assert "does not understand" in err


def _wait_for_a_rank(coordinator: Coordinator) -> None:
    for line in coordinator._output:
        if json.loads(line).get("progress", {}).get("joined", 0):
            return
