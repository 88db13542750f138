"""The survey before a job with representatives: runs a few ranks, round by round, until it is known which ranks
represent the job (maya/replay/representatives.py).

In: a job, as a function of the ranks that are present. Out: the present ranks of the job proper. The first round runs
rank 0 alone, from which the process groups of all ranks are known; if it cannot run alone, that is no failure.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from maya.launcher.arguments import LaunchOptions, StreamChoice, StreamCodes
from maya.launcher.attempt import AttemptOutcome
from maya.replay.mesh_blocks import FILE as SURVEY_FILE
from maya.replay.mesh_blocks import SurveyResult
from maya.replay.rank_class import trace_facts
from maya.replay.representatives import RepresentativeSearch
from maya.replay.represented_ranks import RepresentedJob
from maya.util.ranks import ranks_text

FOLDER = "survey"
_MOST_ROUNDS = 12
_STEPS = 2  # optimizer steps of a round: the first one differs from the others in most jobs
_TO_FILES = StreamCodes({}, StreamChoice(stdout=True, stderr=True))

Attempt = Callable[[LaunchOptions, Path], tuple[AttemptOutcome, Path]]  # the ranks of a round -> outcome, log folder


class SurveyFailed(Exception):
    """A round of the survey failed or was stopped."""


def find_representatives(
    launch: LaunchOptions, run_folder: Path, attempt: Attempt, say: Callable[[str], None]
) -> tuple[int, ...]:
    """Run rounds until the representatives are known; save the result in the run's folder, and return the ranks that
    have to be present."""
    folder = run_folder / FOLDER
    try:
        present, result = _find(launch, folder, attempt, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if result is None:
        say(f"a survey would have to run all {launch.world_size} ranks, so all of them run")
        return present
    result.save(run_folder)
    say(f"{ranks_text(present)} represent all {launch.world_size} ranks ({run_folder / SURVEY_FILE})")
    return present


def _find(
    launch: LaunchOptions, folder: Path, attempt: Attempt, say: Callable[[str], None]
) -> tuple[tuple[int, ...], SurveyResult | None]:
    present: tuple[int, ...] = (0,)
    p2p: set[tuple[int, ...]] = set()
    for number in range(1, _MOST_ROUNDS + 1):
        say(f"survey, round {number}: {ranks_text(present)} of {launch.world_size}")
        round_folder = folder / str(number)
        round_folder.mkdir(parents=True)
        quiet = replace(
            launch,
            present=present,
            redirects=_TO_FILES,
            log_folder=round_folder / "logs",
            stop_after=min(launch.stop_after or _STEPS, _STEPS),
        )
        outcome, logs = attempt(quiet, round_folder)
        job = RepresentedJob.load(round_folder)
        if outcome.stopped_by is not None:
            raise SurveyFailed("")
        failed = outcome.problem is not None or bool(outcome.failed) or outcome.hang is not None
        if job is None or (failed and (number > 1 or not job.groups)):
            raise SurveyFailed(_problem(outcome, present, logs))
        facts = trace_facts(round_folder)
        # A rank that does nothing on its GPU has no trace.
        digests = {} if failed else {rank: facts.digests.get(rank, b"") for rank in present}
        p2p |= facts.p2p
        search = RepresentativeSearch(job, p2p)
        missing = search.next_ranks(digests)
        if not missing:
            result = search.result(digests, number)
            return search.present(result), result
        shutil.rmtree(round_folder, ignore_errors=True)
        present = tuple(sorted({*present, *missing}))
        if len(present) == launch.world_size:
            return present, None
    raise SurveyFailed(
        f"after {_MOST_ROUNDS} rounds it is still not known which ranks are alike; name them (--represent 0,8,16), or "
        "run all ranks (--represent all)"
    )


def _problem(outcome: AttemptOutcome, present: tuple[int, ...], logs: Path) -> str:
    what = outcome.problem or (f"a {outcome.hang}" if outcome.hang else "a rank failed")
    shown = ""
    for end in outcome.exits:
        file = logs / "attempt_0" / str(end.rank) / "stderr.log"
        if end.exit_code not in (0, -15) and file.is_file():
            shown = "\n" + file.read_text(encoding="utf-8", errors="replace")[-4000:]
            break
    return (
        f"the survey for representatives failed with {ranks_text(present)} present: {what}. If the job runs with "
        f"--represent all on few ranks, name the representatives (--represent 0,8,16).{shown}"
    )
