"""The coordinator of a session as a process of its own: serves all jobs of `maya exec` or `maya shell`.

In: settings, as JSON on the command line, and SIGTERM at the end of the command. Out: lines of JSON on a descriptor:

    {"coordinator_failed": "..."}                                        why it cannot serve
    {"connected": {"pid": ...}}                                          a process uses a GPU
    {"over": {"job": ..., "ranks": ..., "ranks_per_node": ...,           all processes of a job have ended: in a shell
              "pids": {...}, "command": [...], "seconds": ...,           after a quiet time, otherwise at the end
              "steps": ..., "statistics": {...}}}
    {"hang": ...}, {"no_progress": ...}, {"resumed": ...}                as in coordinator/process.py, with "pids",
                                                                         those of the job's ranks
    {"alive": [...]}                                                     at the end: processes that still use a GPU

It ends after SIGTERM, or when the process that started it has ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from coordinator.server import ServerError
from coordinator.session.hang_watch import SessionWatch
from coordinator.session.jobs import SessionJob
from coordinator.session.session_server import SessionServer
from coordinator.time_model import RunTimeModel
from maya.hangs.request_socket import RequestSocket
from maya.util.open_files import allow_descriptors

SUCCESS, FAILED = 0, 1

_NAME = b"maya-coord"  # the name in ps
_POLL_SECONDS = 0.25
_QUIET_SECONDS = 1.5  # after the last process of a job in a shell
_LAST_SECONDS = 5.0  # for processes that outlive the command
_END_SECONDS = 0.02
_MOST_WORDS = 64  # of a command line
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


@dataclass(frozen=True)
class SessionSettings:
    """The settings of a session's coordinator."""

    secret: str
    endpoint: str
    folder: str  # its run.json has the settings of the time model
    gpus_per_node: int
    hang_after: float
    virtual_clock: bool
    reports_at_once: bool  # report a job when it is over, not at the end of the session
    report_descriptor: int
    parent: int


def main() -> int:
    """The entry point: the settings are the only argument."""
    settings = SessionSettings(**json.loads(sys.argv[1]))
    wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the wakeup descriptor tells
    for other in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGPIPE):
        signal.signal(other, signal.SIG_IGN)  # the terminal sends them to all processes
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, _NAME)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != settings.parent:
        return FAILED

    def report(line: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):
            os.write(settings.report_descriptor, json.dumps(line).encode() + b"\n")

    times = RunTimeModel(Path(settings.folder)) if settings.virtual_clock else None
    try:
        allow_descriptors(settings.gpus_per_node)
        server = SessionServer(settings.secret, settings.endpoint, times, settings.gpus_per_node)
    except ServerError as error:
        report({"coordinator_failed": str(error)})
        return FAILED
    try:
        if times is not None:
            times.load()  # the socket queues the batches of the first processes meanwhile
        _Loop(server, settings, report, wakeup_read).run()
    finally:
        server.close()
    return SUCCESS


class _Loop:
    """Serves until the end of the session."""

    def __init__(
        self, server: SessionServer, settings: SessionSettings, report: Callable[[dict[str, Any]], None], wakeup: int
    ) -> None:
        self._server = server
        self._settings = settings
        self._report = report
        self._wakeup = wakeup
        self._watched: set[int] = set()  # process descriptors in the poller
        self._watch = SessionWatch(server, Path(settings.folder), settings.hang_after)
        self._connected = 0
        self._reported: set[int] = set()  # jobs
        self._quiet_since: dict[int, float] = {}  # job -> when it was first seen to be over
        self._poller = zmq.Poller()
        self._poller.register(server.socket, zmq.POLLIN)
        self._poller.register(wakeup, zmq.POLLIN)
        self._requests = RequestSocket(Path(settings.folder))
        if self._requests.descriptor is not None:
            self._poller.register(self._requests.descriptor, zmq.POLLIN)

    def run(self) -> None:
        while not self._turn():
            for line in self._watch.poll():
                self._report(line)
            if self._settings.reports_at_once:
                self._report_quiet_jobs()
        deadline = time.monotonic() + _LAST_SECONDS
        while (self._server.running or self._server.expects_an_end) and time.monotonic() < deadline:
            self._turn()
        self._server.state.placing.place_ended()
        self._report({"alive": [self._server.pids[process] for process in self._server.running.values()]})
        for process in list(self._server.running.values()):
            self._server.state.placing.ended(process)
        self._server.state.placing.place_ended()
        for job in self._server.state.placing.jobs:
            self._report_job(job)

    def _turn(self) -> bool:
        """Handle what has arrived; returns whether the session ends."""
        server = self._server
        for descriptor in server.running.keys() - self._watched:
            self._poller.register(descriptor, zmq.POLLIN)
            self._watched.add(descriptor)
        seconds = _END_SECONDS if server.expects_an_end else _POLL_SECONDS
        ready = dict(self._poller.poll(round(1000 * seconds)))
        for descriptor in self._watched & ready.keys():
            self._poller.unregister(descriptor)
            self._watched.discard(descriptor)
            server.process_ended(descriptor)
        server.turn()
        if self._requests.descriptor in ready:
            self._requests.serve(self._watch.activity)
        for pid in server.pids[self._connected :]:
            self._report({"connected": {"pid": pid}})
        self._connected = len(server.pids)
        if self._wakeup not in ready:
            return False
        with suppress(BlockingIOError):
            os.read(self._wakeup, 4096)
        return True

    def _report_quiet_jobs(self) -> None:
        placing = self._server.state.placing
        if not self._server.running and not self._server.expects_an_end:
            placing.place_ended()
        now = time.monotonic()
        for job in placing.jobs:
            if not job.is_over:
                self._quiet_since.pop(job.number, None)
            elif now - self._quiet_since.setdefault(job.number, now) >= _QUIET_SECONDS:
                self._report_job(job)

    def _report_job(self, job: SessionJob) -> None:
        if job.number in self._reported:
            return
        self._reported.add(job.number)
        server = self._server
        state = server.state.state_of.get(job.number)
        first = min(job.processes.values())
        statistics: dict[str, Any] = {
            "messages": server.batches_in + server.batches_out,  # of the whole session, as are the next ones
            "bytes": server.bytes_in + server.bytes_out,
            "ignored": server.ignored,
            "cpu_seconds": round(time.process_time(), 3),
            "posts": 0 if state is None else state.posts,
            "collectives": 0 if state is None else state.collectives,
            "communicators": 0 if state is None else state.communicators,
            "host_ns": [] if state is None else [state.clock(rank) for rank in range(job.ranks)],
        }
        self._report(
            {
                "over": {
                    "job": job.number,
                    "ranks": job.ranks,
                    "ranks_per_node": job.ranks_per_node,
                    "pids": {str(rank): server.pids[process] for rank, process in sorted(job.processes.items())},
                    "steps": max((server.state.steps_of(process) for process in job.processes.values()), default=0),
                    "command": server.commands[first][:_MOST_WORDS],
                    "seconds": round(time.monotonic() - server.began[first], 3),
                    "statistics": statistics,
                }
            }
        )


if __name__ == "__main__":
    sys.exit(main())
