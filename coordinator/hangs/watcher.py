"""Watches the ranks for hangs: decides when to poll them, and reports the hangs it finds.

In: events of the launcher and the server (ranks that start and end, answers that fail), and the time. Out: reports in
the run's folder (hang_report.py), and lines for the launcher about them (coordinator/process.py).

The watcher does not poll while requests of ranks arrive. After a quiet time it polls the main threads of all ranks
twice. The suspects are the blocked ranks that no running rank could unblock. The watcher polls all threads of the
suspects twice, and asks the ranks that were blocked throughout for their stacks.

Proven, and reported as hang.json:
  deadlock       ranks can never go on; other ranks may still run
  mismatch       ranks posted calls that do not match; reported at once

Suspected, and reported as no_progress.json:
  no progress    no rank has shown any activity for `patience` seconds. A rank may sleep, download or wait for a lock,
                 so the watcher goes on polling, and reports when the ranks go on. It reports a later pause only if that
                 lasts twice as long as the longest one so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from coordinator.communicators import PendingWait
from coordinator.hangs import flight_recorder, processes, thread_waits
from coordinator.hangs.deadlock import Condition, stuck_ranks
from coordinator.hangs.frame_values import RankValues
from coordinator.hangs.hang_report import make_report
from coordinator.hangs.processes import Doing, Pulse, Sample
from coordinator.hangs.rank_groups import Finding, Rank
from coordinator.hangs.rank_processes import RankProcesses
from coordinator.hangs.report_file import write_report
from coordinator.hangs.store_keys import awaited_key
from coordinator.state import State
from maya.hangs.python_stacks import Stacks
from rank_runtime.messages import Failed, RequestFailed

_QUIET_SECONDS = 0.7  # from the last request to the first poll
_APART_SECONDS = 0.5  # between two polls of a round
_MOST_SECONDS = 2.0  # between two rounds of polls
_POST_SECONDS, _MOST_POST_SECONDS = 3.0, 10.0  # after calls that do not match, for posts of other members
_SHARE = 0.2  # largest share of wall time spent on polling; wall time because the ranks may leave little of a core
_UNSEEN_SECONDS = 2.5  # ranks that wait for unknown actions of other ranks count as stuck only after this time
_LEAST_ASKED_AGAIN, _MOST_ASKED_AGAIN = 2.0, 8.0  # seconds between two requests for the stacks of the same ranks
_LOOK_SECONDS = 0.1  # between two polls for a report on request
_MOST_OTHERS = 64  # ranks to ask for stacks although no rank waits for them
_MOST_RECORDERS = 16
_MOST_DUMPS = 64  # largest world size for which all flight recorders are written


class WatchedServer(Protocol):
    """The part of a `Server` that a watcher needs."""

    @property
    def state(self) -> State: ...
    @property
    def held_failures(self) -> list[tuple[int, Failed | RequestFailed]]: ...
    def turn(self) -> None: ...


@dataclass
class WatcherSettings:
    """The settings of a watcher."""

    world_size: int
    folder: Path  # for reports and flight recorders
    patience: float = 60.0
    store_port: int | None = None
    freezes: bool = False  # stop the ranks when a hang is reported
    answers_only: bool = False  # a single rank: nothing to watch, but somebody may ask


@dataclass
class _RankState:
    """The last observed state of a rank."""

    pulse: Pulse | None = None
    sample: Sample | None = None
    doing: Doing = Doing.RUNS
    known: bool = True  # its machine has answered the last poll
    status: int | None = None  # exit status


@dataclass(frozen=True)
class _Suspicion:
    """A reported pause of all ranks that may be a hang."""

    since: float
    report: dict[str, Any]


@dataclass
class Watcher:
    """Watches the ranks of one server."""

    server: WatchedServer
    settings: WatcherSettings
    processes: RankProcesses
    fill_in: Callable[[], bool] | None = None  # acts for absent ranks; returns whether ranks can go on now
    _ranks: dict[int, _RankState] = field(default_factory=dict)
    _activity: int = -1
    _changed: float = 0.0  # time of the last request
    _moved: float = 0.0  # time of the last activity of any rank
    _due: float = 0.0
    _polls: int = 0  # number of polls in this round
    _suspects: frozenset[int] = frozenset()  # ranks that this round samples with all their threads
    _asked: float = 0.0
    _ask_again: float = _LEAST_ASKED_AGAIN  # seconds from _asked to the next request for stacks
    _interval: float = 1.0
    _is_ending: bool = False  # a rank has failed, or the launcher stops the job
    _candidates: frozenset[int] = frozenset()  # stuck at the last poll while other ranks ran
    _reported: frozenset[int] = frozenset()
    _longest: float = 0.0  # seconds of the longest reported pause
    _suspicion: _Suspicion | None = None  # the reported pause, while it lasts
    _mismatched: float = 0.0  # when the server first held a failure
    is_frozen: bool = False

    def started(self, rank: int, process: int, node: str = "") -> None:
        """`node`: the machine of the rank; empty: this one."""
        self._ranks[rank] = _RankState()
        self.processes.started(rank, process, node)
        self._is_ending = False
        self._moved = time.monotonic()

    def exited(self, rank: int, status: int) -> None:
        self.processes.exited(rank)
        state = self._ranks.get(rank)
        if state is not None:
            state.status, state.doing = status, Doing.GONE
        self._is_ending = self._is_ending or status != 0
        if status == 0:
            self._moved = time.monotonic()

    def stopping(self) -> None:
        """The launcher stops the job."""
        self._is_ending = True

    def continued(self) -> None:
        """The user has continued the stopped ranks."""
        self.is_frozen = False
        self._moved = time.monotonic()

    def seconds(self) -> float:
        """How long to wait for messages before the next poll."""
        return max(0.05, min(1.0, self._due - time.monotonic()))

    def poll(self) -> dict[str, Any] | None:
        """Poll the ranks if it is time; return a line for the launcher if there is something to report."""
        now = time.monotonic()
        if self.is_frozen or self.settings.answers_only:
            return None
        if (resumed := self.resumed()) is not None:
            return resumed
        if self.server.held_failures:
            if self._reported:  # the ranks stay in these calls
                return None
            self._mismatched = self._mismatched or now
            # Wait for posts of other members: they belong in the report.
            quiet = min(now - self._changed, now - self._mismatched) >= _POST_SECONDS
            if quiet or self._all_have_posted() or now - self._mismatched >= _MOST_POST_SECONDS:
                return self._mismatch()
        if self.server.state.activity != self._activity:
            self._activity = self.server.state.activity
            self._changed = self._moved = now
            self._polls = 0
            self._due = now + _QUIET_SECONDS
            self._interval = _APART_SECONDS
            return None
        if now < self._due or self._is_ending or len(self._ranks) < self.settings.world_size:
            return None
        return self._next_poll(now)

    def _all_have_posted(self) -> bool:
        """Whether every member has posted the collectives that do not match."""
        missing = [collective.missing for _, collective in self.server.state.disagreements()]
        return bool(missing) and not any(missing)

    def resumed(self) -> dict[str, Any] | None:
        """A line for the launcher if the ranks go on after a reported pause."""
        suspicion = self._suspicion
        if suspicion is None or self._moved <= suspicion.since or self._is_ending:
            return None
        self._suspicion = None
        seconds = round(self._moved - suspicion.since, 1)
        self._longest = max(self._longest, seconds)
        resolved = {**suspicion.report, "seconds": seconds, "resolved": True}
        write_report(self.settings.folder, "no_progress.json", resolved)
        return {"resumed": {"seconds": seconds}}

    def all_wait_in_store(self) -> bool:
        """Whether every rank waits in the store, and has no other thread that could do something meanwhile."""
        live = self._alive()
        if len(self._ranks) < self.settings.world_size or self._in_store(live) != live:
            return False
        answers = self.processes.stacks(live)
        return all(
            rank in answers
            and answers[rank].known
            and not any(map(thread_waits.runs_the_program, answers[rank].others))
            for rank in live
        )

    def _alive(self) -> set[int]:
        return {rank for rank, state in self._ranks.items() if state.status is None}

    def _in_store(self, ranks: Iterable[int]) -> set[int]:
        return self.processes.in_store(ranks, self.settings.store_port)

    # ---- polls ----

    def _next_poll(self, now: float) -> dict[str, Any] | None:
        """The next poll of a round. A round ends early if there are no suspects."""
        self._polls += 1
        report = None
        if self._polls == 1:
            self._take_pulses()
        elif self._polls == 2:
            self._take_pulses()
            self._suspects = self._find_suspects(now)
            self._sample()
        else:
            self._sample()
            report = self._judge(now)
        if self._polls == 3 or (self._polls == 2 and not self._suspects):
            self._polls = 0
            self._interval = min(_MOST_SECONDS, self._interval * 2)
        pause = self._interval if self._polls == 0 else _APART_SECONDS
        self._due = now + max(pause, (time.monotonic() - now) / _SHARE)
        return report

    def _take_pulses(self) -> None:
        alive = self._alive()
        found = self.processes.pulses(alive)
        for rank in alive:
            state = self._ranks[rank]
            state.known = rank in found
            if state.known:
                before, state.pulse = state.pulse, found[rank]
                state.doing = processes.doing_of_main(before, state.pulse)
            else:  # the next pulse tells what it has done since the last one
                state.doing = Doing.RUNS

    def _find_suspects(self, now: float) -> frozenset[int]:
        """Ranks that no running rank could unblock; all ranks if none has run for `patience` seconds."""
        if any(state.doing is Doing.RUNS and state.known for state in self._ranks.values()):
            self._moved = now
        if self._makes_no_progress(now):
            return frozenset(self._alive())
        return frozenset(self._possibly_stuck() - self._reported)

    def _sample(self) -> None:
        suspects = self._suspects & self._alive()
        if not suspects:
            return
        found = self.processes.samples(suspects)
        for rank in suspects:
            state = self._ranks[rank]
            before, state.sample = state.sample, found.get(rank)
            if rank not in found or (self._polls == 3 and not state.known):
                state.doing, state.known = Doing.RUNS, False
            elif self._polls == 3:
                state.doing = processes.doing(before, state.sample)

    def _judge(self, now: float) -> dict[str, Any] | None:
        suspects = [self._ranks[rank] for rank in self._suspects]
        if any(state.doing is Doing.RUNS and state.known for state in suspects):
            self._moved = now
        waits = list(self.server.state.waits())
        if self._possibly_stuck() - self._reported:
            report = self._ask(now, waits, self._blocked())
            if report is not None:
                return report
        is_new = self._suspicion is None and now - self._moved >= 2 * self._longest
        is_new = is_new and self.server.state.activity == self._activity  # requests may be handled during a poll
        if is_new and self._makes_no_progress(now) and self._any_rank_waits(waits):
            return self._no_progress(now, waits)
        return None

    def _makes_no_progress(self, now: float) -> bool:
        is_known = all(state.known for state in self._ranks.values() if state.status is None)
        return is_known and now - self._moved >= self.settings.patience and not self._reported

    def _blocked(self) -> set[int]:
        return {rank for rank, state in self._ranks.items() if state.doing is Doing.BLOCKED}

    def _possibly_stuck(self) -> set[int]:
        """The stuck ranks, if only other ranks can unblock the blocked ones."""
        waits = list(self.server.state.waits())
        blocked = self._blocked()
        has_waits = {rank for wait in waits for rank in wait.waiting}
        return stuck_ranks({rank: self._condition(rank, blocked, rank in has_waits) for rank in self._ranks}, waits)

    def _condition(self, rank: int, blocked: set[int], has_waits: bool) -> Condition:
        if self._ranks[rank].doing is Doing.GONE:
            return Condition.ENDED
        if rank not in blocked:
            return Condition.FREE
        return Condition.CALLS if has_waits else Condition.OTHER_RANKS

    def _ask(self, now: float, waits: list[PendingWait], blocked: set[int]) -> dict[str, Any] | None:
        """Ask the blocked ranks for their stacks, and report them if they are stuck."""
        if now - self._asked < min(self._ask_again, (now - self._changed) / 2):
            return None
        self._asked = now
        has_waits = {rank for wait in waits for rank in wait.waiting}
        inspected = self.processes.inspect({rank: rank in has_waits for rank in blocked}, self.settings.store_port)
        conditions = {rank: self._condition(rank, blocked, rank in has_waits) for rank in self._ranks}
        for rank in blocked:
            conditions[rank] = inspected[rank].condition if rank in inspected else Condition.FREE
        cost = (time.monotonic() - now) / _SHARE
        self._ask_again = min(_MOST_ASKED_AGAIN, max(_LEAST_ASKED_AGAIN, cost))
        stuck = stuck_ranks(conditions, waits)
        self.server.turn()  # handle requests that were on their way
        if not stuck - self._reported or self.server.state.activity != self._activity:
            return None
        if not self._are_still_blocked(stuck):  # a rank may have gone on while others answered
            return None
        goes_on = any(condition is Condition.FREE for condition in conditions.values())
        if goes_on and stuck != self._candidates:  # the other ranks may block soon: check again
            self._candidates = frozenset(stuck)
            self._asked = 0.0
            return None
        unseen = any(conditions[rank] is Condition.OTHER_RANKS for rank in stuck)
        if unseen and now - self._changed < _UNSEEN_SECONDS:
            return None
        if not goes_on and self.fill_in is not None and self.fill_in():
            self._changed = self._moved = now
            return None
        self._reported = frozenset(stuck)
        kind = "partial deadlock" if goes_on else "deadlock"
        answers = {rank: inspection.stacks for rank, inspection in inspected.items()}
        return self._hang(Finding(kind, stuck, waits, now - self._changed), answers)

    def _are_still_blocked(self, ranks: set[int]) -> bool:
        """Whether no main thread of these ranks has run since the last sample."""
        found = self.processes.pulses(ranks)
        return all(_is_still_blocked(self._ranks[rank].sample, found.get(rank)) for rank in ranks)

    # ---- reports ----

    def _any_rank_waits(self, waits: list[PendingWait]) -> bool:
        idle = (Doing.BLOCKED, Doing.SLEEPS, Doing.POLLS)
        return bool(waits) or any(state.doing in idle for state in self._ranks.values())

    def _no_progress(self, now: float, waits: list[PendingWait]) -> dict[str, Any]:
        finding = Finding("no progress", set(), waits, now - self._moved)
        report = {**self._report(finding, self.processes.stacks(self._alive())), "resolved": False}
        self._suspicion = _Suspicion(self._moved, report)
        entry = write_report(self.settings.folder, "no_progress.json", report)
        return {"no_progress": {**entry, "seconds": report["seconds"]}}

    def _mismatch(self) -> dict[str, Any]:
        failures = list(self.server.held_failures)
        ranks = {rank for rank, _ in failures}
        waits = list(self.server.state.waits())
        self._reported = frozenset(self._ranks)
        finding = Finding("mismatch", ranks, waits, 0.0, failures[-1][1])
        return self._hang(finding, self.processes.stacks(self._alive()))

    def _report(self, finding: Finding, answers: Mapping[int, Stacks]) -> dict[str, Any]:
        missing = {rank for wait in finding.waits if wait.communicator for rank in wait.missing}
        others = sorted(self._ranks)[:_MOST_OTHERS]
        asked = missing.union(others).intersection(self._alive()).difference(answers)
        answers = {**answers, **self.processes.stacks(asked)}
        ranks = self._observed(answers)
        report = make_report(finding, ranks, self.server.state, self._recorders, self._write_recorders, self._values)
        report["hints"] += self.processes.problems()
        if self.settings.freezes:  # also ranks that would get the error of a mismatch
            self.is_frozen = True
            self.processes.stop(self._alive())
        return report

    def _observed(self, answers: Mapping[int, Stacks]) -> dict[int, Rank]:
        """The ranks as the report describes them."""
        alive = self._alive()
        in_store = self._in_store(alive)
        values = self.processes.values(sorted(in_store)[:_MOST_OTHERS]) if in_store else {}
        locks = self.processes.locks(alive)
        found = {}
        for rank, state in self._ranks.items():
            stacks = answers.get(rank, Stacks())
            key = awaited_key(stacks, values[rank]) if rank in values else ""
            found[rank] = Rank(
                rank,
                state.doing,
                state.status,
                stacks,
                rank in in_store,
                locks.get(rank, ""),
                key,
                self.processes.node_of(rank),
            )
        return found

    def activity(self) -> dict[str, Any]:
        """A report of what the ranks do now, because somebody asks; they go on."""
        self._take_pulses()
        time.sleep(_LOOK_SECONDS)
        self._take_pulses()
        self._polls = 0  # the present round would compare with these pulses
        self._due = time.monotonic() + _APART_SECONDS
        finding = Finding("activity", set(), list(self.server.state.waits()), 0.0)
        ranks = self._observed(self.processes.stacks(self._alive()))
        return make_report(finding, ranks, self.server.state, lambda _: {}, str)

    def _values(self, ranks: list[int]) -> dict[int, RankValues]:
        """The values of variables in some ranks."""
        return self.processes.values(self._alive().intersection(ranks))

    def _hang(self, finding: Finding, answers: Mapping[int, Stacks]) -> dict[str, Any]:
        report = self._report(finding, answers)
        return {"hang": {**write_report(self.settings.folder, "hang.json", report), "kind": report["kind"]}}

    def _recorders(self, ranks: list[int]) -> dict[int, flight_recorder.Recorder]:
        """The flight recorders of some ranks."""
        return self.processes.recorders(self._alive().intersection(ranks[:_MOST_RECORDERS]))

    def _write_recorders(self) -> str:
        """Write the flight recorders of all ranks for torchfrtrace; return their common path prefix, or \"\"."""
        if self.settings.world_size > _MOST_DUMPS:
            return ""
        prefix = self.settings.folder / "flight_recorder" / "rank_"
        try:
            prefix.parent.mkdir(parents=True, exist_ok=True)
        except OSError:  # a full disk
            return ""
        return str(prefix) if self.processes.dump_recorders(self._alive(), str(prefix)) else ""


def _is_still_blocked(sample: Sample | None, after: Pulse | None) -> bool:
    """Whether the main thread has not run since the last sample."""
    return sample is not None and after is not None and after.blocked_since(sample.pulse)
