"""The state machine of a session: it hands the messages of every process to the state machine of its job.

In: messages of processes, which the server numbers as they connect. Out: answers to processes. Each job has a `State`
of its own, in which a process is the rank of its job. Questions about durations are answered before a process has a
place, because they do not depend on it.
"""

from __future__ import annotations

from coordinator.answers import Outgoing
from coordinator.arithmetic import Buffer
from coordinator.session.jobs import SessionJob, SessionJobs
from coordinator.state import State
from coordinator.time_model import NO_TIME_MODEL, RunTimeModel, TimeModel
from rank_runtime.messages import Alive, Ask, Join, Message, RankPlace
from rank_runtime.trace_format import RecordKind


class SessionState(State):
    """In the place of a job's state machine, with processes in the place of ranks."""

    def __init__(self, times: RunTimeModel | None, gpus_per_node: int) -> None:
        super().__init__(times or NO_TIME_MODEL)
        self._run_times = times
        self.placing = SessionJobs(gpus_per_node)
        self.state_of: dict[int, State] = {}  # by the number of the job
        self._bye: set[int] = set()  # processes that have ended regularly
        self._has_started: set[tuple[int, int]] = set()  # job, rank

    # ---- events ----

    def start(self, rank: int) -> None:
        super().start(rank)
        self.placing.connected(rank)

    def handle(self, rank: int, message: Message, payload: Buffer | None) -> list[Outgoing]:
        if type(message) is RankPlace:
            self.placing.state(rank, message)
            return []
        place = self.placing.place_of(rank)
        if place is None and (
            type(message) is Join or (type(message) is Ask and message.record == RecordKind.COLLECTIVE)
        ):  # all others that depend on a place come later
            place = self.placing.need_place(rank)
        if type(message) is Alive:
            super().handle(rank, message, payload)
        if place is None:
            return super().handle(rank, message, payload) if type(message) is Ask else []
        job, own = place
        if type(message) is Join:
            message.node = own // job.ranks_per_node  # the process may not have known it
        return self._outgoing(job, self._started(job, own).handle(own, message, payload))

    def answer_asks(self) -> list[Outgoing]:
        answers = super().answer_asks()
        for job in self.placing.jobs:
            state = self.state_of.get(job.number)
            if state is not None:
                answers += self._outgoing(job, state.answer_asks())
        return answers

    def say_bye(self, rank: int, host_ns: int) -> None:
        super().say_bye(rank, host_ns)
        self._bye.add(rank)
        place = self.placing.place_of(rank)
        if place is not None:
            self._started(*place).say_bye(place[1], host_ns)

    def end(self, rank: int) -> list[Outgoing]:
        super().end(rank)
        self.placing.ended(rank)
        place = self.placing.place_of(rank)
        if place is None:
            return []
        return self._outgoing(place[0], self._started(*place).end(place[1]))

    # ---- jobs ----

    def said_bye(self, process: int) -> bool:
        return process in self._bye

    def steps_of(self, process: int) -> int:
        """Optimizer steps that a process has made."""
        return self._steps.get(process, 0)

    def _started(self, job: SessionJob, rank: int) -> State:
        """The state machine of the job, in which the rank has started."""
        state = self.state_of.get(job.number)
        if state is None:
            times: TimeModel = NO_TIME_MODEL
            if self._run_times is not None:
                times = self._run_times.of_job(job.ranks, job.ranks_per_node)
            state = self.state_of[job.number] = State(times)
        if (job.number, rank) not in self._has_started:
            self._has_started.add((job.number, rank))
            state.start(rank)
        return state

    @staticmethod
    def _outgoing(job: SessionJob, answers: list[Outgoing]) -> list[Outgoing]:
        """Answers to ranks of a job as answers to processes."""
        return [(job.processes[rank], message, payload) for rank, message, payload in answers]
