"""NCCL's connection to the coordinator when something goes away: children that were forked, a coordinator that is gone
or none, a program that ends in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import msgpack
import pytest
import zmq
from helpers.nccl_ranks import Coordinator, Ranks, rank_variables, ranks_fixture  # noqa: F401

from maya.trace import RecordKind, read
from rank_runtime.build import Build
from rank_runtime.messages import VERSION


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
    assert "forked child of a rank" in outputs[0]


def test_ranks_forked_by_one_process_communicate(build: Build, tmp_path: Path) -> None:
    """What the launcher does: a process that may have used CUDA forks the ranks, and each is as good as a new one."""
    coordinator = Coordinator(2)
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import os

            endpoint = os.environ.pop("MAYA_COORDINATOR")
            trace = os.environ.pop("MAYA_TRACE")

            from nccl_driver import *
            import nccl_driver, sys

            device = ctypes.CDLL("libmaya_device.so")
            before = Buffer(np.array([5.0]))  # CUDA is in use, and nothing is recorded
            stream = Stream()
            children = []
            for rank in range(2):
                child = os.fork()
                if child == 0:
                    os.environ.update(RANK=str(rank), MAYA_COORDINATOR=endpoint, MAYA_TRACE=trace)
                    device.maya_begin_rank()
                    nccl_driver.RANK = rank
                    checked("cudaSetDevice", rank)
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
    environment = {**os.environ, **rank_variables(build, coordinator.endpoint, coordinator.secret, 0, 2, tmp_path)}
    try:
        ended = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=60
        )
    finally:
        coordinator.close()
    assert ended.returncode == 0, ended.stderr
    assert "[rank 1] NCCL: this process is a forked child of a rank" in ended.stderr
    for rank in range(2):
        trace = read(tmp_path / f"rank{rank}.trace")
        assert trace.complete, trace.problem
        assert trace.header.rank == rank
        calls = [trace.signature(int(record["signature"]))["call"] for record in trace.select(RecordKind.COLLECTIVE)]
        assert calls == ["ncclCommInitRank", "ncclAllReduce"]


@pytest.mark.parametrize("ends", ["killed", "refuses", "absent"])
def test_a_rank_without_a_coordinator_cannot_initialise_communicators(build: Build, tmp_path: Path, ends: str) -> None:
    """One message names the cause, and NCCL's results are errors."""
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
        **rank_variables(build, coordinator.endpoint, coordinator.secret, 0, 2, tmp_path),
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


def test_the_end_of_the_coordinator_fails_communicators(build: Build, tmp_path: Path) -> None:
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
    environment = {**os.environ, **rank_variables(build, coordinator.endpoint, coordinator.secret, 0, 1, tmp_path)}
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


def test_a_program_that_ends_in_a_collective_ends(ranks: Ranks) -> None:
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


@pytest.mark.parametrize("ending", ["", "sys.exit()", "os._exit(0)", "threading.Thread(target=later).start()"])
def test_queued_collectives_are_completed_at_the_end(ranks: Ranks, ending: str) -> None:
    """Rank 1 is through with its program before rank 0 has come to its first collective."""
    outputs = ranks(
        2,
        f"""
        import sys, threading, time
        from pathlib import Path

        def later():
            world.all_reduce(x, stream=stream)

        world, stream, x = Communicator.join(), Stream(), Buffer(np.array([1.0]))
        ended = Path(__file__).with_name("ended")
        for _ in range(10):
            if RANK == 0:
                while not ended.exists():
                    time.sleep(0.01)
            world.all_reduce(x, stream=stream)
        if RANK == 0:
            later() if {"Thread" in ending} else None
            stream.synchronize()
            print(x.read().tolist())
        else:
            ended.touch()
            {ending or "pass"}
        """,
    )
    assert outputs[0] == ("[2048.0]\n" if "Thread" in ending else "[1024.0]\n")
    assert outputs[1] == ""


def test_a_failed_rank_does_not_wait_at_its_end(ranks: Ranks) -> None:
    """Rank 0 goes on when the process of rank 1 has ended, which holds a lock until then."""
    ranks(
        2,
        """
        import fcntl, sys

        world, stream, x = Communicator.join(), Stream(), Buffer(np.array([1.0]))
        lock = open(__file__)
        if RANK == 1:
            fcntl.flock(lock, fcntl.LOCK_EX)
        world.all_reduce(x)
        if RANK == 1:
            world.all_reduce(x, stream=stream)
            sys.exit(3)
        fcntl.flock(lock, fcntl.LOCK_EX)
        """,
        exit_codes={1: 3},
    )


def test_a_receive_without_a_send_is_dropped_at_the_end(ranks: Ranks) -> None:
    """A process that ends on a GPU takes such a receive with it."""
    outputs = ranks(
        2,
        """
        world, stream, x = Communicator.join(), Stream(), Buffer(np.array([1.0]))
        world.all_reduce(x)
        if RANK == 1:
            world.receive(x, 0, stream=stream)
            world.all_reduce(x, stream=stream)
        """,
    )
    assert outputs[0] == ""
    assert outputs[1].count("NCCL: ") == 1
    assert "was queued when the program ended and is dropped: rank 0 left without calling it" in outputs[1]


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
def test_a_server_that_is_no_coordinator_is_an_error(build: Build, tmp_path: Path, frames: list[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        router.setsockopt(zmq.RCVTIMEO, 30000)
        script = tmp_path / "program.py"
        script.write_text("from nccl_driver import *\nprint(refusal(lambda: Communicator.join()))\n")
        environment = {
            **os.environ,
            **rank_variables(build, f"tcp://127.0.0.1:{port}", "secret", 0, 2, tmp_path),
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
    assert "cannot decode the coordinator's answer" in err


def _wait_for_a_rank(coordinator: Coordinator) -> None:
    for line in coordinator._output:
        if json.loads(line).get("progress", {}).get("joined", 0):
            return
