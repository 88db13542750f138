"""When to look for ranks that can never go on, and what to do about what is found.

In: what the launcher and the server tell (ranks that start and end, answers that fail), and the time. Out: reports in
the run's folder (report.py), and lines for the launcher about them (coordinator/process.py). Nothing is looked at while
ranks ask for things. When they have not for a while, the main threads of their processes are looked at twice. If nobody
of those who run could free those that stood still in between, these are looked at twice more, with all their threads;
those that stood still are asked for their stacks.

Proven, and reported as hang.json:
  deadlock       ranks that can never go on; perhaps others do
  mismatch       calls that do not belong together, at once

Suspected, and reported as no_progress.json:
  no progress    no rank has shown any activity for `patience` seconds. A rank may sleep, download or wait for a lock,
                 so the watcher goes on, and says when the ranks do. A later standstill is reported if it lasts
                 twice as long as the last one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.communicators import PendingWait
from coordinator.hangs import flight_recorder, processes, thread_waits
from coordinator.hangs.deadlock import Condition, stuck_ranks
from coordinator.hangs.hang_report import Finding, Rank, make_report
from coordinator.hangs.processes import Doing, Pulse, Sample
from coordinator.hangs.report_file import write_report
from coordinator.server import Server
from maya.hangs import python_stacks
from rank_runtime import introspection

_QUIET_SECONDS = 0.7  # after the last message, before the first look
_APART_SECONDS = 0.5  # between two looks
_MOST_SECONDS = 2.0  # until the next round of looks
_SHARE = 0.2  # of the time, at most, is spent on looking: that of a clock, since ranks may leave little of a core
_UNSEEN_SECONDS = 2.5  # that ranks stand still, of which it cannot be seen what they wait for, until they are stuck
_LEAST_ASKED_AGAIN, _MOST_ASKED_AGAIN = 2.0, 8.0  # seconds between questions about the same standing still
_RECORDER_SECONDS = 8.0  # the first answer of a rank may have to load what it needs
_MOST_OTHERS = 64  # ranks that are asked although nobody waits for them
_MOST_RECORDERS = 16
_MOST_DUMPS = 64  # ranks up to which all flight recorders are written


@dataclass
class WatcherSettings:
    """What a watcher needs to know."""

    world_size: int
    folder: Path  # for reports and flight recorders
    patience: float = 60.0
    store_port: int | None = None
    freezes: bool = False  # ranks are stopped as soon as there is a report


@dataclass
class _Known:
    """Of a rank, since it started."""

    process: int
    pulse: Pulse | None = None
    sample: Sample | None = None
    doing: Doing = Doing.RUNS
    status: int | None = None  # how it ended


@dataclass(frozen=True)
class _Suspicion:
    """Nothing goes on, for all that can be seen."""

    since: float
    report: dict[str, Any]


@dataclass
class Watcher:
    """Looks after the ranks of one server."""

    server: Server
    settings: WatcherSettings
    _ranks: dict[int, _Known] = field(default_factory=dict)
    _activity: int = -1
    _changed: float = 0.0  # when a rank last asked for something
    _moved: float = 0.0  # when a rank last did anything
    _due: float = 0.0
    _looks: int = 0  # of this round
    _suspects: frozenset[int] = frozenset()  # whose main threads stood still, in this round
    _asked: float = 0.0
    _ask_again: float = _LEAST_ASKED_AGAIN  # seconds later
    _interval: float = 1.0
    _is_ending: bool = False  # a rank failed, or the launcher ends the job
    _candidates: frozenset[int] = frozenset()  # stuck while others go on, when last looked
    _reported: frozenset[int] = frozenset()
    _longest: float = 0.0  # seconds without progress at the last suspicion
    _suspicion: _Suspicion | None = None  # that is reported, while it lasts
    _mismatched: float = 0.0  # when an answer that fails was first held
    is_frozen: bool = False

    def started(self, rank: int, process: int) -> None:
        self._ranks[rank] = _Known(process)
        self._is_ending = False
        self._moved = time.monotonic()

    def exited(self, rank: int, status: int) -> None:
        known = self._ranks.get(rank)
        if known is not None:
            known.status, known.doing = status, Doing.GONE
        self._is_ending = self._is_ending or status != 0
        if status == 0:
            self._moved = time.monotonic()

    def stopping(self) -> None:
        """The launcher ends the job."""
        self._is_ending = True

    def continued(self) -> None:
        """Ranks that were stopped go on, since the user wants them to."""
        self.is_frozen = False
        self._moved = time.monotonic()

    def seconds(self) -> float:
        """How long to wait for messages before the next look."""
        return max(0.05, min(1.0, self._due - time.monotonic()))

    def look(self) -> dict[str, Any] | None:
        """A line for the launcher, if there is something to report."""
        now = time.monotonic()
        if self.is_frozen:
            return None
        if (resumed := self.resumed()) is not None:
            return resumed
        if self.server.held_failures:
            self._mismatched = self._mismatched or now
            # Other members may still be about to post, and belong to the report.
            quiet = min(now - self._changed, now - self._mismatched) >= _APART_SECONDS
            if quiet or now - self._mismatched >= _MOST_SECONDS:
                return self._mismatch()
        if self.server.state.activity != self._activity:
            self._activity = self.server.state.activity
            self._changed = self._moved = now
            self._looks = 0
            self._due = now + _QUIET_SECONDS
            self._interval = _APART_SECONDS
            return None
        if now < self._due or self._is_ending or len(self._ranks) < self.settings.world_size:
            return None
        return self._look(now)

    def resumed(self) -> dict[str, Any] | None:
        """A line for the launcher, if the ranks go on after a suspicion."""
        suspicion = self._suspicion
        if suspicion is None or self._moved <= suspicion.since or self._is_ending:
            return None
        self._suspicion = None
        seconds = round(self._moved - suspicion.since, 1)
        self._longest = max(self._longest, seconds)
        resolved = {**suspicion.report, "seconds": seconds, "resolved": True}
        write_report(self.settings.folder, "no_progress.json", resolved)
        return {"resumed": {"seconds": seconds}}

    # ---- looks ----

    def _look(self, now: float) -> dict[str, Any] | None:
        """The next look of a round, which ends as soon as everybody is seen to go on."""
        self._looks += 1
        report = None
        if self._looks == 1:
            self._take_pulses(now)
        elif self._looks == 2:
            self._take_pulses(now)
            self._suspects = self._find_suspects(now)
            self._sample(now)
        else:
            self._sample(now)
            report = self._judge(now)
        if self._looks == 3 or (self._looks == 2 and not self._suspects):
            self._looks = 0
            self._interval = min(_MOST_SECONDS, self._interval * 2)
        pause = self._interval if self._looks == 0 else _APART_SECONDS
        self._due = now + max(pause, (time.monotonic() - now) / _SHARE)
        return report

    def _take_pulses(self, now: float) -> None:
        for known in self._ranks.values():
            if known.status is None:
                before, known.pulse = known.pulse, processes.pulse(known.process, now)
                known.doing = processes.doing_of_main(before, known.pulse)

    def _find_suspects(self, now: float) -> frozenset[int]:
        """Ranks that nobody could free of those whose main threads run; all, if for long nobody's has."""
        if any(known.doing is Doing.RUNS for known in self._ranks.values()):
            self._moved = now
        if self._makes_no_progress(now):
            return frozenset(rank for rank, known in self._ranks.items() if known.status is None)
        return frozenset(self._stuck_by_looks() - self._reported)

    def _sample(self, now: float) -> None:
        if not self._suspects:
            return
        children = processes.Children()
        for known in (self._ranks[rank] for rank in self._suspects):
            if known.status is None:
                before, known.sample = known.sample, processes.sample(known.process, now, children)
                if self._looks == 3:
                    known.doing = processes.doing(before, known.sample)

    def _judge(self, now: float) -> dict[str, Any] | None:
        if any(self._ranks[rank].doing is Doing.RUNS for rank in self._suspects):
            self._moved = now
        waits = list(self.server.state.waits())
        if self._stuck_by_looks() - self._reported:
            report = self._ask(now, waits, self._standing())
            if report is not None:
                return report
        is_new = self._suspicion is None and now - self._moved >= 2 * self._longest
        if is_new and self._makes_no_progress(now) and self._somebody_waits(waits):
            return self._no_progress(now, waits)
        return None

    def _makes_no_progress(self, now: float) -> bool:
        return now - self._moved >= self.settings.patience and not self._reported

    def _standing(self) -> set[int]:
        return {rank for rank, known in self._ranks.items() if known.doing is Doing.STANDS}

    def _stuck_by_looks(self) -> set[int]:
        """As if all who stand still could only be freed by others."""
        waits = list(self.server.state.waits())
        standing = self._standing()
        has_waits = {rank for wait in waits for rank in wait.waiting}
        return stuck_ranks({rank: self._condition(rank, standing, rank in has_waits) for rank in self._ranks}, waits)

    def _condition(self, rank: int, standing: set[int], has_waits: bool) -> Condition:
        if self._ranks[rank].doing is Doing.GONE:
            return Condition.ENDED
        if rank not in standing:
            return Condition.FREE
        return Condition.CALLS if has_waits else Condition.MEETS

    def _ask(self, now: float, waits: list[PendingWait], standing: set[int]) -> dict[str, Any] | None:
        """Whether those who stand still are stuck, now that they tell what they stand in."""
        if now - self._asked < min(self._ask_again, (now - self._changed) / 2):
            return None
        self._asked = now
        answers = self._stacks(standing)
        has_waits = {rank for wait in waits for rank in wait.waiting}
        conditions = {}
        for rank in self._ranks:
            condition = self._condition(rank, standing, rank in has_waits)
            if rank in standing:
                told, process = answers.get(rank, python_stacks.Stacks()), self._ranks[rank].process
                condition = thread_waits.condition(process, told, rank in has_waits, self.settings.store_port)
            conditions[rank] = condition
        cost = (time.monotonic() - now) / _SHARE
        self._ask_again = min(_MOST_ASKED_AGAIN, max(_LEAST_ASKED_AGAIN, cost))
        stuck = stuck_ranks(conditions, waits)
        self.server.turn()  # what was on its way
        if not stuck - self._reported or self.server.state.activity != self._activity:
            return None
        if not all(self._still_stands(rank) for rank in stuck):  # what one told may be over by what another told
            return None
        goes_on = any(condition is Condition.FREE for condition in conditions.values())
        if goes_on and stuck != self._candidates:  # perhaps some of the others have only not come to rest yet
            self._candidates = frozenset(stuck)
            self._asked = 0.0
            return None
        unseen = any(conditions[rank] is Condition.MEETS for rank in stuck)
        if unseen and now - self._changed < _UNSEEN_SECONDS:
            return None
        self._reported = frozenset(stuck)
        kind = "partial deadlock" if goes_on else "deadlock"
        return self._hang(Finding(kind, stuck, waits, now - self._changed), answers)

    def _still_stands(self, rank: int) -> bool:
        """Whether the main thread has not run since the rank was sampled."""
        known = self._ranks[rank]
        after = processes.pulse(known.process, time.monotonic())
        return known.sample is not None and after is not None and after.stands_since(known.sample.pulse)

    def _stacks(self, ranks: set[int]) -> dict[int, python_stacks.Stacks]:
        process_of = {self._ranks[rank].process: rank for rank in ranks if self._ranks[rank].status is None}
        seconds = 3.0 + 0.01 * len(process_of)
        answers = introspection.ask(self.server.endpoint, dict.fromkeys(process_of, "stacks"), seconds)
        return {process_of[process]: python_stacks.parse(answer) for process, answer in answers.items()}

    # ---- reports ----

    def _somebody_waits(self, waits: list[PendingWait]) -> bool:
        still = (Doing.STANDS, Doing.SLEEPS, Doing.POLLS)
        return bool(waits) or any(known.doing in still for known in self._ranks.values())

    def _no_progress(self, now: float, waits: list[PendingWait]) -> dict[str, Any]:
        alive = {rank for rank, known in self._ranks.items() if known.status is None}
        finding = Finding("no progress", set(), waits, now - self._moved)
        report = {**self._report(finding, self._stacks(alive)), "resolved": False}
        self._suspicion = _Suspicion(self._moved, report)
        told = write_report(self.settings.folder, "no_progress.json", report)
        return {"no_progress": {**told, "seconds": report["seconds"]}}

    def _mismatch(self) -> dict[str, Any]:
        failures = list(self.server.held_failures)
        ranks = {rank for rank, _ in failures}
        waits = list(self.server.state.waits())
        self._reported = frozenset(self._ranks)
        finding = Finding("mismatch", ranks, waits, 0.0, failures[-1][1])
        return self._hang(finding, self._stacks(set(self._ranks)))

    def _report(self, finding: Finding, answers: Mapping[int, python_stacks.Stacks]) -> dict[str, Any]:
        missing = {rank for wait in finding.waits if wait.communicator for rank in wait.missing}
        others = sorted(self._ranks)[:_MOST_OTHERS]
        answers = {**answers, **self._stacks(missing.union(others).intersection(self._ranks).difference(answers))}
        ranks = {
            rank: Rank(
                rank, known.doing, known.status, answers.get(rank, python_stacks.Stacks()), self._is_in_store(known)
            )
            for rank, known in self._ranks.items()
        }
        report = make_report(finding, ranks, self.server.state, self._recorders, self._write_recorders)
        if self.settings.freezes:
            self._freeze()
        return report

    def _hang(self, finding: Finding, answers: Mapping[int, python_stacks.Stacks]) -> dict[str, Any]:
        report = self._report(finding, answers)
        return {"hang": {**write_report(self.settings.folder, "hang.json", report), "kind": report["kind"]}}

    def _freeze(self) -> None:
        """For a debugger: nobody goes on, not even with the error that a mismatch is."""
        self.is_frozen = True
        for known in self._ranks.values():
            if known.status is None:
                with suppress(ProcessLookupError):
                    os.killpg(known.process, signal.SIGSTOP)

    def _is_in_store(self, known: _Known) -> bool:
        return known.status is None and thread_waits.is_in_store(known.process, self.settings.store_port)

    def _recorders(self, ranks: list[int]) -> dict[int, flight_recorder.Recorder]:
        """Flight recorders of some ranks."""
        process_of = {
            self._ranks[rank].process: rank for rank in ranks[:_MOST_RECORDERS] if self._ranks[rank].status is None
        }
        answers = introspection.ask(self.server.endpoint, dict.fromkeys(process_of, "recorder all"), _RECORDER_SECONDS)
        return {process_of[process]: flight_recorder.parse(answer) for process, answer in answers.items()}

    def _write_recorders(self) -> str:
        """Those of all ranks, for torchfrtrace; how their files' names begin, or nothing."""
        if self.settings.world_size > _MOST_DUMPS:
            return ""
        prefix = self.settings.folder / "flight_recorder" / "rank_"
        try:
            prefix.parent.mkdir(parents=True, exist_ok=True)
        except OSError:  # a full disk
            return ""
        asked = {
            known.process: f"recorder all {prefix}{rank}" for rank, known in self._ranks.items() if known.status is None
        }
        return str(prefix) if any(introspection.ask(self.server.endpoint, asked, _RECORDER_SECONDS).values()) else ""
