"""Watches the jobs of a session for hangs, once all ranks of a job have appeared.

In: the jobs, the ends of their processes, and the time. Out: reports in the session's folder, and lines for the
launcher about them, as from the coordinator of a maya-torchrun. The store of a job is not known, so a rank that waits
in it may be waiting for anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coordinator.hangs.rank_processes import LocalProcesses
from coordinator.hangs.watcher import Watcher, WatcherSettings
from coordinator.session.jobs import SessionJob
from coordinator.session.session_server import SessionServer
from coordinator.state import State
from rank_runtime.messages import Failed, RequestFailed


class JobServer:
    """One job of a session's server, as its watcher sees it."""

    def __init__(self, server: SessionServer, job: SessionJob, state: State) -> None:
        self.state = state
        self.turn = server.turn
        self._server = server
        self._job = job

    @property
    def held_failures(self) -> list[tuple[int, Failed | RequestFailed]]:
        """Of ranks whose calls do not match; they stay in these calls."""
        rank_of = {process: rank for rank, process in self._job.processes.items()}
        return [(rank_of[process], failure) for process, failure in self._server.mismatches if process in rank_of]


class SessionWatch:
    """The watchers of all jobs."""

    def __init__(self, server: SessionServer, folder: Path, patience: float) -> None:
        self._server = server
        self._folder = folder
        self._patience = patience
        self._watchers: dict[int, Watcher] = {}  # by the number of the job
        self._ended: set[int] = set()  # processes

    def poll(self) -> list[dict[str, Any]]:
        """Watch all jobs; the lines for the launcher."""
        lines = []
        for job in self._server.state.placing.jobs:
            watcher = self._watcher(job)
            if watcher is None:
                continue
            for rank, process in job.processes.items():
                if process in job.ended and process not in self._ended:
                    self._ended.add(process)
                    watcher.exited(rank, 0 if self._server.state.said_bye(process) else 1)
            found = None if job.is_over else watcher.poll()
            if found is not None:
                lines.append({**found, "pids": [self._server.pids[process] for process in job.processes.values()]})
        return lines

    def activity(self) -> list[dict[str, Any]]:
        """What the ranks of all jobs do now."""
        running = [job for job in self._server.state.placing.jobs if not job.is_over]
        watchers = [self._watcher(job) for job in running]
        return [watcher.activity() for watcher in watchers if watcher is not None]

    def _watcher(self, job: SessionJob) -> Watcher | None:
        state = self._server.state.state_of.get(job.number)
        if job.number not in self._watchers and state is not None and job.is_complete:
            folder = self._folder if not self._watchers else self._folder / f"job{job.number}"
            folder.mkdir(exist_ok=True)
            settings = WatcherSettings(job.ranks, folder, self._patience)
            watcher = self._watchers[job.number] = Watcher(
                JobServer(self._server, job, state), settings, LocalProcesses(self._server.endpoint)
            )
            for rank, process in job.processes.items():
                watcher.started(rank, self._server.pids[process])
        return self._watchers.get(job.number)
