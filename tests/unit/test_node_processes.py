"""Ranks on other machines: what the coordinator learns from node agents, and what it makes of nodes that say nothing.

The nodes are threads of the test with sockets of their own, the ranks real processes.
"""

from __future__ import annotations

import json
import linecache
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from helpers.answering_rank import answering_rank, listening_coordinator

from coordinator.hangs.deadlock import Condition
from coordinator.hangs.node_processes import NodeProcesses
from coordinator.hangs.processes import Connections, Doing, Pulse, doing, doing_of_main
from coordinator.hangs.question_messages import NodeAnswer, pack_answer, unpack_question
from coordinator.hangs.rank_processes import LocalProcesses
from coordinator.hangs.watcher import Watcher, WatcherSettings
from coordinator.node_agent.rank_questions import RankQuestions
from coordinator.server import Server
from maya.nodes.curve_sockets import connect_with_keys
from maya.nodes.run_keys import RunKeys

KEYS = RunKeys.make()
WAITS = "import threading\nlock = threading.Lock(); lock.acquire()\nlock.acquire(timeout=1000)  # barrier()\n"
RUNS = "while True: pass\n"
LOCKS = """
import fcntl, sys
a, b = open(sys.argv[3]), open(sys.argv[3])
fcntl.flock(a, fcntl.LOCK_EX)
fcntl.flock(b, fcntl.LOCK_EX)
"""
SECONDS = 20.0


class CountedProcesses(NodeProcesses):
    """Counts polls."""

    polls = 0

    def pulses(self, ranks: Iterable[int]) -> dict[int, Pulse | None]:
        self.polls += 1
        return super().pulses(ranks)


class Asking:
    """The coordinator's side."""

    def __init__(self) -> None:
        self.server = Server(4, "0123456789abcdef", "tcp://127.0.0.1:*", keys=KEYS)
        self.processes = CountedProcesses(self.server.context, KEYS, "tcp://127.0.0.1:*", self.server.turn, 1.0)

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline
            self.server.turn()
            time.sleep(0.01)

    def wait_for(self, *ranks: int) -> None:
        """Until the nodes of these ranks answer."""
        self.until(lambda: self.processes.pulses(ranks).keys() == set(ranks))

    def wait_until_blocked(self, rank: int) -> None:
        def is_blocked() -> bool:
            before = self.processes.pulses([rank])[rank]
            time.sleep(0.2)
            return doing_of_main(before, self.processes.pulses([rank])[rank]) is Doing.BLOCKED

        self.until(is_blocked)

    def watch(self, watcher: Watcher, polls: int) -> None:
        """Some polls, of which none has anything to report."""
        until = self.processes.polls + polls
        while self.processes.polls < until:
            self.server.turn()
            assert watcher.poll() is None
            time.sleep(0.02)

    def close(self) -> None:
        self.processes.close()
        self.server.close()


@pytest.fixture
def asking() -> Iterator[Asking]:
    asking = Asking()
    yield asking
    asking.close()


@contextmanager
def node(asking: Asking, name: str, ranks: dict[int, int], coordinator: str) -> Iterator[RankQuestions]:
    """A node that answers. `ranks`: their process ids."""
    questions = RankQuestions(asking.processes.endpoint, KEYS.for_clients(), name, coordinator)
    for rank, process in ranks.items():
        questions.started(rank, process)
        asking.processes.started(rank, process, name)
    questions.start()
    try:
        yield questions
    finally:
        questions.close()


_SEPARATE = """
import json, sys
from coordinator.node_agent.rank_questions import RankQuestions
from maya.nodes.run_keys import RunKeys
settings = json.loads(sys.stdin.readline())
questions = RankQuestions(settings["endpoint"], RunKeys.from_json(settings["keys"]), settings["node"], settings["to"])
for rank, process in settings["ranks"]:
    questions.started(rank, process)
questions.start()
sys.stdin.read()
questions.close()
"""


@contextmanager
def separate_node(
    asking: Asking, name: str, ranks: dict[int, int], coordinator: str, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A node that answers from a process of its own, with another working folder."""
    command = [sys.executable, "-c", _SEPARATE]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=folder, env=environment) as process:
        settings = {"endpoint": asking.processes.endpoint, "keys": KEYS.for_clients().as_json(), "node": name}
        assert process.stdin is not None
        process.stdin.write(json.dumps({**settings, "to": coordinator, "ranks": list(ranks.items())}).encode() + b"\n")
        process.stdin.flush()
        for rank, of_rank in ranks.items():
            asking.processes.started(rank, of_rank, name)
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait()


@contextmanager
def peer(asking: Asking, name: str, keys: RunKeys | None = KEYS) -> Iterator[zmq.Socket[bytes]]:
    """Somebody who connects as a node, and is not one."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IDENTITY, name.encode())
        if keys is not None:
            connect_with_keys(socket, keys.for_clients())
        socket.connect(asking.processes.endpoint)
        yield socket


@pytest.fixture
def coordinator() -> Iterator[str]:
    with listening_coordinator() as endpoint:
        yield endpoint


# ---- nodes that answer ----


def test_ranks_of_two_nodes_are_seen_as_on_this_machine(asking: Asking, coordinator: str, tmp_path: Path) -> None:
    local = LocalProcesses(coordinator)
    with (
        answering_rank(tmp_path, WAITS, coordinator, file="waits.py") as waits,
        answering_rank(tmp_path, RUNS, coordinator, file="runs.py") as runs,
        node(asking, "node-a", {0: waits}, coordinator),
        node(asking, "node-b", {1: runs}, coordinator),
    ):
        for rank, process in ((0, waits), (1, runs)):
            local.started(rank, process)
        asking.wait_for(0, 1)
        asking.wait_until_blocked(0)
        remote = asking.processes
        pulses, samples = remote.pulses([0, 1]), remote.samples([0, 1])
        time.sleep(0.2)
        later = remote.pulses([0, 1])
        assert doing_of_main(pulses[0], later[0]) is Doing.BLOCKED
        assert doing_of_main(pulses[1], later[1]) is Doing.RUNS
        assert doing(samples[0], remote.samples([0])[0]) is Doing.BLOCKED
        assert remote.stacks([0, 1]).keys() == {0, 1}
        assert remote.stacks([0]) == local.stacks([0])
        assert remote.values([0]) == local.values([0])
        assert remote.inspect({0: False}, None) == local.inspect({0: False}, None)
        assert remote.inspect({0: False}, None)[0].condition is Condition.OTHER_RANKS
        assert (remote.node_of(0), remote.node_of(1), local.node_of(0)) == ("node-a", "node-b", "")
        assert not remote.problems()


def test_a_file_lock_and_its_holder_are_found_on_the_node(asking: Asking, coordinator: str, tmp_path: Path) -> None:
    with answering_rank(tmp_path, LOCKS, coordinator) as rank, node(asking, "node-a", {3: rank}, coordinator):
        asking.wait_for(3)
        asking.until(lambda: asking.processes.locks([3]) == {3: f"{tmp_path}/train.py, held by rank 3"})


def test_flight_recorders_are_written_on_this_machine(asking: Asking, coordinator: str, tmp_path: Path) -> None:
    with answering_rank(tmp_path, WAITS, coordinator) as rank, node(asking, "node-a", {3: rank}, coordinator):
        asking.wait_for(3)
        assert asking.processes.dump_recorders([3], f"{tmp_path}/rank_")
        assert (tmp_path / "rank_3").read_bytes() == b"a recorder"


def test_ranks_are_stopped_for_a_debugger(asking: Asking, coordinator: str, tmp_path: Path) -> None:
    with answering_rank(tmp_path, RUNS, coordinator) as rank, node(asking, "node-a", {3: rank}, coordinator):
        asking.wait_for(3)
        asking.processes.stop([3])
        stat = Path(f"/proc/{rank}/stat")
        asking.until(lambda: stat.read_text().rpartition(") ")[2][0] == "T")


def test_the_end_of_a_process_is_seen_before_it_is_reported(asking: Asking, coordinator: str, tmp_path: Path) -> None:
    with answering_rank(tmp_path, WAITS, coordinator) as rank, node(asking, "node-a", {3: rank}, coordinator):
        asking.wait_for(3)
        os.killpg(rank, signal.SIGKILL)
        os.waitpid(rank, 0)
        assert asking.processes.pulses([3]) == {3: None}


def test_source_lines_come_from_the_node(asking: Asking, coordinator: str, tmp_path: Path) -> None:
    """A relative path means a file to the node, and none here."""
    with (
        answering_rank(tmp_path, WAITS, coordinator, file="of_node.py", relative=True) as rank,
        separate_node(asking, "node-a", {3: rank}, coordinator, tmp_path),
    ):
        asking.wait_for(3)
        stacks = asking.processes.stacks([3])[3]
        assert not Path(stacks.main[0].file).exists()
        assert stacks.main[0].source == "lock.acquire(timeout=1000)  # barrier()"
    linecache.cache.pop("of_node.py")


# ---- data on its way ----


def test_a_rank_whose_data_has_not_arrived_may_unblock_others(asking: Asking, tmp_path: Path) -> None:
    """Its connection to another rank is full; otherwise it waits as a stuck rank does."""
    sends = """
import socket, threading
other = socket.socketpair(socket.AF_UNIX)
peer = socket.create_connection(("127.0.0.1", PORT))
peer.setblocking(False)
try:
    while True:
        peer.send(bytes(1 << 16))
except BlockingIOError:
    pass
lock = threading.Lock(); lock.acquire()
lock.acquire(timeout=1000)  # barrier()
"""
    with listening_coordinator() as coordinator, socket.create_server(("127.0.0.1", 0)) as receiver:
        code = sends.replace("PORT", str(receiver.getsockname()[1]))
        with answering_rank(tmp_path, code, coordinator) as rank, node(asking, "node-a", {3: rank}, coordinator):
            asking.wait_for(3)
            asking.wait_until_blocked(3)
            assert asking.processes.inspect({3: False}, None)[3].condition is Condition.FREE
            peer, _ = receiver.accept()
            with peer:
                while not Connections(os.getpid()).are_idle(rank):
                    peer.recv(1 << 20)
                assert asking.processes.inspect({3: False}, None)[3].condition is Condition.OTHER_RANKS


def test_a_rank_without_communicators_can_be_stuck(asking: Asking, tmp_path: Path) -> None:
    """It has no connection to the coordinator yet."""
    with (
        listening_coordinator() as coordinator,
        answering_rank(tmp_path, WAITS, coordinator, connects=False) as rank,
        node(asking, "node-a", {3: rank}, coordinator),
    ):
        asking.wait_for(3)
        asking.wait_until_blocked(3)
        asking.until(lambda: asking.processes.inspect({3: False}, None)[3].condition is Condition.OTHER_RANKS)


# ---- nodes that do not answer ----


def test_a_node_that_dies_says_nothing_about_its_ranks(asking: Asking, coordinator: str, tmp_path: Path) -> None:
    with (
        answering_rank(tmp_path, WAITS, coordinator) as rank,
        node(asking, "node-a", {0: rank}, coordinator),
        separate_node(asking, "node-b", {1: rank}, coordinator, tmp_path) as process,
    ):
        asking.wait_for(0, 1)
        process.kill()
        process.wait()
        for _ in range(2):
            assert asking.processes.pulses([0, 1]).keys() == {0}
            assert asking.processes.inspect({0: False, 1: False}, None).keys() == {0}
        asking.processes.stop([1])
        assert asking.processes.dump_recorders([0, 1], f"{tmp_path}/rank_")
        assert not (tmp_path / "rank_1").exists()


def test_a_silent_node_is_not_waited_for_until_it_answers_again(
    asking: Asking, coordinator: str, tmp_path: Path
) -> None:
    """Ranks are served while the others wait for it, and its late answer is not taken for a new one."""
    with (
        answering_rank(tmp_path, WAITS, coordinator) as rank,
        node(asking, "node-a", {0: rank}, coordinator),
        peer(asking, "node-b") as silent,
    ):
        asking.processes.started(1, 1, "node-b")
        asking.wait_for(0)
        asking.until(lambda: asking.processes.pulses([1]) or silent.poll(0))
        assert asking.processes.pulses([0, 1]).keys() == {0}
        assert asking.processes.problems() == [
            "node-b does not answer the coordinator (no answer within 1 s), so its ranks count as running"
        ]
        asked = []
        while silent.poll(200):
            asked.append(unpack_question(silent.recv()))
        late = asked[-1]
        silent.send(pack_answer(NodeAnswer(late.number, {1: None})))
        asking.until(lambda: not asking.processes.problems() or asking.processes.pulses([0]) == {})
        assert not asking.processes.problems()

        def answer() -> None:
            while silent.poll(5000):
                question = unpack_question(silent.recv())
                silent.send(pack_answer(NodeAnswer(late.number, {1: None})))  # once more: ignored
                silent.send(pack_answer(NodeAnswer(question.number, {1: None})))
                return

        thread = threading.Thread(target=answer)
        thread.start()
        assert asking.processes.pulses([1]) == {1: None}
        thread.join()


GARBAGE = {
    "noise": [os.urandom(100)],
    "nothing": [b""],
    "several frames": [b"a", b"b"],
    "no version": [b"\xc0"],
    "deep": [b"\x91" * 5000],
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_node_that_answers_garbage_is_not_believed(asking: Asking, garbage: str) -> None:
    with peer(asking, "node-b") as odd:
        asking.processes.started(1, 1, "node-b")

        def answer() -> None:
            while odd.poll(5000):
                if b"pulses" in odd.recv():
                    odd.send_multipart(GARBAGE[garbage])
                    return

        thread = threading.Thread(target=answer)
        thread.start()
        asking.until(lambda: asking.processes.pulses([1]) or asking.processes.problems())
        thread.join()
        (problem,) = asking.processes.problems()
        assert "a message " in problem


def test_a_node_speaks_only_for_its_own_ranks(asking: Asking) -> None:
    with peer(asking, "node-b") as odd:
        asking.processes.started(0, 1, "node-a")
        asking.processes.started(1, 1, "node-b")

        def answer() -> None:
            while odd.poll(5000):
                question = unpack_question(odd.recv())
                odd.send(pack_answer(NodeAnswer(question.number, {0: None, 1: None})))
                return

        thread = threading.Thread(target=answer)
        thread.start()
        found: dict[int, object] = {}
        asking.until(lambda: found.update(asking.processes.pulses([0, 1])) or found)
        thread.join()
        assert found == {1: None}


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(None, id="no keys"),
        pytest.param(RunKeys.make(), id="keys of another run"),
        pytest.param(replace(RunKeys.make(), server_public=KEYS.server_public), id="another client's key"),
    ],
)
def test_foreign_clients_are_not_heard_and_take_no_place(
    asking: Asking, coordinator: str, tmp_path: Path, keys: RunKeys | None
) -> None:
    with (
        answering_rank(tmp_path, WAITS, coordinator) as rank,
        node(asking, "node-a", {0: rank}, coordinator),
        peer(asking, "node-a", keys) as same,
        peer(asking, "node-b", keys) as other,
    ):
        asking.processes.started(1, 1, "node-b")
        asking.wait_for(0)
        for number in range(20):
            for each in (same, other):
                with suppress(zmq.Again):
                    each.send(pack_answer(NodeAnswer(number, {0: None, 1: None})), zmq.NOBLOCK)
            (pulse,) = asking.processes.pulses([0, 1]).values()
            assert pulse is not None
        assert not same.poll(0)
        assert not other.poll(0)


def test_ranks_of_a_silent_node_are_never_accused(asking: Asking, coordinator: str, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    settings = WatcherSettings(2, folder, patience=0.2)
    with (
        answering_rank(tmp_path, WAITS, coordinator) as rank,
        node(asking, "node-a", {0: rank}, coordinator),
        peer(asking, "node-b"),
    ):
        watcher = Watcher(asking.server, settings, asking.processes)
        watcher.started(0, rank, "node-a")
        watcher.started(1, rank, "node-b")
        asking.wait_for(0)
        asking.until(lambda: asking.processes.pulses([0, 1]) and asking.processes.problems())
        asking.watch(watcher, 3)
        with node(asking, "node-c", {1: rank}, coordinator):  # its place is taken by one that answers
            watcher.started(1, rank, "node-c")
            asking.wait_for(1)
            asking.until(watcher.poll)
    assert list(folder.glob("*.json"))


def test_a_node_that_falls_silent_for_a_while_is_no_sign_of_progress(
    asking: Asking, coordinator: str, tmp_path: Path
) -> None:
    settings = WatcherSettings(1, tmp_path, patience=0.2)
    with (
        answering_rank(tmp_path, "import time; time.sleep(1000)\n", coordinator) as rank,
        separate_node(asking, "node-a", {0: rank}, coordinator, tmp_path) as agent,
    ):
        watcher = Watcher(asking.server, settings, asking.processes)
        watcher.started(0, rank, "node-a")
        asking.wait_for(0)
        asking.until(watcher.poll)
        assert (tmp_path / "no_progress.json").is_file()
        agent.send_signal(signal.SIGSTOP)
        asking.until(lambda: asking.processes.pulses([0]) == {} and asking.processes.problems())
        asking.watch(watcher, 2)
        agent.send_signal(signal.SIGCONT)
        asking.until(lambda: asking.processes.pulses([0]))
        asking.watch(watcher, 2)
