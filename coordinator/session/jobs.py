"""Which process is which rank of which job, in a session of `maya exec`: no I/O.

In: processes by number (0, 1, ... in the order in which they connect), the places that they state, and their ends. Out:
the jobs, each with its ranks. A process may state its place late, or never: then it is placed when it first
communicates, or when it has ended.

A place that the program states is certain. One from environment variables may be inherited by a process that is no
rank, so it counts when the process communicates, or when the processes that have ended fill all places of a job.
Otherwise each of them is a job of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rank_runtime.messages import RankPlace


@dataclass
class SessionJob:
    """The ranks of one job, as far as they have appeared."""

    number: int  # 1, 2, ... in the session
    ranks: int
    ranks_per_node: int
    key: str
    processes: dict[int, int] = field(default_factory=dict)  # rank -> process
    ended: set[int] = field(default_factory=set)  # processes

    @property
    def is_complete(self) -> bool:
        """Whether it has several ranks, and all have appeared."""
        return 1 < self.ranks == len(self.processes)

    @property
    def is_over(self) -> bool:
        return len(self.ended) == len(self.processes)


class SessionJobs:
    """The jobs of a session, by what their processes say."""

    def __init__(self, gpus_per_node: int) -> None:
        self._gpus_per_node = gpus_per_node
        self.jobs: list[SessionJob] = []
        self._of: dict[int, tuple[SessionJob, int]] = {}  # process -> job, rank
        self._guesses: dict[int, RankPlace] = {}  # of processes without a job
        self._unplaced: dict[int, bool] = {}  # process -> whether it has ended

    def connected(self, process: int) -> None:
        self._unplaced[process] = False

    def place_of(self, process: int) -> tuple[SessionJob, int] | None:
        return self._of.get(process)

    def state(self, process: int, place: RankPlace) -> None:
        """A process states its place. Only its first certain statement counts."""
        if process in self._of:
            return
        if place.certain:
            self._put(process, place)
        else:
            self._guesses[process] = place

    def need_place(self, process: int) -> tuple[SessionJob, int]:
        """The place of a process that communicates; without any statement it is a job of its own."""
        if process not in self._of:
            self._put(process, self._guesses.get(process) or _alone())
        return self._of[process]

    def ended(self, process: int) -> None:
        if process in self._of:
            self._of[process][0].ended.add(process)
        else:
            self._unplaced[process] = True

    def place_ended(self) -> None:
        """Place the processes that have ended without a place."""
        ended = {process for process, has_ended in self._unplaced.items() if has_ended}
        for group in list(self._complete_guesses(ended)):
            for process, place in group:
                self._put(process, place)
                ended.discard(process)
                self._of[process][0].ended.add(process)
        waiting = {place.job for process, place in self._guesses.items() if not self._unplaced.get(process, True)}
        for process in sorted(ended):
            guess = self._guesses.get(process)
            if guess is None or guess.job not in waiting:  # otherwise the rest of its job may still end
                self._put(process, _alone())
                self._of[process][0].ended.add(process)

    def _complete_guesses(self, ended: set[int]) -> Iterator[list[tuple[int, RankPlace]]]:
        """Ended processes whose guesses fill all places of a job."""
        groups: dict[tuple[str, int], dict[int, tuple[int, RankPlace]]] = {}
        for process in sorted(ended & self._guesses.keys()):
            place = self._guesses[process]
            groups.setdefault((place.job, place.ranks), {}).setdefault(place.rank, (process, place))
        for (_, ranks), found in groups.items():
            if len(found) == ranks:
                yield list(found.values())

    def _put(self, process: int, place: RankPlace) -> None:
        job = next(
            (
                job
                for job in self.jobs
                if job.key == place.job and place.job and job.ranks == place.ranks and place.rank not in job.processes
            ),
            None,
        )
        if job is None:
            per_node = place.ranks_per_node or self._gpus_per_node
            job = SessionJob(len(self.jobs) + 1, place.ranks, min(per_node, place.ranks), place.job)
            self.jobs.append(job)
        job.processes[place.rank] = process
        self._of[process] = (job, place.rank)
        self._guesses.pop(process, None)
        self._unplaced.pop(process, None)


def _alone() -> RankPlace:
    return RankPlace(rank=0, ranks=1, ranks_per_node=1, job="", certain=True)
