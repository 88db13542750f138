"""Runs the trials of a search.

In: the job, its space and the limits. Out: trials in the folder of the search, each finished one with a row.

Trials run beside each other, as many as `jobs`, and where memory is free. The choice of a trial uses the results of
those that began `jobs` runs before it and earlier, so it does not depend on which of them ends first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from maya.config_search.errors import SearchError
from maya.config_search.inference import inferred_from, memory_directions
from maya.config_search.objective import find_objective
from maya.config_search.pruning import bounds_of, give_up_limit
from maya.config_search.ray_trials import RayCluster, RayTrial
from maya.config_search.search_folder import SearchFolder
from maya.config_search.search_progress import SearchProgress
from maya.config_search.search_settings import SearchSettings
from maya.config_search.search_space import Configuration, SearchSpace, configuration_text
from maya.config_search.trial_choice import TrialChoice, TriedConfiguration, configuration_key
from maya.config_search.trial_command import JobTemplate, TrialCommand
from maya.config_search.trial_ledger import LedgerEntry, TrialLedger
from maya.config_search.trial_process import TrialProcess
from maya.config_search.trial_results import can_replay, inferred_row, replayed_row, row_of_refusal, row_of_trial
from maya.config_search.trial_row import OUT_OF_MEMORY, RUN, TrialRow, trial_name
from maya.doctor import available_memory
from maya.launcher.giving_up import GiveUpLimit

_POLL_SECONDS = 0.2
_BASE_BYTES = 12 * 2**27  # 1.5 GiB: the launcher, the coordinator and what ranks share
_UNKNOWN_BYTES = 2**30  # for the processes of the first trial


@dataclass(frozen=True)
class _Running:
    number: int
    configuration: Configuration
    command: TrialCommand
    process: TrialProcess | RayTrial
    lock: int
    limit: GiveUpLimit | None


class SearchRunner:
    """`environment`: that of the jobs. `choice` knows all configurations. `cluster`: where trials run; None: here."""

    def __init__(
        self,
        settings: SearchSettings,
        job: JobTemplate,
        space: SearchSpace,
        choice: TrialChoice,
        folder: SearchFolder,
        environment: Mapping[str, str],
        progress: SearchProgress,
        cluster: RayCluster | None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._job = job
        self._space = space
        self._choice = choice
        self._folder = folder
        self._environment = environment
        self._progress = progress
        self._jobs = settings.jobs or (os.cpu_count() or 1 if cluster is None else cluster.processors)
        objective = find_objective(settings.objective, ())
        self._ledger = TrialLedger(folder.database, space.parameters, maximise=objective.is_best_high)
        self._rows: dict[int, TrialRow] = {}
        self._commands: dict[tuple[object, ...], TrialCommand | SearchError] = {}
        self._running: list[_Running] = []
        self._began = time.monotonic()

    def close(self) -> None:
        """Close the storage."""
        self._ledger.close()

    def rows(self) -> list[TrialRow]:
        """The finished trials, of other searches on the same folder as well."""
        for entry in self._ledger.entries():
            if entry.number not in self._rows and (row := self._folder.finished(entry.number)) is not None:
                self._rows[entry.number] = row
                if not entry.is_finished:  # the search was killed between the two
                    self._note_end(row, entry.limit)
        return [self._rows[number] for number in sorted(self._rows)]

    def run(self) -> None:
        """Run trials until the limits are reached or all are known. Ends all jobs after an exception."""
        try:
            while True:
                self._collect()
                began = self._begin_trials()
                if not self._running and not began:
                    return
                self._progress.show([(each.configuration, each.process.seconds) for each in self._running])
                time.sleep(_POLL_SECONDS)
        finally:
            for each in self._running:
                each.process.interrupt()
            for each in self._running:
                each.process.wait_for_end()
                os.close(each.lock)

    # ---- the end of trials ----

    def _collect(self) -> None:
        for each in list(self._running):
            exit_code = each.process.exit_code()
            if exit_code is None:
                continue
            self._running.remove(each)
            process = each.process
            row = row_of_trial(
                each.number, each.configuration, each.command, process.run, process.log, exit_code, process.seconds
            )
            self._finish(row, each.limit)
            os.close(each.lock)

    def _finish(self, row: TrialRow, limit: GiveUpLimit | None = None) -> None:
        self._folder.write(row)
        self._rows[row.number] = row
        self._note_end(row, limit)
        self._progress.end(row, self.rows(), self._runs_left() + len(self._running), self._jobs)

    def _note_end(self, row: TrialRow, limit: GiveUpLimit | None) -> None:
        """Note the end of a trial in Optuna's storage."""
        name = self._settings.objective
        if row.bound is not None and limit is not None:
            self._ledger.prune(row.number, *bounds_of(row.bound, limit, find_objective(name, [row.bound])))
        elif row.figures is not None and row.is_predicted:
            self._ledger.finish(row.number, find_objective(name, [row.figures]).value(row.figures))
        else:
            self._ledger.finish(row.number, None)

    # ---- the beginning of trials ----

    def _begin_trials(self) -> bool:
        """Begin as many trials as may run; whether anything has changed."""
        changed = False
        while len(self._running) < self._jobs and not self._is_over() and self._has_memory():
            with self._folder.choosing():
                rows = self.rows()
                if not (self._take_over() or self._begin_next(rows)):
                    break
            changed = True
        return changed

    def _is_over(self) -> bool:
        minutes = self._settings.minutes
        return bool(minutes) and time.monotonic() - self._began > 60 * (minutes or 0)

    def _runs_left(self) -> int:
        known = {entry.number: self._rows.get(entry.number) for entry in self._ledger.entries()}
        runs = sum(row is None or row.origin == RUN for row in known.values())
        return max(0, min(self._settings.trials - runs, self._choice.count - len(known)))

    def _has_memory(self) -> bool:
        """Whether the largest trial so far would fit beside those that run on this machine."""
        if not self._running or self._cluster is not None:
            return True
        need = max((row.processes_bytes or 0 for row in self._rows.values()), default=0) or _UNKNOWN_BYTES
        return available_memory() > need * 5 // 4 + _BASE_BYTES

    def _take_over(self) -> bool:
        """Run a trial again that an earlier search began and that no process runs any more."""
        own = {each.number for each in self._running}
        for entry in self._ledger.entries():
            if entry.is_finished or entry.number in own or entry.number in self._rows:
                continue
            lock = self._folder.lock_trial(entry.number)
            if lock is not None:
                self._start(entry.number, entry.configuration, lock, entry.limit)
                return True
        return False

    def _begin_next(self, rows: Sequence[TrialRow]) -> bool:
        """Choose a configuration, and run, replay or infer it. False: nothing can begin now."""
        entries = self._ledger.entries()
        runs = [entry.number for entry in entries if (row := self._rows.get(entry.number)) is None or row.origin == RUN]
        hidden = set(runs[max(0, len(runs) - self._jobs + 1) :])  # too recent for the choice to depend on them
        if any(each.number not in hidden for each in self._running):
            return False
        seen = [row for row in rows if row.number not in hidden and row.source not in hidden]
        if self._begin_by(entries, seen, hidden):
            return True
        return not self._running and self._begin_by(entries, rows, set())

    def _begin_by(self, entries: Sequence[LedgerEntry], seen: Sequence[TrialRow], hidden: set[int]) -> bool:
        """`seen`: the trials that the choice may depend on; those in `hidden` run, or ended too lately."""
        known = _KnownTrials(seen, memory_directions(seen, self._space.parameters), self._command)
        left = self._runs_left()
        if not left and not self._choice.can_be_searched:
            return False
        running = [entry.configuration for entry in entries if entry.number in hidden]

        def is_open(configuration: Configuration) -> bool:
            if known.about(configuration) is not None:
                return True
            return left > 0 and not any(self._replays(other, configuration) for other in running)

        configuration = self._choice.next(len(entries), self._tried(entries, seen), is_open)
        if configuration is None:
            return False
        command, source = self._command(configuration), known.about(configuration)
        limit = self._limit(command, seen) if source is None else None
        number = self._ledger.begin(configuration, str(self._folder.folder), limit)
        if isinstance(command, SearchError):
            self._finish(row_of_refusal(number, configuration, str(command)))
        elif source is None:
            lock = self._folder.lock_trial(number)
            assert lock is not None, "no other search can have this trial"
            self._start(number, configuration, lock, limit)
        elif source.is_predicted:
            self._finish(replayed_row(number, configuration, command, source, self._folder.folder))
        else:
            names = [name for name in self._space.names if source.configuration[name] != configuration[name]]
            reason = f"trial {source.number} runs out of memory with {configuration_text(source.configuration, names)}"
            self._finish(inferred_row(number, configuration, source, reason))
        return True

    def _limit(self, command: TrialCommand | SearchError, seen: Sequence[TrialRow]) -> GiveUpLimit | None:
        """Above which step time the next trial is given up."""
        if isinstance(command, SearchError) or not self._settings.prune:
            return None
        return give_up_limit(seen, self._settings.objective, self._settings.memory, command)

    def _start(self, number: int, configuration: Configuration, lock: int, limit: GiveUpLimit | None) -> None:
        command = self._command(configuration)
        if isinstance(command, SearchError):
            self._finish(row_of_refusal(number, configuration, str(command)))
            os.close(lock)
            return
        run = self._folder.run_folder(number)
        log = self._folder.folder / f"{trial_name(number)}.log"
        environment = {**self._environment, **command.environment}
        begin = TrialProcess if self._cluster is None else self._cluster.start
        words = command.words if limit is None else (f"--give-up-above={limit.text()}", *command.words)
        process = begin(words, run, log, environment, lock)
        self._running.append(_Running(number, configuration, command, process, lock, limit))

    def _tried(self, entries: Sequence[LedgerEntry], seen: Sequence[TrialRow]) -> list[TriedConfiguration]:
        """All that are taken, with the scores of those in `seen`."""
        figures = [row.figures for row in seen if row.is_predicted and row.figures is not None]
        objective = find_objective(self._settings.objective, figures)
        rows = {row.number: row for row in seen}
        tried = []
        for entry in entries:
            row = rows.get(entry.number)
            fits = row is not None and row.figures is not None and row.fits(self._settings.memory)
            score = objective.score(row.figures) if row is not None and row.figures is not None and fits else None
            if row is not None and row.bound is not None:
                score = objective.score(row.bound)  # it is no better
            tried.append(TriedConfiguration(entry.configuration, score, is_running=row is None))
        return tried

    def _replays(self, before: Configuration, after: Configuration) -> bool:
        source, target = self._command(before), self._command(after)
        return isinstance(source, TrialCommand) and isinstance(target, TrialCommand) and can_replay(source, target)

    def _command(self, configuration: Configuration) -> TrialCommand | SearchError:
        """The command of a configuration, or why there is none."""
        key = configuration_key(configuration)
        if key not in self._commands:
            try:
                self._commands[key] = self._job.command(self._space, configuration, self._environment)
            except SearchError as error:
                self._commands[key] = error
        return self._commands[key]


class _KnownTrials:
    """What finished trials say about configurations that have not run."""

    def __init__(
        self,
        rows: Sequence[TrialRow],
        directions: Mapping[str, int],
        command: Callable[[Configuration], TrialCommand | SearchError],
    ) -> None:
        self._rows = rows
        self._directions = directions
        self._command = command
        self._runs: dict[tuple[object, ...], list[tuple[TrialRow, TrialCommand]]] = {}
        for row in rows:
            made = command(row.configuration)
            if row.origin == RUN and isinstance(made, TrialCommand):
                self._runs.setdefault(made.software, []).append((row, made))

    def about(self, configuration: Configuration) -> TrialRow | None:
        """A trial whose run can be replayed, or one that ran out of memory though it needs no more. None: it must
        run."""
        command = self._command(configuration)
        if isinstance(command, SearchError):
            return None
        for row, other in self._runs.get(command.software, ()):
            if not can_replay(other, command):
                continue
            is_larger = command.device.memory_bytes > other.device.memory_bytes
            if row.is_predicted or (row.outcome == OUT_OF_MEMORY and not is_larger):
                return row
        return inferred_from(configuration, self._rows, self._directions)
