"""What a run takes on a cluster: its own, or another one.

In: a `Result` of a replay of the run, and the changes it was replayed with. Out: `RunPrediction`. Each part is computed
on first use and kept.
"""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maya.api import prediction_figures
from maya.api.figures import (
    BreakdownFigures,
    CollectiveFigures,
    FigureTable,
    JobSettings,
    KernelFigures,
    MemoryFigures,
    RankFigures,
    SpeedFigures,
    StepFigures,
)
from maya.api.run_comparison import RunComparison
from maya.results import Result
from maya.results.prediction_json import prediction_json
from maya.results.terminal_text import lines_of
from maya.whatif.compare import count_events, same_timeline

if TYPE_CHECKING:
    from maya.whatif.changes import ChangedReplay


class RunPrediction:
    """The predicted times, memory and traffic of a run. `print` shows the lines that maya-torchrun prints."""

    def __init__(self, folder: Path, result: Result, changed: ChangedReplay | None = None) -> None:
        self.folder = folder
        self.result = result  # the objects behind the figures; not a stable interface
        self._changed = changed

    def __repr__(self) -> str:
        from maya.launcher.terminal_summary import relative

        settings = self.settings
        return (
            f"<RunPrediction of {relative(self.folder)}: {self.step_time_ns / 1e6:.3f} ms a step, "
            f"{settings.world_size} ranks on {settings.gpu}, {settings.cluster}>"
        )

    def __str__(self) -> str:
        return "\n".join(lines_of(self.result))

    @property
    def changes(self) -> tuple[tuple[str, str, str], ...]:
        """The settings that differ from the recorded ones: (setting, before, after)."""
        changes = () if self._changed is None else self._changed.changes
        return tuple((each.what, each.before, each.after) for each in changes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the changes."""
        return () if self._changed is None else self._changed.notes

    @property
    def problems(self) -> tuple[str, ...]:
        """Gaps in the traces, such as a trace that ends early."""
        return tuple(self.result.timeline.problems)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Statements to read before the numbers."""
        return tuple(each.text() for each in self.result.assumptions)

    @cached_property
    def settings(self) -> JobSettings:
        """The settings that the run was replayed with."""
        return prediction_figures.job_settings(self.result.timeline.settings)

    @property
    def step_time_ns(self) -> int:
        """The median of the measured steps."""
        return self.result.step_ns

    @cached_property
    def steps(self) -> StepFigures:
        """The training steps."""
        return prediction_figures.step_figures(self.result)

    @cached_property
    def breakdown(self) -> BreakdownFigures:
        """Where the time of a step goes, by rank and on average."""
        return prediction_figures.step_breakdown(self.result)

    @cached_property
    def ranks(self) -> FigureTable[RankFigures]:
        """Step time, communication and memory of every rank."""
        return prediction_figures.rank_table(self.result)

    @cached_property
    def memory(self) -> MemoryFigures:
        """Peak memory of every rank, and whether it fits."""
        return prediction_figures.memory_figures(self.result)

    @cached_property
    def speed(self) -> SpeedFigures:
        """Tokens a second, MFU, cost."""
        return prediction_figures.speed_figures(self.result)

    @cached_property
    def collectives(self) -> FigureTable[CollectiveFigures]:
        """The collectives of the typical step, of all ranks together; the one that takes most time first."""
        return prediction_figures.collectives_of(self.result)

    @cached_property
    def kernels(self) -> FigureTable[KernelFigures]:
        """The kernels of the typical step, of all ranks together; the one that takes most time first."""
        return prediction_figures.kernels_of(self.result)

    @property
    def event_count(self) -> int:
        """Kernels, copies and collectives in the timeline, of all ranks."""
        return count_events(self.result.timeline)

    def same_timeline(self, other: RunPrediction) -> bool:
        """Whether every event of every rank happens at the same nanosecond."""
        return same_timeline(self.result.timeline, other.result.timeline)

    def compare(self, other: RunPrediction) -> RunComparison:
        """This prediction before, `other` after."""
        return RunComparison(self.result, other.result)

    def to_dict(self) -> dict[str, Any]:
        """All figures, as in `prediction` of summary.json (docs/results.md)."""
        return prediction_json(self.result)

    def write_report(self, path: str | PathLike[str] | None = None) -> Path:
        """Write an HTML page with all of it; by default report.html in the run's folder. Returns its path."""
        from maya.report.collect import collect
        from maya.report.write import write_page

        file = self.folder / "report.html" if path is None else Path(path)
        content = collect(self.result)
        try:
            write_page(content, file)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(file)) from error  # not the name of the temporary file
        return file
