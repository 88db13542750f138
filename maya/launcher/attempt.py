"""One attempt at the job: starts all ranks, and waits until they have ended or one has failed.

In: a running zygote, the plan for starting the ranks, and the signals to pass on. Out: an `AttemptOutcome`. As under
torchrun, the first failure stops all other ranks: SIGTERM, then SIGKILL half a minute later. When the launcher itself
gets a signal to stop, it does the same with that signal.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from maya.hangs.report_text import odd_rank
from maya.launcher.debugging import Debugging
from maya.launcher.hang import NO_PROGRESS, Hangs, JobEnding, ending, read_report, show, warn
from maya.launcher.memory_kills import MemoryKills
from maya.launcher.progress import Progress
from maya.launcher.signals import Signals
from maya.launcher.worker_environment import RendezvousAddress
from maya.nodes.zygotes import Zygotes
from rank_runtime.zygote.protocol import Start


@dataclass(frozen=True)
class Exit:
    """How a rank ended. A negative exit code is the signal that ended it, as in `subprocess`."""

    rank: int
    pid: int
    exit_code: int
    time: float  # since the epoch
    host: str = ""  # the machine that it ran on; empty: this one


@dataclass(frozen=True)
class Pause:
    """A time without activity of any rank, long enough for a warning."""

    seconds: float
    resumed: bool  # False: it lasted until the job ended; `seconds` is its length when the warning was given


class SurveyFailed(Exception):
    """A round of the survey before a job (survey.py) failed or was stopped."""


@dataclass
class AttemptOutcome:
    """How an attempt ended."""

    exits: list[Exit] = field(default_factory=list)  # in the order in which the launcher noticed them
    stopped_by: signal.Signals | None = None  # the signal that told the launcher to stop
    problem: str | None = None  # a failure outside the ranks
    unshared: dict[str, str] = field(default_factory=dict)  # modules that every rank imported itself, with the reason
    imports: dict[str, int] = field(default_factory=dict)  # numbers of modules probed, known, shared
    private_bytes: list[int] = field(default_factory=list)  # memory that ranks had for themselves at their end
    coordinator: dict[str, Any] = field(default_factory=dict)  # its statistics
    hang: str | None = None  # the kind of hang
    report: str | None = None  # the hang's report file
    report_entry: Mapping[str, Any] | None = None  # of a report to print when the job has ended
    odd_rank: int | None = None  # the rank that the report blames
    ranks_raise: bool = False  # in a hang, ranks get an error of NCCL, and end by themselves
    pauses: list[Pause] = field(default_factory=list)
    equal_output: list[str] = field(default_factory=list)  # which output of ranks was shown once for several

    @property
    def failed(self) -> bool:
        return self.problem is not None or self.hang is not None or any(end.exit_code != 0 for end in self.exits)


class Attempt:
    """Runs the ranks once."""

    def __init__(
        self,
        zygote: Zygotes,
        start: Callable[[RendezvousAddress], Start],
        rendezvous: RendezvousAddress | None,
        progress: Progress,
        say: Callable[[str], None],
        shutdown_seconds: float,
        hangs: Hangs,
    ) -> None:
        """`rendezvous`: already known if the job has no coordinator."""
        self._zygote = zygote
        self._start = start
        self._rendezvous = rendezvous
        self._progress = progress
        self._say = say
        self._shutdown_seconds = shutdown_seconds
        self._hang_options = hangs
        self._outcome = AttemptOutcome()
        self._running: dict[int, int] = {}  # rank -> process id
        self._clocks: list[int] = []  # final virtual clocks of the ranks, ns
        self._ready = False
        self._start_sent = False
        self._forked = False
        self._finished = False
        self._deadline: float | None = None
        self._hang_deadline: float | None = None  # when to stop ranks that can never go on
        self._hang_end = JobEnding()
        self._debugging: Debugging | None = None  # while the user debugs a hang
        self._memory_kills = MemoryKills()

    def run(self, signals: Signals) -> AttemptOutcome:
        while not self._zygote.ended:
            descriptors = [self._zygote.descriptor, signals.descriptor]
            descriptors += self._debugging.descriptors if self._debugging is not None else []
            ready = select.select(descriptors, [], [], self._seconds())[0]
            for number in signals.taken():
                self._on_signal(number)
            if self._zygote.descriptor in ready:
                for report in self._zygote.reports():
                    self._on_report(report)
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
        self._clean_up()
        self._progress.close()
        return self._outcome

    def _on_report(self, report: dict[str, Any]) -> None:
        for kind, content in report.items():
            if kind == "ready":
                self._ready = True
            elif kind == "coordinator":
                assert self._rendezvous is not None
                self._rendezvous = self._rendezvous.at(content["store_port"], content["endpoint"])
            elif kind == "not_forked":
                self._say(f"ranks are started as new processes instead of forked, and need more memory: {content}")
            elif kind == "unshared":
                self._outcome.unshared.update(content)
            elif kind == "imports":
                self._outcome.imports.update(content)
            elif kind == "started":
                self._running[content["rank"]] = content["pid"]
                self._progress.started += 1
            elif kind == "forked":
                self._forked = True
            elif kind == "exited":
                if content["private_bytes"]:
                    self._outcome.private_bytes.append(content["private_bytes"])
                self._on_exit(content["rank"], content["status"], content.get("host", ""))
            elif kind == "progress":
                self._progress.joined, self._progress.steps = content["joined"], content["steps"]
            elif kind == "hang":
                self._on_hang(content, content["kind"])
            elif kind == "no_progress":
                self._on_pause(content)
            elif kind == "resumed":
                self._on_resume(content["seconds"])
            elif kind == "clocks":
                self._clocks += content["ns"]
            elif kind == "coordinator_done":
                self._outcome.coordinator = {**content, **({"host_ns": self._clocks} if self._clocks else {})}
            elif kind == "coordinator_exited" and not self._finished:
                self._say_if_killed("the coordinator", content["status"])
                self._give_up(f"the coordinator (pid {content['pid']}) {_exit_text(content['status'])}")
            elif kind in ("coordinator_failed", "zygote_failed"):
                self._give_up(content)

    def _on_exit(self, rank: int, exit_code: int, host: str) -> None:
        self._outcome.exits.append(Exit(rank, self._running.pop(rank), exit_code, time.time(), host))
        self._progress.finished += 1
        if exit_code == 0:
            return
        if not host:  # otherwise the agent there says so
            self._say_if_killed(f"rank {rank}", exit_code)
        self._stop(signal.SIGTERM)

    def _say_if_killed(self, what: str, status: int | None) -> None:
        explained = self._memory_kills.explain(what, status or 0)
        if explained is not None:
            self._progress.close()
            self._say(explained)

    def _on_hang(self, entry: Mapping[str, Any], kind: str) -> None:
        if self._deadline is not None:  # the job is being stopped, and ranks wait for others that have ended
            return
        self._progress.close()
        raises = entry.get("raises", False)
        end = ending(self._hang_options, raises=raises)
        if end is None or self._hang_options.debugs:
            content = show(entry, self._say)
        else:  # the report comes last, where it is seen
            content = read_report(entry)
            self._outcome.report_entry = entry
            self._say(f"{kind}: the job ends; then the report follows")
        if end is None:
            return
        self._outcome.odd_rank = odd_rank(content)
        self._outcome.hang, self._outcome.report, self._outcome.ranks_raise = kind, entry["file"], raises
        self._hang_end = end
        if self._hang_options.debugs:
            assert self._rendezvous is not None
            self._debugging = Debugging(content, self._zygote, self._rendezvous.endpoint, self._running, self._say)
            self._debugging.begin(self._hang_options.rank)
        else:
            self._hang_deadline = time.monotonic() + end.patience

    def _on_pause(self, entry: Mapping[str, Any]) -> None:
        if self._deadline is not None:
            return
        self._outcome.pauses.append(Pause(entry["seconds"], resumed=False))
        if self._hang_options.suspects:
            self._on_hang(entry, NO_PROGRESS)
            return
        self._progress.close()
        warn(entry, self._say)

    def _on_resume(self, seconds: float) -> None:
        if self._deadline is None and self._outcome.pauses:
            self._outcome.pauses[-1] = Pause(seconds, resumed=True)
            self._progress.close()
            self._say(f"the ranks go on, after {seconds:.0f} s without activity")

    def _debug(self, ready: list[int]) -> None:
        """Serve the user's debugging session; stop the job after it."""
        if self._debugging is None or self._debugging.is_over:
            return
        self._debugging.turn(ready)
        if self._debugging.goes_on:
            self._debugging = None
            self._outcome.hang = None
            self._zygote.go_on()
        elif self._debugging.is_over:
            self._hang_deadline = time.monotonic()

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGINT and self._outcome.stopped_by is not None and self._deadline is not None:
            self._say("got SIGINT again: SIGKILL now")
            self._deadline = time.monotonic()
            return
        self._outcome.stopped_by = number
        if self._debugging is not None:
            self._shutdown_seconds = min(self._shutdown_seconds, self._hang_end.shutdown_seconds)
        sooner = ", or at once with another Ctrl-C" if number == signal.SIGINT else ""
        self._say(f"got {number.name}, passing it on; SIGKILL in {self._shutdown_seconds:g} s{sooner}")
        if self._start_sent:
            self._zygote.signal(number)
        self._stop(None)

    def _give_up(self, problem: str) -> None:
        self._outcome.problem = self._outcome.problem or problem
        self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals | None) -> None:
        if not self._start_sent:
            self._zygote.kill()  # it is busy with imports, and no rank exists yet
        elif self._deadline is None:
            self._deadline = time.monotonic() + self._shutdown_seconds
            if number is not None:
                self._zygote.signal(number)
            if self._debugging is not None:
                self._debugging.close()
                self._zygote.signal(signal.SIGCONT)  # stopped processes handle no signal

    def _proceed(self) -> None:
        has_address = self._rendezvous is not None and self._rendezvous.is_known
        if self._ready and has_address and not self._start_sent and self._deadline is None:
            assert self._rendezvous is not None
            self._start_sent = True
            self._zygote.start(self._start(self._rendezvous))
        if self._forked and not self._running and not self._finished:
            self._finished = True
            self._zygote.finish()

    def _clean_up(self) -> None:
        if not self._finished and self._outcome.problem is None and self._outcome.stopped_by is None:
            status = self._zygote.exit_code
            self._say_if_killed("the zygote (the process that forks the ranks)", status)
            self._outcome.problem = f"the zygote (the process that forks the ranks) {_exit_text(status)}"
        self._zygote.kill_groups(self._running.values())

    def _seconds(self) -> float | None:
        seconds = [self._progress.seconds()]
        debugging = None if self._debugging is None else self._debugging.deadline
        for deadline in (self._deadline, self._hang_deadline, debugging):
            if deadline is not None:
                seconds.append(max(0.0, deadline - time.monotonic()))
        return min((s for s in seconds if s is not None), default=None)


def _exit_text(status: int | None) -> str:
    if status is None or status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
