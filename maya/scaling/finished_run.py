"""The row of a run that has ended: its figures, or the reason why there are none.

In: the folder of a run, the file with its output, and its exit code. Out: a `ScaleRow`.
"""

from __future__ import annotations

from pathlib import Path

from maya.api.run import load
from maya.scaling.failure_reason import reason
from maya.scaling.scale_row import ScaleRow, row_of_summary


def row_of_run(nproc: int, run: Path, log: Path, exit_code: int, seconds: float) -> ScaleRow:
    hang = unpredicted = ""
    if (run / "run.json").is_file():
        loaded = load(run)
        summary = loaded.summary or {}
        if exit_code == 0 and summary.get("prediction"):
            return row_of_summary(nproc, run.name, summary, seconds)
        hang = loaded.hang.text.partition("\n")[0] if loaded.hang is not None else ""
        unpredicted = str(summary.get("no_prediction") or "")
    lines = log.read_text(encoding="utf-8").splitlines()
    problem = reason(lines, exit_code, hang=hang, unpredicted=unpredicted)
    return ScaleRow(nproc, run.name, problem, seconds=round(seconds, 1))
