"""Two predictions side by side, as `maya whatif` prints them.

In: two `Result`s, usually of one run on different settings. Out: rows of text, a dict, a DataFrame.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from maya.results import Result
from maya.util.dataframes import dataframe
from maya.util.text import bytes_text
from maya.whatif.compare import ComparedRow, Figures, aligned, figures_of, rows_of

if TYPE_CHECKING:
    import pandas


class RunComparison:
    """The figures of two predictions, and their differences. `print` shows the table."""

    def __init__(self, before: Result, after: Result) -> None:
        self._before = before
        self._after = after

    def __str__(self) -> str:
        return "\n".join(self.table())

    @cached_property
    def _figures(self) -> tuple[Figures, Figures]:
        return figures_of(self._before), figures_of(self._after)

    @property
    def rows(self) -> list[ComparedRow]:
        """The table's rows: name, before, after, difference and share, all of them text."""
        return rows_of(*self._figures)

    def table(self, before: str = "before", after: str = "after") -> list[str]:
        """The rows as aligned lines under these titles, and a warning where the memory does not fit."""
        lines = aligned(self.rows, ComparedRow("", before, after, "difference"))
        figures = self._figures[1]
        if figures.peak_bytes > figures.capacity_bytes:
            lines += ["", _memory_warning(figures)]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The figures `before` and `after`, and the `difference` of those that are numbers in both."""
        before, after = (figures.table() for figures in self._figures)
        return {"before": before, "after": after, "difference": _difference(before, after)}

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each number (step_ns, class_ns.gemm, …): before, after, difference."""
        before, after = (_flat(figures.table()) for figures in self._figures)
        names = [name for name, value in before.items() if _is_number(value) and _is_number(after.get(name))]
        return dataframe(
            {
                "figure": names,
                "before": [before[name] for name in names],
                "after": [after[name] for name in names],
                "difference": [after[name] - before[name] for name in names],
            },
            "figure",
        )


def _memory_warning(figures: Figures) -> str:
    if figures.fits:
        return (
            "PyTorch's allocator would have to give cached memory back, which takes time; the replay does not have "
            "that in it"
        )
    return (
        f"rank {figures.peak_rank} needs {bytes_text(figures.needed_bytes)} at least: on this GPU the job would fail "
        "with an out-of-memory error"
    )


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """After less before, of all that are numbers in both."""
    found: dict[str, Any] = {}
    for key, old in before.items():
        new = after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found[key] = _difference(old, new)
        elif _is_number(old) and _is_number(new):
            found[key] = new - old
    return found


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
