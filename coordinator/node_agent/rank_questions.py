"""Answers the coordinator's questions about the ranks of this machine: what they do, wait for, and have to say.

In: the ranks' processes as they start and end, and questions over a socket that connects to the coordinator
(coordinator/hangs/question_messages.py). Out: answers, from `LocalProcesses`. A thread of its own waits for questions,
because an answer may take seconds; the agent goes on meanwhile.

The coordinator has one question at a time for a node. If several have arrived, the older ones are not waited for any
more, and only the newest is answered; ranks are stopped in any case.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from coordinator.hangs.question_messages import (
    MOST_BYTES,
    InspectedRank,
    NodeAnswer,
    Question,
    QuestionError,
    QuestionKind,
    pack_answer,
    unpack_question,
)
from coordinator.hangs.rank_processes import LocalProcesses
from maya.nodes.curve_sockets import connect_with_keys
from maya.nodes.run_keys import RunKeys

_HEARTBEAT_MILLISECONDS = 2_000
_SILENT_MILLISECONDS = 15_000  # then the connection counts as broken, and is made anew
_END_SECONDS = 1.0  # for the answer that is being made; it is not waited for longer
_LARGEST_SOURCE = 1 << 20  # bytes


class RankQuestions:
    """The answering side of one node, for one coordinator."""

    def __init__(self, endpoint: str, keys: RunKeys, node: str, coordinator_endpoint: str) -> None:
        """`endpoint`: where the coordinator asks. `coordinator_endpoint`: the one that the ranks connect to."""
        self._endpoint = endpoint
        self._keys = keys
        self._node = node
        self._processes = LocalProcesses(coordinator_endpoint)
        self._changes: queue.SimpleQueue[tuple[int, int | None]] = queue.SimpleQueue()  # rank, process or its end
        self._context = zmq.Context()
        self._ending = self._context.socket(zmq.PAIR)
        self._ended = f"inproc://ending-{id(self)}"
        self._ending.bind(self._ended)
        self._thread = threading.Thread(target=self._run, name="maya-questions", daemon=True)

    def started(self, rank: int, process: int) -> None:
        self._changes.put((rank, process))

    def exited(self, rank: int) -> None:
        self._changes.put((rank, None))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread. It may be in the middle of a question; then it ends when that is answered."""
        if self._thread.is_alive():
            self._ending.send(b"")
            self._thread.join(_END_SECONDS)
        self._ending.close(linger=0)
        if not self._thread.is_alive():
            self._context.term()

    # ---- the thread ----

    def _run(self) -> None:
        with self._context.socket(zmq.PAIR) as ending, self._context.socket(zmq.DEALER) as socket:
            ending.connect(self._ended)
            socket.set(zmq.IDENTITY, self._node.encode())
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.MAXMSGSIZE, MOST_BYTES)
            socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MILLISECONDS)
            socket.set(zmq.HEARTBEAT_TIMEOUT, _SILENT_MILLISECONDS)
            socket.set(zmq.HANDSHAKE_IVL, _SILENT_MILLISECONDS)
            socket.set(zmq.RECONNECT_IVL_MAX, _HEARTBEAT_MILLISECONDS)
            socket.set(zmq.IPV6, int("[" in self._endpoint))
            connect_with_keys(socket, self._keys)
            socket.connect(self._endpoint)
            poller = zmq.Poller()
            poller.register(socket, zmq.POLLIN)
            poller.register(ending, zmq.POLLIN)
            while True:
                ready = dict(poller.poll())
                if ending in ready:
                    return
                for answer in self._answers(_received(socket)):
                    with suppress(zmq.Again):  # the coordinator is away, and does not wait
                        socket.send(pack_answer(answer), zmq.NOBLOCK)

    def _answers(self, messages: list[bytes]) -> list[NodeAnswer]:
        questions = []
        for message in messages:
            try:
                questions.append(unpack_question(message))
            except QuestionError as error:
                return [NodeAnswer(0, problem=str(error))]
        asked = [question for question in questions[:-1] if question.kind is QuestionKind.STOP] + questions[-1:]
        return [self._answer(question) for question in asked]

    def _answer(self, question: Question) -> NodeAnswer:
        with suppress(queue.Empty):
            while True:
                rank, process = self._changes.get_nowait()
                if process is None:
                    self._processes.exited(rank)
                else:
                    self._processes.started(rank, process)
        if question.kind is QuestionKind.SOURCES:
            found = {file: text for file in question.files if (text := _source(file)) is not None}
            return NodeAnswer(question.number, sources=found)
        try:
            return NodeAnswer(question.number, self._contents(question))
        except Exception as error:  # a process may end at any moment, and descriptors may run out; the thread goes on
            return NodeAnswer(question.number, problem=f"{type(error).__name__}: {error}")

    def _contents(self, question: Question) -> dict[int, Any]:
        processes, ranks, port = self._processes, question.ranks, question.store_port
        match question.kind:
            case QuestionKind.PULSES:
                return dict(processes.pulses(ranks))
            case QuestionKind.SAMPLES:
                return dict(processes.samples(ranks))
            case QuestionKind.INSPECT:
                blocked = {rank: rank in question.blocked for rank in ranks}
                inspected = processes.inspect_answers(blocked, port)
                return {rank: InspectedRank(answer, found.condition) for rank, (answer, found) in inspected.items()}
            case QuestionKind.STACKS:
                return dict(processes.stack_answers(ranks))
            case QuestionKind.VALUES:
                return dict(processes.value_answers(ranks))
            case QuestionKind.RECORDERS:
                return dict(processes.recorder_answers(ranks))
            case QuestionKind.IN_STORE:
                return dict.fromkeys(processes.in_store(ranks, port), True)
            case QuestionKind.LOCKS:
                return dict(processes.locks(ranks))
            case QuestionKind.STOP:
                processes.stop(ranks)
                return dict.fromkeys(ranks, True)
        return {}


def _received(socket: zmq.Socket[bytes]) -> list[bytes]:
    """The messages that have arrived."""
    messages = []
    with suppress(zmq.Again):
        while True:
            messages.append(socket.recv(zmq.NOBLOCK))
    return messages


def _source(file: str) -> str | None:
    """The text of a file of Python code; None: it is none, or cannot be read."""
    path = Path(file)
    try:
        if path.suffix != ".py" or path.stat().st_size > _LARGEST_SOURCE:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
