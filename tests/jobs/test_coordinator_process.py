"""The coordinator as a process of its own: its start, its reports, its end."""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from helpers.coordinator_ranks import join, post

from rank_runtime.build import Build
from rank_runtime.messages import VERSION, Alive, Bye, Call, Hello, Joined, Message, pack, unpack

ROOT = Path(__file__).resolve().parents[2]
SECRET = "fedcba9876543210"
PATIENCE_SECONDS = 300.0  # on a machine with much else to do; nothing takes that long otherwise


class Coordinator:
    """`python -m coordinator`, its reports and its control pipe."""

    def __init__(self, *options: str, environment: Mapping[str, str] | None = None, files: int | None = None) -> None:
        def limit_files() -> None:
            if files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 64), files))

        self.process = subprocess.Popen(
            [sys.executable, "-m", "coordinator", "--secret", SECRET, *options],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # so that what can be read can also be waited for
            preexec_fn=limit_files,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._control = self.process.stdin
        self._reports = self.process.stdout

    def report(self, key: str) -> Any:
        """The next report with this key; others are passed over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reports, selectors.EVENT_READ)
            while True:
                assert selector.select(PATIENCE_SECONDS), f"no report of {key}"
                line = self._reports.readline()
                assert line, f"the coordinator ended without a report of {key}"
                report: dict[str, Any] = json.loads(line)
                if key in report:
                    return report[key]

    def tell(self, line: bytes) -> None:
        self._control.write(line)

    def end(self, ending: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(ending)
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Rank:
    """A rank that has said hello."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, rank: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 2000)
        self.socket.connect(endpoint)
        self.send(Hello(VERSION, SECRET, rank, os.getpid()))
        self.receive()

    def send(self, *messages: Message) -> None:
        self.socket.send(pack(messages))

    def receive(self) -> list[tuple[Message, bytes | None]]:
        assert self.socket.poll(round(1000 * PATIENCE_SECONDS)), "no answer"
        frame, *payloads = self.socket.recv_multipart()
        return unpack(frame, payloads)


@pytest.fixture
def start() -> Iterator[Callable[..., Coordinator]]:
    started: list[Coordinator] = []

    def start(*options: str, **details: Any) -> Coordinator:
        started.append(Coordinator(*options, **details))
        return started[-1]

    yield start
    for coordinator in started:
        coordinator.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.destroy()


def _preloaded(build: Build) -> dict[str, str]:
    """As in the process that the coordinator is forked from: torch finds the libraries that it is linked against."""
    return {"LD_PRELOAD": ":".join(map(str, build.libraries))}


# ---- a life ----


def test_the_coordinator_reports_joins_collectives_and_the_end(
    start: Callable[..., Coordinator], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    coordinator = start("--world-size", "2", "--no-store")
    ready = coordinator.report("coordinator")
    assert ready["pid"] == coordinator.process.pid
    assert ready["store_port"] is None
    assert psutil.Process(ready["pid"]).name() == "maya-coord"
    ranks = [Rank(context, ready["endpoint"], rank) for rank in range(2)]
    for member, rank in enumerate(ranks):
        rank.send(join(member, b"key", member, 2))
    joined = [rank.receive()[0][0] for rank in ranks]
    for rank, answer in zip(ranks, joined, strict=True):
        assert isinstance(answer, Joined)
        rank.send(Alive(3), post(answer.communicator, 0))
    for rank in ranks:
        rank.receive()
    ranks[0].send(Alive(4))
    ranks[0].send(Bye())
    coordinator.tell(b'{"exited": {"rank": 0, "status": 0}}\n')
    while (progress := coordinator.report("progress"))["ended"] < 1:
        assert 0 <= progress["joined"] <= 2
    assert progress == {"joined": 2, "ended": 1, "steps": 3, "messages": 8, "posts": 2}
    assert coordinator.end() == 0
    done = coordinator.report("coordinator_done")
    assert {**done, "bytes": 0, "cpu_seconds": 0} == {
        **{"messages": 8 + 6, "bytes": 0, "posts": 2, "collectives": 1, "communicators": 1, "ignored": 0},
        "cpu_seconds": 0,
    }
    assert done["bytes"] > 100
    assert done["cpu_seconds"] > 0


def test_the_control_pipe_tells_the_ends_of_ranks(
    start: Callable[..., Coordinator], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    coordinator = start("--world-size", "4", "--no-store")
    endpoint = coordinator.report("coordinator")["endpoint"]
    Rank(context, endpoint, 2).socket.close()
    coordinator.tell(b'{"exited": {"rank": 2, "status": -9}}\n{"exited": {"rank"')
    while coordinator.report("progress")["ended"] < 1:
        pass
    for nonsense in (b': 77, "status": 0}}\n', b"\n\xff\n[]\n", b'{"exited": {"rank": -1}}\n', b'{"exited": 1}\n'):
        coordinator.tell(nonsense)
    coordinator.tell(b'{"exited": {"rank": 3, "status": 0}}\n')
    while (progress := coordinator.report("progress"))["ended"] < 2:
        pass
    assert progress["ended"] == 2
    assert progress["joined"] == 1
    assert coordinator.end() == 0


def test_the_coordinator_reports_which_ranks_wait_for_which(
    start: Callable[..., Coordinator], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    coordinator = start("--world-size", "64", "--no-store")
    endpoint = coordinator.report("coordinator")["endpoint"]
    ranks = [Rank(context, endpoint, rank) for rank in range(64)]
    for member, rank in enumerate(ranks):
        rank.send(join(member, b"key", member, 64))
    for rank in ranks:
        rank.receive()
    for rank in ranks[1:]:
        rank.send(post(1, 0))
    for rank in ranks[1:]:
        rank.send(post(1, 0, call=Call.RECEIVE, peer=0))
    waiting: dict[str, Any] = {}
    while not waiting or len(waiting["waits"]) + waiting["more"] < 64:
        coordinator.tell(b'{"describe": true}\n')
        waiting = coordinator.report("waiting")
    assert waiting["waits"][0] == "ranks 1-63 wait for rank 0: all_reduce of 1 fp32 sum (0 on communicator 1)"
    assert waiting["waits"][1].endswith("waits for rank 0: receive of 1 fp32 from rank 0 (0 on communicator 1)")
    assert waiting["more"] > 0  # 64 are more than a line holds
    assert waiting["silent"] == ""
    assert coordinator.end() == 0


def test_the_coordinator_outlives_its_control_pipe(
    start: Callable[..., Coordinator], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    coordinator = start("--world-size", "1", "--no-store")
    endpoint = coordinator.report("coordinator")["endpoint"]
    assert coordinator.process.stdin is not None
    coordinator.process.stdin.close()
    Rank(context, endpoint, 0)
    assert coordinator.end() == 0
    coordinator.process.stdin = None


def test_the_coordinator_ignores_ctrl_c(
    start: Callable[..., Coordinator], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    coordinator = start("--world-size", "1", "--no-store")
    endpoint = coordinator.report("coordinator")["endpoint"]
    for ending in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        coordinator.process.send_signal(ending)
    Rank(context, endpoint, 0)
    assert coordinator.end() == 0


def test_the_coordinator_goes_on_without_a_reader_of_its_reports(
    start: Callable[..., Coordinator], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    coordinator = start("--world-size", "2", "--no-store")
    endpoint = coordinator.report("coordinator")["endpoint"]
    assert coordinator.process.stdout is not None
    coordinator.process.stdout.close()
    Rank(context, endpoint, 0)
    Rank(context, endpoint, 1)
    assert coordinator.end() == 0
    coordinator.process.stdout = None


def test_the_coordinator_ends_with_its_parent(tmp_path: Path) -> None:
    """A parent that forks a coordinator, as the launcher's zygote does, and is killed."""
    script = """
        import os, time
        from coordinator.process import Settings, run
        parent = os.getpid()
        if os.fork() == 0:
            os._exit(run(Settings(1, "secret", store_port=None), report_fd=1, parent=parent))
        time.sleep(1000)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        coordinator = psutil.Process(json.loads(parent.stdout.readline())["coordinator"]["pid"])
        parent.kill()
        assert "coordinator_done" in parent.stdout.readlines()[-1].decode()
    finally:
        parent.kill()
        parent.communicate()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while coordinator.is_running() and coordinator.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---- the store ----

_STORE_CLIENT = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
store.set("key", "value of " + sys.argv[2])
store.add("number", 3)
print(store.get("key").decode(), store.add("number", 1))
"""


def test_the_coordinator_hosts_the_store(build: Build, start: Callable[..., Coordinator]) -> None:
    environment = _preloaded(build)
    coordinator = start("--world-size", "2", environment=environment)
    port = coordinator.report("coordinator")["store_port"]
    answer = subprocess.run(
        [sys.executable, "-c", _STORE_CLIENT, str(port), "a rank"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert answer.stdout == "value of a rank 4\n"
    connections = psutil.Process(coordinator.process.pid).net_connections()
    assert {connection.laddr.ip for connection in connections if connection.status == "LISTEN"} == {"127.0.0.1"}
    assert coordinator.end() == 0


def test_a_port_in_use_is_one_clear_error(build: Build, start: Callable[..., Coordinator]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        coordinator = start("--world-size", "2", "--store-port", str(port), environment=_preloaded(build))
        assert coordinator.report("coordinator_failed") == (
            f"port {port} is in use: choose another with --master-port; 0 picks a free one"
        )
        assert coordinator.process.wait(PATIENCE_SECONDS) == 1


def test_an_invalid_port_is_an_error(start: Callable[..., Coordinator]) -> None:
    coordinator = start("--world-size", "2", "--store-port", "70000")
    assert coordinator.report("coordinator_failed") == "there is no port 70000: expected 0 to 65535"


def test_a_torch_that_cannot_be_imported_is_reported(start: Callable[..., Coordinator], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('broken')")
    coordinator = start("--world-size", "2", environment={"PYTHONPATH": str(tmp_path)})
    assert coordinator.report("coordinator_failed") == "the store needs torch, which cannot be imported: broken"


# ---- limits ----


def test_too_few_descriptors_are_reported_before_anything_starts(start: Callable[..., Coordinator]) -> None:
    coordinator = start("--world-size", "1024", "--no-store", files=1000)
    assert coordinator.report("coordinator_failed") == (
        "1024 ranks need 2112 open files in the coordinator, but the limit is 1000: "
        "raise it (ulimit -Hn 2112, or LimitNOFILE= of the service), or use fewer ranks"
    )
    assert coordinator.process.wait(PATIENCE_SECONDS) == 1


def test_the_soft_limit_of_descriptors_is_raised(
    start: Callable[..., Coordinator], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    coordinator = start("--world-size", "100", "--no-store", files=400)
    endpoint = coordinator.report("coordinator")["endpoint"]
    for rank in range(100):
        Rank(context, endpoint, rank)
    assert coordinator.end() == 0
