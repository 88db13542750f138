"""The survey before a job with representatives: runs a few ranks, round by round, until it is known which ranks
represent the job (maya/replay/representatives.py).

In: a job, as a function of the ranks that are present. Out: the present ranks of the job proper. The first round runs
rank 0 alone, from which the process groups of all ranks are known; if it cannot run alone, that is no failure.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from maya.doctor import available_memory
from maya.launcher.arguments import LaunchOptions, StreamChoice, StreamCodes
from maya.launcher.attempt import AttemptOutcome, SurveyFailed
from maya.launcher.capacity import ranks_that_fit
from maya.launcher.failure import exit_text
from maya.launcher.giving_up import GaveUp, least_step
from maya.launcher.private_memory import PrivateMemory
from maya.replay.mesh_blocks import FILE as SURVEY_FILE
from maya.replay.mesh_blocks import SurveyResult
from maya.replay.rank_class import KernelNumbers, trace_facts
from maya.replay.representatives import RepresentativeSearch
from maya.replay.represented_ranks import RepresentedJob
from maya.util.ranks import ranks_text

FOLDER = "survey"
_MOST_ROUNDS = 12
_STEPS = 2  # optimizer steps of a round: the first one differs from the others in most jobs
_TO_FILES = StreamCodes({}, StreamChoice(stdout=True, stderr=True))

Attempt = Callable[[LaunchOptions, Path], tuple[AttemptOutcome, Path]]  # the ranks of a round -> outcome, log folder


def find_representatives(
    launch: LaunchOptions, run_folder: Path, attempt: Attempt, say: Callable[[str], None]
) -> tuple[int, ...]:
    """Run rounds until the representatives are known; save the result in the run's folder, and return the ranks that
    have to be present."""
    folder = run_folder / FOLDER
    try:
        present, result = _Survey(launch, folder, attempt, say).find()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if result is None:
        say(
            f"a survey would have to run all {launch.world_size} ranks, so all of them run; if they differ in details "
            "only, name one of each kind (--represent 0,8,16)"
        )
        return present
    result.save(run_folder)
    say(f"{ranks_text(present)} represent all {launch.world_size} ranks ({run_folder / SURVEY_FILE})")
    return present


class _Survey:
    """The rounds of a survey. A round whose ranks do not fit into memory together runs them in turns."""

    def __init__(self, launch: LaunchOptions, folder: Path, attempt: Attempt, say: Callable[[str], None]) -> None:
        self._launch = launch
        self._folder = folder
        self._attempt = attempt
        self._say = say
        self._known = _KnownRanks()
        self._attempts = 0
        self._rank_bytes = 0  # memory that rank 0 took for itself

    def find(self) -> tuple[tuple[int, ...], SurveyResult | None]:
        """The ranks that have to be present, and the result; no result: all ranks would have to run."""
        world_size, known = self._launch.world_size, self._known
        with PrivateMemory() as memory:
            job = self._run((0,), "round 1", first=True)
        self._rank_bytes = memory.most_bytes
        for number in range(2, _MOST_ROUNDS + 2):
            search = RepresentativeSearch(job, known.p2p, known.lengths)
            missing = {*known.to_repeat.difference(known.digests), *search.next_ranks(known.digests)}
            if not missing:
                result = search.result(known.digests, number - 1)
                return search.present(result), result
            if len({*known.digests, *missing}) == world_size:
                return tuple(range(world_size)), None
            turns = self._turns(search.together, {*known.to_repeat, *missing})
            for turn, present in enumerate(turns, 1):
                of_turns = f", turn {turn} of {len(turns)}" if len(turns) > 1 else ""
                job = self._run(present, f"round {number}{of_turns}")
        raise SurveyFailed(
            f"after {_MOST_ROUNDS} rounds it is still not known which ranks are alike; name them (--represent 0,8,16), "
            "or run all ranks (--represent all)"
        )

    def _turns(self, together: Collection[int], others: Iterable[int]) -> list[tuple[int, ...]]:
        """The ranks of each turn: those that always run, and as many others as fit."""
        rest = sorted(set(others).difference(together))
        room = ranks_that_fit(available_memory(), self._rank_bytes) - len(together)
        at_once = len(rest) if self._known.to_repeat else max(1, room)
        parts = [rest[first : first + at_once] for first in range(0, len(rest), max(1, at_once))] or [[]]
        return [tuple(sorted({*together, *part})) for part in parts]

    def _run(self, present: tuple[int, ...], name: str, *, first: bool = False) -> RepresentedJob:
        """Run ranks and add what they show. The first round runs one step, because it only shows the groups, and two if
        it has to show how long a step is; if rank 0 cannot run alone, that is no failure."""
        launch = self._launch
        self._say(f"survey, {name}: {ranks_text(present)} of {launch.world_size}")
        self._attempts += 1
        folder = self._folder / str(self._attempts)
        folder.mkdir(parents=True)
        steps = 1 if first and launch.give_up is None else _STEPS
        quiet = replace(
            launch,
            present=present,
            redirects=_TO_FILES,
            log_folder=folder / "logs",
            stop_after=min(launch.stop_after or steps, steps),
            record_steps=0,
        )
        outcome, logs = self._attempt(quiet, folder)
        job = RepresentedJob.load(folder)
        if outcome.stopped_by is not None:
            raise SurveyFailed("")
        failed = outcome.problem is not None or bool(outcome.failed) or outcome.hang is not None
        if job is None or (failed and not (first and job.groups)):
            raise SurveyFailed(_problem(outcome, present, logs))
        self._known.add(folder, () if first else present)
        if first and not failed:
            self._check_step(folder, job)
        shutil.rmtree(folder, ignore_errors=True)
        return job

    def _check_step(self, folder: Path, job: RepresentedJob) -> None:
        """Give up if a step takes longer than the user allows."""
        limit = self._launch.give_up
        if limit is None:
            return
        stages = RepresentativeSearch(job, self._known.p2p, self._known.lengths).stages
        least = least_step(folder, limit, stages)
        if least is not None and least.exceeds(limit):
            least.save(self._folder.parent)
            raise GaveUp(least.problem)


class _KnownRanks:
    """What the rounds so far have shown of ranks."""

    def __init__(self) -> None:
        self.digests: dict[int, bytes] = {}
        self.p2p: set[tuple[int, ...]] = set()
        self.lengths: set[int] = set()
        self.to_repeat: set[int] = set()  # ranks that every further round has to run
        self._kernel_numbers: KernelNumbers = {}

    def add(self, folder: Path, ranks: Iterable[int]) -> None:
        """Add the traces of a round; `ranks`: those that ran as long as in other rounds. If a rank has another trace
        than in an earlier round, what a rank does depends on which others are present: then only ranks of the same
        round are compared."""
        facts = trace_facts(folder, self._kernel_numbers)
        self.p2p |= facts.p2p
        self.lengths |= facts.lengths
        found = {rank: facts.digests.get(rank, b"") for rank in ranks}  # a rank that does nothing has no trace
        if self.to_repeat or any(self.digests.get(rank, digest) != digest for rank, digest in found.items()):
            self.to_repeat |= {*self.digests, *found}
            self.digests = found
        else:
            self.digests |= found


def _problem(outcome: AttemptOutcome, present: tuple[int, ...], logs: Path) -> str:
    failed = sorted((end.time, end.rank, end) for end in outcome.exits if end.exit_code not in (0, -signal.SIGTERM))
    what = outcome.problem or (f"a {outcome.hang}" if outcome.hang else "a rank failed")
    shown = ""
    if failed:
        _, rank, end = failed[0]
        if not outcome.problem and not outcome.hang:
            what = f"rank {rank} ended with {exit_text(end.exit_code)}"
        file = logs / "attempt_0" / str(rank) / "stderr.log"
        shown = "\n" + file.read_text(encoding="utf-8", errors="replace")[-4000:] if file.is_file() else ""
    return (
        f"the survey for representatives failed with {ranks_text(present)} present: {what}. If the job runs with "
        f"--represent all on few ranks, name the representatives (--represent 0,8,16).{shown}"
    )
