"""The end of a run: prints its summary and prediction, and writes summary.json.

In: a `FinishedRun` and its folder. Out: lines for the terminal, and the file. A file that cannot be written is reported
and does not change the exit code, which is the script's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from maya.assumptions import Assumption
from maya.launcher.summary_file import FinishedRun, write_summary


def conclude_run(
    run: FinishedRun,
    folder: Path,
    say: Callable[[str], None],
    *,
    trace: bool,
    timeline: bool,
    clock: Sequence[Assumption],
) -> None:
    """`trace`: something was to be recorded. `timeline`: it is predicted. `clock`: assumptions about the script's
    clock."""
    prediction, no_prediction = None, None
    assumptions: Sequence[Assumption] = ()
    represented = None
    if trace:
        from maya.launcher.terminal_summary import assumptions_of, place_text, summary  # imports numpy

        for line in summary(run, folder):
            say(line)
    if timeline:
        from maya.launcher.prediction import summarise_prediction

        made = summarise_prediction(run, folder)
        prediction, no_prediction = made.document, made.problem
        assumptions, represented = made.assumptions, made.represented
        for line in made.lines:
            say(line)
    if prediction is None:
        assumptions = [*(assumptions_of(run) if trace else []), *clock]
        for each in assumptions if trace else ():  # without a trace there are no numbers
            say(f"assumes: {each.text(place_text)}")
    try:
        write_summary(run, folder, prediction, no_prediction, assumptions, represented)
    except OSError as error:
        say(
            f"cannot write {folder / 'summary.json'}: {error.strerror}; there is no summary for programs "
            "(this does not change the exit code)"
        )
