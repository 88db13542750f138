"""The processes of ranks on other machines: asks the node agents about them, all nodes at once.

In: ranks, with their nodes; the socket's address. Out: values by rank, as from `LocalProcesses`, which answers on each
node (coordinator/node_agent/rank_questions.py). Messages: question_messages.py.

Every question has a time limit. A node that does not answer within it is silent: its ranks count as running, so nobody
is accused of a hang, and nobody waits for it until it has answered a later question. A silent node thus costs the
coordinator one time limit. While a poll waits for answers, `meanwhile` serves the ranks. It does not while a report is
made, which must describe one moment.
"""

from __future__ import annotations

import linecache
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq

from coordinator.hangs import flight_recorder, frame_values
from coordinator.hangs.deadlock import Condition
from coordinator.hangs.flight_recorder import Recorder
from coordinator.hangs.frame_values import RankValues
from coordinator.hangs.processes import Connections, Pulse, Sample
from coordinator.hangs.question_messages import (
    MOST_BYTES,
    InspectedRank,
    NodeAnswer,
    Question,
    QuestionError,
    QuestionKind,
    pack_question,
    unpack_answer,
)
from coordinator.hangs.rank_processes import RECORDER_SECONDS, VALUES_SECONDS, Inspection, stacks_seconds
from maya.hangs import python_stacks
from maya.hangs.python_stacks import Frame, Stacks
from maya.nodes.curve_sockets import serve_with_keys
from maya.nodes.run_keys import RunKeys

_NODE_SECONDS = 3.0  # for a node to answer, beyond the time that its ranks may take
_RANK_SECONDS = 0.01  # more for each rank: reading /proc takes time
_SLICE_MILLISECONDS = 10  # of waiting for answers, before ranks are served
_MOST_QUESTIONS = 64  # queued for a node that does not read; none of them is waited for
_HEARTBEAT_MILLISECONDS, _SILENT_MILLISECONDS = 2_000, 15_000
_LOOKS, _LOOK_SECONDS = 4, 0.05
_MOST_DUMPS = 16  # flight recorders in one answer of a node
_MOST_FILES = 64  # of source code in one answer
_POLLS = (QuestionKind.PULSES, QuestionKind.SAMPLES, QuestionKind.INSPECT)


class NodeProcessesError(Exception):
    """The socket cannot be opened."""


class NodeProcesses:
    """The processes of ranks on several machines."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: RunKeys,
        endpoint: str,
        meanwhile: Callable[[], object],
        node_seconds: float = _NODE_SECONDS,
    ) -> None:
        """`context`: one whose clients are authenticated while `meanwhile` and the coordinator's loop run. `endpoint`:
        where to listen, `tcp://ADDRESS:*`."""
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.ROUTER_HANDOVER, 1)  # a node that has lost its connection makes another one
        self._socket.set(zmq.SNDHWM, _MOST_QUESTIONS)
        self._socket.set(zmq.MAXMSGSIZE, MOST_BYTES)
        self._socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MILLISECONDS)
        self._socket.set(zmq.HEARTBEAT_TIMEOUT, _SILENT_MILLISECONDS)
        self._socket.set(zmq.HANDSHAKE_IVL, 0)
        self._socket.set(zmq.IPV6, int("[" in endpoint))
        serve_with_keys(self._socket, keys)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise NodeProcessesError(f"the coordinator cannot listen at {endpoint}: {error.strerror}") from None
        self.endpoint = self._socket.get_string(zmq.LAST_ENDPOINT)
        self.silent: dict[str, str] = {}  # nodes that have not answered, and why
        self._meanwhile = meanwhile
        self._node_seconds = node_seconds
        self._node_of: dict[int, str] = {}
        self._number = 0
        self._known_files: set[str] = set()

    def close(self) -> None:
        self._socket.close()

    # ---- RankProcesses ----

    def started(self, rank: int, process: int, node: str) -> None:
        self._node_of[rank] = node

    def exited(self, rank: int) -> None:
        pass

    def node_of(self, rank: int) -> str:
        return self._node_of.get(rank, "")

    def pulses(self, ranks: Iterable[int]) -> dict[int, Pulse | None]:
        return self._ask(QuestionKind.PULSES, ranks)

    def samples(self, ranks: Iterable[int]) -> dict[int, Sample | None]:
        return self._ask(QuestionKind.SAMPLES, ranks)

    def inspect(self, blocked: Mapping[int, bool], store_port: int | None) -> dict[int, Inspection]:
        form = Question(
            0, QuestionKind.INSPECT, blocked=frozenset(rank for rank in blocked if blocked[rank]), store_port=store_port
        )
        found: dict[int, InspectedRank] = self._ask(form, blocked, stacks_seconds(self._most_of_a_node(blocked)))
        inspected = {rank: Inspection(python_stacks.parse(each.answer), each.condition) for rank, each in found.items()}
        self._learn_sources({rank: _frames(each.stacks) for rank, each in inspected.items()})
        if store_port is not None and _store_answers(store_port):
            inspected = {
                rank: replace(each, condition=Condition.FREE) if each.condition is Condition.OTHER_RANKS else each
                for rank, each in inspected.items()
            }
        return inspected

    def stacks(self, ranks: Iterable[int]) -> dict[int, Stacks]:
        ranks = list(ranks)
        answers = self._ask(QuestionKind.STACKS, ranks, stacks_seconds(self._most_of_a_node(ranks)))
        stacks = {rank: python_stacks.parse(answer) for rank, answer in answers.items()}
        self._learn_sources({rank: _frames(each) for rank, each in stacks.items()})
        return stacks

    def in_store(self, ranks: Iterable[int], store_port: int | None) -> set[int]:
        found = self._ask(Question(0, QuestionKind.IN_STORE, store_port=store_port), ranks)
        return {rank for rank, is_in_store in found.items() if is_in_store}

    def locks(self, ranks: Iterable[int]) -> dict[int, str]:
        return self._ask(QuestionKind.LOCKS, ranks)

    def values(self, ranks: Iterable[int]) -> dict[int, RankValues]:
        answers = self._ask(QuestionKind.VALUES, ranks, VALUES_SECONDS)
        return {rank: frame_values.parse(rank, answer) for rank, answer in answers.items()}

    def recorders(self, ranks: Iterable[int]) -> dict[int, Recorder]:
        answers = self._ask(QuestionKind.RECORDERS, ranks, RECORDER_SECONDS)
        recorders = {rank: flight_recorder.parse(answer) for rank, answer in answers.items()}
        self._learn_sources({rank: _recorded_frames(each) for rank, each in recorders.items()})
        return recorders

    def dump_recorders(self, ranks: Iterable[int], prefix: str) -> bool:
        """The ranks' files would be on their machines, so their answers are written here."""
        left, written = sorted(ranks), False
        while left:
            some, left = left[:_MOST_DUMPS], left[_MOST_DUMPS:]
            for rank, answer in self._ask(QuestionKind.RECORDERS, some, RECORDER_SECONDS).items():
                if answer:
                    try:
                        Path(f"{prefix}{rank}").write_bytes(answer)
                    except OSError:  # a full disk
                        return written
                    written = True
        return written

    def stop(self, ranks: Iterable[int]) -> None:
        self._ask(QuestionKind.STOP, ranks)

    def problems(self) -> list[str]:
        return [
            f"{node} does not answer the coordinator ({reason}), so its ranks count as running"
            for node, reason in sorted(self.silent.items())
        ]

    # ---- questions ----

    def _ask(self, form: QuestionKind | Question, ranks: Iterable[int], seconds: float = 0.0) -> dict[int, Any]:
        """The contents of the nodes' answers by rank. `seconds`: how long ranks may take to answer on their node."""
        asked: dict[str, list[int]] = {}
        for rank in ranks:
            asked.setdefault(self.node_of(rank), []).append(rank)
        question = Question(0, form) if isinstance(form, QuestionKind) else form
        questions = {
            node: replace(question, ranks=tuple(its), blocked=question.blocked.intersection(its))
            for node, its in asked.items()
            if node
        }
        found: dict[int, Any] = {}
        limit = seconds + self._node_seconds + _RANK_SECONDS * max(map(len, asked.values()), default=0)
        for node, answer in self._answers(questions, limit).items():
            found.update((rank, answer.ranks[rank]) for rank in asked[node] if rank in answer.ranks)
        return found

    def _answers(self, questions: Mapping[str, Question], seconds: float) -> dict[str, NodeAnswer]:
        """The answers by node; of different nodes at the same time."""
        self._number += 1
        self._receive({})  # late answers: their nodes are not silent any more
        waiting: dict[str, Question] = {}
        for node, question in questions.items():
            is_sent = self._send(node, replace(question, number=self._number))
            if is_sent and node not in self.silent:
                waiting[node] = replace(question, number=self._number)
        serves = any(question.kind in _POLLS for question in questions.values())
        answers: dict[str, NodeAnswer] = {}
        deadline = time.monotonic() + seconds
        while waiting and time.monotonic() < deadline:
            if self._socket.poll(_SLICE_MILLISECONDS):
                answers |= self._receive(waiting)
            if serves:
                self._meanwhile()
        for node in waiting:
            self.silent[node] = f"no answer within {seconds:.0f} s"
        return answers

    def _send(self, node: str, question: Question) -> bool:
        try:
            self._socket.send_multipart([node.encode(), pack_question(question)], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # it is not connected, or its queue is full
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def _receive(self, waiting: dict[str, Question]) -> dict[str, NodeAnswer]:
        """The answers that have arrived, of nodes that are waited for; these are not waited for any more."""
        answers: dict[str, NodeAnswer] = {}
        while self._socket.poll(0):
            identity, *content = self._socket.recv_multipart()
            node = identity.decode(errors="replace")
            question = waiting.get(node)
            asked = {question.number: question.kind} if question is not None else {}
            try:
                answer = unpack_answer(b"".join(content), asked)
            except QuestionError as error:
                answer = NodeAnswer(0, problem=str(error))
            if answer.problem:
                self.silent[node] = answer.problem
                waiting.pop(node, None)
                continue
            self.silent.pop(node, None)
            if question is not None and answer.number in asked:
                answers[node] = answer
                del waiting[node]
        return answers

    def _most_of_a_node(self, ranks: Iterable[int]) -> int:
        return max(Counter(map(self.node_of, ranks)).values(), default=0)

    # ---- sources ----

    def _learn_sources(self, frames_of: Mapping[int, Iterable[Frame]]) -> None:
        """Fetch source files that only the nodes have, so that reports can quote them (linecache)."""
        wanted: dict[str, list[str]] = {}
        for rank, frames in frames_of.items():
            for file in {frame.file: None for frame in frames}:
                if file not in self._known_files:
                    self._known_files.add(file)
                    if file.endswith(".py") and not Path(file).exists():
                        wanted.setdefault(self.node_of(rank), []).append(file)
        if not wanted:
            return
        questions = {
            node: Question(0, QuestionKind.SOURCES, files=tuple(files[:_MOST_FILES])) for node, files in wanted.items()
        }
        for answer in self._answers(questions, self._node_seconds).values():
            for file, text in answer.sources.items():
                linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def _frames(stacks: Stacks) -> Iterator[Frame]:
    yield from stacks.main
    for thread in stacks.others:
        yield from thread.frames


def _recorded_frames(recorder: Recorder) -> Iterator[Frame]:
    for entry in recorder.entries:
        yield from entry.frames


def _store_answers(port: int) -> bool:
    """Whether answers of the store are on their way: what it sends is usually confirmed at once."""
    for _ in range(_LOOKS):
        if not Connections(os.getpid()).any_unsent(port):
            return False
        time.sleep(_LOOK_SECONDS)
    return True
