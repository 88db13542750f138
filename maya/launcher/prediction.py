"""What a finished run would have taken on the cluster: lines for the terminal, and the `prediction` of summary.json.

In: a `FinishedRun` and its folder. Out: a `Predicted`. A prediction that fails says why, and does not make the job
fail.
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
from maya.results.document import document
from maya.results.predict import TRACES, Prediction, predict
from maya.results.terminal_text import lines_of

_PROBLEM = "prediction-error.log"


@dataclass(frozen=True)
class Predicted:
    """What there is to say."""

    lines: Sequence[str]
    document: dict[str, Any] | None
    problem: str | None = None
    assumptions: Sequence[Assumption] = ()  # they are among the lines


def predicted(run: FinishedRun, folder: Path) -> Predicted:
    """Simulate a run that ended well."""
    why_not = _unpredictable(run)
    if why_not is not None:
        return Predicted([f"no prediction: {why_not}"] if run.traces or run.lost_traces else [], None, why_not)
    try:
        made = predict(folder)
        unwritten = [f"{made.unwritten}; what is said above does not depend on them"] if made.unwritten else []
        lines = [*lines_of(made.result, place_text), *unwritten, _next(made, folder)]
        return Predicted(lines, document(made.result), assumptions=made.result.assumptions)
    except (OSError, ValueError) as error:
        return Predicted([f"no prediction: {error}"], None, str(error))
    except Exception as error:  # the job itself went well, and what it printed and recorded is there
        problem = f"{type(error).__name__}: {error}"
        return Predicted([f"no prediction, because Maya failed: {problem} ({_details(folder)})"], None, problem)


def _details(folder: Path) -> str:
    """The traceback of what went wrong, in a file, or if there is no room for that, as it is."""
    try:
        (folder / _PROBLEM).write_text(traceback.format_exc(), encoding="utf-8")
    except OSError:
        return traceback.format_exc()
    return f"see {relative(folder / _PROBLEM)}"


def _unpredictable(run: FinishedRun) -> str | None:
    if run.exit_code != 0:
        return "the job failed"
    if not run.traces:
        return "no trace was written" if run.lost_traces else "nothing was recorded"
    if run.attempts > 1:
        return "the workers were restarted, so no trace has all of the job"
    return None


def _next(made: Prediction, folder: Path) -> str:
    """What to open."""
    cluster = relative(made.cluster_trace) if made.cluster_trace is not None else ""
    traces = relative(folder / TRACES) + "/" if made.rank_traces else ""
    pictures = " and ".join(filter(None, [cluster, traces]))
    drawn = f"{pictures} in ui.perfetto.dev; " if pictures else ""
    return f"{'open':<11}{drawn}maya report {relative(folder)}; maya whatif {relative(folder)}"
