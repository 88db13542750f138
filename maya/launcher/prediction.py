"""The prediction at the end of a run: lines for the terminal, and `prediction` in summary.json.

In: a `FinishedRun` and its folder. Out: a `PredictionSummary`. If the prediction fails, the summary says why; the job
does not fail. A job that failed or was stopped is predicted for the steps that all its ranks finished; after a failure
one line says so, because the error above it is what matters.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maya.assumptions import Assumption
from maya.launcher.summary_file import FinishedRun
from maya.launcher.terminal_summary import place_text, relative
from maya.replay.call_matching import find_mismatch
from maya.replay.represented_ranks import RepresentedJob
from maya.replay.timeline_builder import NEVER_COMPLETED
from maya.results.predict import TRACES, Prediction, predict
from maya.results.prediction_json import prediction_json
from maya.results.steps import WHOLE_RUN, NoWholeStepError, Steps, recording_limits
from maya.results.terminal_text import lines_of
from maya.util.ranks import format_strided
from maya.util.text import time_text

_PROBLEM = "prediction-error.log"


@dataclass(frozen=True)
class PredictionSummary:
    """A prediction as the launcher prints and writes it."""

    lines: Sequence[str]
    document: dict[str, Any] | None
    problem: str | None = None
    assumptions: Sequence[Assumption] = ()  # also among the lines
    represented: dict[str, Any] | None = None  # which ranks stand for which; None: all were processes


def summarise_prediction(run: FinishedRun, folder: Path) -> PredictionSummary:
    """Predict a run, as far as it got."""
    why_not = _unpredictable(run)
    if why_not is not None:
        return PredictionSummary([f"no prediction: {why_not}"] if run.traces or run.lost_traces else [], None, why_not)
    try:
        made = predict(folder)
        if run.exit_code != 0 and not _has_finished_steps(made.result.steps):
            raise NoWholeStepError("")
        job = RepresentedJob.load(folder)
        doubts = [] if job is None else _doubts(made, job)
        represented = [] if job is None else _represented(made, job, doubts)
        return PredictionSummary(
            _lines(run, made, represented, folder),
            prediction_json(made.result),
            assumptions=made.result.assumptions,
            represented=None if job is None else _represented_json(made, job, doubts),
        )
    except (OSError, ValueError) as error:
        if run.exit_code != 0 and isinstance(error, NoWholeStepError):
            how = "failed" if run.stopped_by is None else "was stopped"
            problem = f"the job {how} before all ranks had finished a step"
            return PredictionSummary([f"no prediction: {problem}"], None, problem)
        problem = f"{error}{_hint_about_absent_ranks(folder, str(error))}"
        return PredictionSummary([f"no prediction: {problem}"], None, problem)
    except Exception as error:  # the job itself succeeded, and its output and traces are complete
        problem = f"{type(error).__name__}: {error}"
        return PredictionSummary([f"no prediction, because Maya failed: {problem} ({_details(folder)})"], None, problem)


def _has_finished_steps(steps: Steps) -> bool:
    """Whether a run that did not end as it should has steps that all ranks finished."""
    return steps.source != WHOLE_RUN and min(steps.whole_steps.values(), default=0) > 0


def _lines(run: FinishedRun, made: Prediction, represented: list[str], folder: Path) -> list[str]:
    unwritten = [f"{made.unwritten}; the prediction above does not depend on them"] if made.unwritten else []
    lines = [*represented, *lines_of(made.result, place_text), *unwritten, _next(made, folder)]
    if run.exit_code == 0:
        return lines
    count = made.result.steps.count
    steps = f"step{'' if count == 1 else 's'}"
    limited = recording_limits(made.result.timeline)
    finished = f"{count} recorded {steps}" if limited else f"{count} {steps} that all ranks finished"
    if run.stopped_by is not None:
        return [f"{'stopped':<11}the prediction is of the {finished} before {run.stopped_by}", *lines]
    step = time_text(made.result.step_ns)
    shown = relative(folder)
    commands = f"maya report {shown} and maya whatif {shown} work on them"
    return [f"{'failed':<11}by the {finished}, a step takes {step}; {commands}"]


def _represented(made: Prediction, job: RepresentedJob, doubts: list[str]) -> list[str]:
    """Which ranks stand for which."""
    classes = [each.ranks for each in made.result.timeline.rank_classes]
    lines = [*job.lines(classes), *doubts]
    return [f"{'' if number else 'represent':<11}{line}" for number, line in enumerate(lines)]


def _doubts(made: Prediction, job: RepresentedJob) -> list[str]:
    """What does not fit together of the ranks of the job, as far as they are assumed, and the remedy."""
    if not job.absent:
        return []
    timeline = made.result.timeline
    mismatch = find_mismatch(timeline.rank_classes)
    if mismatch:
        return [f"{mismatch}; {_remedy(job)}"]
    return [_remedy(job)] if any(NEVER_COMPLETED in problem for problem in timeline.problems) else []


def _remedy(job: RepresentedJob) -> str:
    choice = "name more ranks, or --represent auto" if job.survey is None else "use --represent all"
    return f"absent ranks may do something else than the ranks that represent them: {choice}"


def _hint_about_absent_ranks(folder: Path, problem: str) -> str:
    try:
        job = RepresentedJob.load(folder)
    except (OSError, ValueError):
        return ""
    return f"; {_remedy(job)}" if job is not None and NEVER_COMPLETED in problem else ""


def _represented_json(made: Prediction, job: RepresentedJob, doubts: list[str]) -> dict[str, Any]:
    """Which ranks stand for which, for programs."""
    present = set(job.present)
    return {
        "present": format_strided(job.present),
        "absent": job.world_size - len(job.present),
        "mesh": list(job.mesh.sizes),
        "compared": None if job.survey is None else format_strided(job.survey.compared),
        "classes": [
            {
                "ranks": format_strided(each.ranks),
                "count": len(each.ranks),
                "present": format_strided([rank for rank in each.ranks if rank in present]),
            }
            for each in made.result.timeline.rank_classes
        ],
        "store_keys": list(job.filled),
        "warnings": [
            *job.warnings([each.ranks for each in made.result.timeline.rank_classes]),
            *doubts,
        ],
    }


def _details(folder: Path) -> str:
    """Write the traceback to a file and name it; return the traceback itself if the disk is full."""
    try:
        (folder / _PROBLEM).write_text(traceback.format_exc(), encoding="utf-8")
    except OSError:
        return traceback.format_exc()
    return f"see {relative(folder / _PROBLEM)}"


def _unpredictable(run: FinishedRun) -> str | None:
    if not run.traces:
        return "no trace was written" if run.lost_traces else "nothing was recorded"
    if run.attempts > 1:
        return "the workers were restarted, so no trace covers the whole job"
    return None


def _next(made: Prediction, folder: Path) -> str:
    """The line that names the files to open and the commands to run next."""
    cluster = relative(made.cluster_trace) if made.cluster_trace is not None else ""
    traces = relative(folder / TRACES) + "/" if made.rank_traces else ""
    pictures = " and ".join(filter(None, [cluster, traces]))
    drawn = f"{pictures} in ui.perfetto.dev; " if pictures else ""
    return f"{'open':<11}{drawn}maya report {relative(folder)}; maya whatif {relative(folder)}"
