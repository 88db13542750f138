"""One attempt at the job: all ranks from their start to their end, and what happens when one of them fails.

In: a zygote under way, what the ranks are to be started with, and which signals to pass on. Out: an `AttemptOutcome`.
As under torchrun, the first rank that fails ends the others: SIGTERM, and SIGKILL for those that have not ended half a
minute later. The same follows when this launcher is told to stop, with the signal it got.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from maya.launcher.debugging import Debugging
from maya.launcher.hang import NO_PROGRESS, Hangs, JobEnding, ending, show, warn
from maya.launcher.progress import Progress
from maya.launcher.signals import Signals
from maya.launcher.worker_environment import RendezvousAddress
from maya.launcher.zygote_process import ZygoteProcess
from rank_runtime.zygote.protocol import Start


@dataclass(frozen=True)
class Exit:
    """How a rank ended. A negative exit code is the signal that ended it, as in `subprocess`."""

    rank: int
    pid: int
    exit_code: int
    time: float  # since the epoch


@dataclass(frozen=True)
class Pause:
    """A time in which no rank showed any activity, long enough to warn of it."""

    seconds: float
    resumed: bool  # or else it lasted until the end, and longer than when it was noticed


@dataclass
class AttemptOutcome:
    """How an attempt ended."""

    exits: list[Exit] = field(default_factory=list)  # in the order in which they were noticed
    stopped_by: signal.Signals | None = None  # what the launcher was told to stop with
    problem: str | None = None  # what went wrong outside the ranks
    unshared: dict[str, str] = field(default_factory=dict)  # modules that every rank imported itself, and why
    coordinator: dict[str, Any] = field(default_factory=dict)  # its statistics
    hang: str | None = None  # why ranks could not go on: which kind of hang
    report: str | None = None  # the file that says more about it
    pauses: list[Pause] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return self.problem is not None or self.hang is not None or any(end.exit_code != 0 for end in self.exits)


class Attempt:
    """Runs the ranks once."""

    def __init__(
        self,
        zygote: ZygoteProcess,
        start: Callable[[RendezvousAddress], Start],
        meeting: RendezvousAddress | None,
        progress: Progress,
        say: Callable[[str], None],
        shutdown_seconds: float,
        hangs: Hangs,
    ) -> None:
        """`meeting`: known if there is no coordinator to wait for."""
        self._zygote = zygote
        self._start = start
        self._meeting = meeting
        self._progress = progress
        self._say = say
        self._shutdown_seconds = shutdown_seconds
        self._hang_options = hangs
        self._outcome = AttemptOutcome()
        self._running: dict[int, int] = {}  # processes of ranks
        self._clocks: list[int] = []  # of the ranks, when they ended
        self._ready = False
        self._start_sent = False
        self._forked = False
        self._finished = False
        self._deadline: float | None = None
        self._hang_deadline: float | None = None  # when ranks are ended that can never go on
        self._hang_end = JobEnding()
        self._debugging: Debugging | None = None  # while the user looks at ranks that hang

    def run(self, signals: Signals) -> AttemptOutcome:
        while not self._zygote.ended:
            descriptors = [self._zygote.descriptor, signals.descriptor]
            descriptors += self._debugging.descriptors if self._debugging is not None else []
            ready = select.select(descriptors, [], [], self._seconds())[0]
            for number in signals.taken():
                self._told_to_stop(number)
            if self._zygote.descriptor in ready:
                for report in self._zygote.reports():
                    self._heard(report)
            self._debug(ready)
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._deadline = None
                self._zygote.signal(signal.SIGKILL)
            if self._hang_deadline is not None and time.monotonic() > self._hang_deadline:
                self._hang_deadline = None
                self._shutdown_seconds = min(self._shutdown_seconds, self._hang_end.shutdown_seconds)
                self._stop(self._hang_end.signal)
            self._proceed()
            if self._debugging is None:  # otherwise the terminal is the debugger's
                self._progress.show()
        self._zygote.close()
        self._look_at_what_is_left()
        self._progress.close()
        return self._outcome

    def _heard(self, report: dict[str, Any]) -> None:
        for kind, content in report.items():
            if kind == "ready":
                self._ready = True
            elif kind == "coordinator":
                assert self._meeting is not None
                self._meeting = self._meeting.at(content["store_port"], content["endpoint"])
            elif kind == "not_forked":
                self._say(f"ranks are started anew instead of being forked, and need more memory: {content}")
            elif kind == "unshared":
                self._outcome.unshared.update(content)
            elif kind == "started":
                self._running[content["rank"]] = content["pid"]
                self._progress.started += 1
            elif kind == "forked":
                self._forked = True
            elif kind == "exited":
                self._exited(content["rank"], content["status"])
            elif kind == "progress":
                self._progress.joined, self._progress.steps = content["joined"], content["steps"]
            elif kind == "hang":
                self._hangs(content, content["kind"])
            elif kind == "no_progress":
                self._pauses(content)
            elif kind == "resumed":
                self._resumed(content["seconds"])
            elif kind == "clocks":
                self._clocks += content["ns"]
            elif kind == "coordinator_done":
                self._outcome.coordinator = {**content, **({"host_ns": self._clocks} if self._clocks else {})}
            elif kind == "coordinator_exited" and not self._finished:
                self._give_up(f"the coordinator (pid {content['pid']}) {_ended(content['status'])}")
            elif kind in ("coordinator_failed", "zygote_failed"):
                self._give_up(content)

    def _exited(self, rank: int, exit_code: int) -> None:
        self._outcome.exits.append(Exit(rank, self._running.pop(rank), exit_code, time.time()))
        self._progress.finished += 1
        if exit_code != 0:
            self._stop(signal.SIGTERM)

    def _hangs(self, told: Mapping[str, Any], kind: str) -> None:
        if self._deadline is not None:  # the job is being ended, and ranks wait for others that have
            return
        self._progress.close()
        content = show(told, self._say)
        end = ending(self._hang_options, kind)
        if end is None:
            return
        self._outcome.hang, self._outcome.report = kind, told["file"]
        self._hang_end = end
        if self._hang_options.debugs:
            assert self._meeting is not None
            self._debugging = Debugging(content, self._meeting.endpoint, self._running, self._say)
            self._debugging.begin(self._hang_options.rank)
        else:
            self._hang_deadline = time.monotonic() + end.patience

    def _pauses(self, told: Mapping[str, Any]) -> None:
        if self._deadline is not None:
            return
        self._outcome.pauses.append(Pause(told["seconds"], resumed=False))
        if self._hang_options.suspects:
            self._hangs(told, NO_PROGRESS)
            return
        self._progress.close()
        warn(told, self._say)

    def _resumed(self, seconds: float) -> None:
        if self._deadline is None and self._outcome.pauses:
            self._outcome.pauses[-1] = Pause(seconds, resumed=True)
            self._progress.close()
            self._say(f"the ranks go on, after {seconds:.0f} s without activity")

    def _debug(self, ready: list[int]) -> None:
        """What the user does meanwhile; when that is over, the job ends."""
        if self._debugging is None or self._debugging.is_over:
            return
        self._debugging.turn(ready)
        if self._debugging.goes_on:
            self._debugging = None
            self._outcome.hang = None
            self._zygote.go_on()
        elif self._debugging.is_over:
            self._hang_deadline = time.monotonic()

    def _told_to_stop(self, number: signal.Signals) -> None:
        self._outcome.stopped_by = number
        if self._debugging is not None:
            self._shutdown_seconds = min(self._shutdown_seconds, self._hang_end.shutdown_seconds)
        self._say(f"got {number.name}, passing it on; SIGKILL in {self._shutdown_seconds:g} s")
        if self._start_sent:
            self._zygote.signal(number)
        self._stop(None)

    def _give_up(self, problem: str) -> None:
        self._outcome.problem = self._outcome.problem or problem
        self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals | None) -> None:
        if not self._start_sent:
            self._zygote.kill()  # busy with imports, and there is nothing to be lost
        elif self._deadline is None:
            self._deadline = time.monotonic() + self._shutdown_seconds
            if number is not None:
                self._zygote.signal(number)
            if self._debugging is not None:
                self._debugging.close()
                self._zygote.signal(signal.SIGCONT)  # those who are stopped look at no signal

    def _proceed(self) -> None:
        meets = self._meeting is not None and self._meeting.is_known
        if self._ready and meets and not self._start_sent and self._deadline is None:
            assert self._meeting is not None
            self._start_sent = True
            self._zygote.start(self._start(self._meeting))
        if self._forked and not self._running and not self._finished:
            self._finished = True
            self._zygote.finish()

    def _look_at_what_is_left(self) -> None:
        if not self._finished and self._outcome.problem is None and self._outcome.stopped_by is None:
            status = self._zygote.exit_code
            self._outcome.problem = f"the process that ranks are forked from {_ended(status)}"
        for process in self._running.values():  # they are killed with the zygote; their children are not
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)

    def _seconds(self) -> float | None:
        seconds = [self._progress.seconds()]
        debugging = None if self._debugging is None else self._debugging.deadline
        for deadline in (self._deadline, self._hang_deadline, debugging):
            if deadline is not None:
                seconds.append(max(0.0, deadline - time.monotonic()))
        return min((s for s in seconds if s is not None), default=None)


def _ended(status: int | None) -> str:
    if status is None or status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
