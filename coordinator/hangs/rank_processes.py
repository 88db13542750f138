"""The processes of the ranks, as the watcher sees them: what they do, wait for and answer.

In: ranks, many at a time. Out: values by rank. `LocalProcesses` reads /proc and asks over local sockets, so it runs on
the machine of the ranks: in the coordinator, or in a node agent on behalf of the coordinator (node_processes.py).

A rank without a value has not answered, or its node has not: nothing is known about it, and it counts as running.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from coordinator.hangs import file_locks, flight_recorder, frame_values, processes, thread_waits
from coordinator.hangs.deadlock import Condition
from coordinator.hangs.flight_recorder import Recorder
from coordinator.hangs.frame_values import RankValues
from coordinator.hangs.processes import Connections, Pulse, Sample
from maya.hangs import python_stacks
from maya.hangs.python_stacks import Stacks
from rank_runtime import introspection

VALUES_SECONDS = 5.0
RECORDER_SECONDS = 8.0  # a rank may have to load code before its first answer

_LOOKS, _LOOK_SECONDS = 4, 0.1


def stacks_seconds(count: int) -> float:
    """The time for this many ranks of one machine to answer with their stacks."""
    return 3.0 + 0.01 * count


@dataclass(frozen=True)
class Inspection:
    """A blocked rank: its stacks, and which event can unblock it."""

    stacks: Stacks
    condition: Condition


class RankProcesses(Protocol):
    """The processes of a job's ranks."""

    def started(self, rank: int, process: int, node: str) -> None:
        """The process of a rank has started. `node`: the machine; empty: this one."""

    def exited(self, rank: int) -> None:
        """The process of a rank has ended."""

    def node_of(self, rank: int) -> str:
        """The machine of a rank; empty: this one."""

    def pulses(self, ranks: Iterable[int]) -> dict[int, Pulse | None]:
        """The main threads now; None for a process that has ended. The moments are those of the rank's machine."""

    def samples(self, ranks: Iterable[int]) -> dict[int, Sample | None]:
        """All threads and children now; None for a process that has ended."""

    def inspect(self, blocked: Mapping[int, bool], store_port: int | None) -> dict[int, Inspection]:
        """Which events can unblock blocked ranks. True: the rank has posted calls that are not complete."""

    def stacks(self, ranks: Iterable[int]) -> dict[int, Stacks]:
        """The Python stacks."""

    def in_store(self, ranks: Iterable[int], store_port: int | None) -> set[int]:
        """The ranks whose main thread waits for an answer from the job's store."""

    def locks(self, ranks: Iterable[int]) -> dict[int, str]:
        """The file locks that main threads wait for, and who holds them."""

    def values(self, ranks: Iterable[int]) -> dict[int, RankValues]:
        """The values of variables."""

    def recorders(self, ranks: Iterable[int]) -> dict[int, Recorder]:
        """The flight recorders."""

    def dump_recorders(self, ranks: Iterable[int], prefix: str) -> bool:
        """Write the flight recorders to files; return whether there are any."""

    def stop(self, ranks: Iterable[int]) -> None:
        """Stop the ranks' process groups, for a debugger."""

    def problems(self) -> list[str]:
        """Why some ranks count as running although nothing is known about them."""


class LocalProcesses:
    """The processes of ranks on this machine."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: the coordinator's, as the ranks know it."""
        self._endpoint = endpoint
        self._process_of: dict[int, int] = {}

    def started(self, rank: int, process: int, node: str = "") -> None:
        self._process_of[rank] = process

    def exited(self, rank: int) -> None:
        self._process_of.pop(rank, None)

    def node_of(self, rank: int) -> str:
        return ""

    def pulses(self, ranks: Iterable[int]) -> dict[int, Pulse | None]:
        now = time.monotonic()
        return {rank: processes.pulse(process, now) for rank, process in self._of(ranks)}

    def samples(self, ranks: Iterable[int]) -> dict[int, Sample | None]:
        now, children = time.monotonic(), processes.Children()
        return {rank: processes.sample(process, now, children) for rank, process in self._of(ranks)}

    def inspect(self, blocked: Mapping[int, bool], store_port: int | None) -> dict[int, Inspection]:
        return {rank: inspection for rank, (_, inspection) in self.inspect_answers(blocked, store_port).items()}

    def inspect_answers(
        self, blocked: Mapping[int, bool], store_port: int | None
    ) -> dict[int, tuple[bytes, Inspection]]:
        """The same, with the answers of which the stacks were parsed."""
        found = {}
        answers = self.stack_answers(blocked)
        on_their_way = self._with_data_on_its_way(answers)
        for rank, answer in answers.items():
            stacks, process = python_stacks.parse(answer), self._process_of[rank]
            condition = thread_waits.condition(process, stacks, blocked[rank], store_port)
            found[rank] = answer, Inspection(stacks, Condition.FREE if rank in on_their_way else condition)
        return found

    def stacks(self, ranks: Iterable[int]) -> dict[int, Stacks]:
        return {rank: python_stacks.parse(answer) for rank, answer in self.stack_answers(ranks).items()}

    def stack_answers(self, ranks: Iterable[int]) -> dict[int, bytes]:
        ranks = list(ranks)
        return self._ask(dict.fromkeys(ranks, "stacks"), stacks_seconds(len(ranks)))

    def in_store(self, ranks: Iterable[int], store_port: int | None) -> set[int]:
        return {rank for rank, process in self._of(ranks) if thread_waits.is_in_store(process, store_port)}

    def locks(self, ranks: Iterable[int]) -> dict[int, str]:
        rank_of = {process: rank for rank, process in self._process_of.items()}
        found = {rank: file_locks.awaited_lock(process, rank_of) for rank, process in self._of(ranks)}
        return {rank: lock for rank, lock in found.items() if lock}

    def values(self, ranks: Iterable[int]) -> dict[int, RankValues]:
        return {rank: frame_values.parse(rank, answer) for rank, answer in self.value_answers(ranks).items()}

    def value_answers(self, ranks: Iterable[int]) -> dict[int, bytes]:
        return self._ask(dict.fromkeys(ranks, frame_values.QUESTION), VALUES_SECONDS)

    def recorders(self, ranks: Iterable[int]) -> dict[int, Recorder]:
        return {rank: flight_recorder.parse(answer) for rank, answer in self.recorder_answers(ranks).items()}

    def recorder_answers(self, ranks: Iterable[int]) -> dict[int, bytes]:
        return self._ask(dict.fromkeys(ranks, "recorder all"), RECORDER_SECONDS)

    def dump_recorders(self, ranks: Iterable[int], prefix: str) -> bool:
        return any(self._ask({rank: f"recorder all {prefix}{rank}" for rank in ranks}, RECORDER_SECONDS).values())

    def stop(self, ranks: Iterable[int]) -> None:
        for _, process in self._of(ranks):
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGSTOP)

    def problems(self) -> list[str]:
        return []

    def _with_data_on_its_way(self, ranks: Iterable[int]) -> set[int]:
        """The ranks that have sent something over the network which has not arrived: it may unblock other ranks.

        A blocked rank still sends heartbeats, which a machine may take a moment to confirm.
        """
        if not self._endpoint.startswith("tcp:"):
            return set()
        left = set(ranks)
        for look in range(_LOOKS):
            time.sleep(_LOOK_SECONDS if look else 0)
            connections = Connections(os.getpid())
            left = {rank for rank, process in self._of(left) if not connections.are_idle(process)}
            if not left:
                break
        return left

    def _of(self, ranks: Iterable[int]) -> list[tuple[int, int]]:
        """The ranks whose process has not ended, with their processes."""
        return [(rank, self._process_of[rank]) for rank in ranks if rank in self._process_of]

    def _ask(self, questions: Mapping[int, str], seconds: float) -> dict[int, bytes]:
        rank_of = {process: rank for rank, process in self._of(questions)}
        asked = {process: questions[rank] for process, rank in rank_of.items()}
        answers = introspection.ask(self._endpoint, asked, seconds)
        return {rank_of[process]: answer for process, answer in answers.items()}
