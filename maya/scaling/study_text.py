"""A scaling study as text: lines for the terminal, and CSV.

In: rows, the scaling mode, what grows. Out: lines, and the text of a CSV file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from maya.scaling.efficiency import ScalingMode
from maya.scaling.scale_row import ScaleRow
from maya.util.text import bytes_text, number_text, share_text, time_text

_BAR = 12  # characters of a full bar
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[ScaleRow], str]
    left: bool = False


def table_of(rows: Sequence[ScaleRow]) -> list[list[str]]:
    """Titles, then the cells of each row; failed rows have dashes. A column that is empty in every row is left out."""
    columns = _columns(rows)
    cells = [[column.cell(row) if row.succeeded else _failed(column, row) for column in columns] for row in rows]
    used = [at for at in range(len(columns)) if any(row[at] not in ("", "-") for row in cells)]
    return [[columns[at].title for at in used], *([row[at] for at in used] for row in cells)]


def left_columns(rows: Sequence[ScaleRow]) -> set[str]:
    """Titles of the columns that are aligned to the left."""
    return {column.title for column in _columns(rows) if column.left}


def lines_of_study(rows: Sequence[ScaleRow], mode: ScalingMode, statements: Sequence[str]) -> list[str]:
    """The mode, the table with a bar of every efficiency, what grows, and the sizes that failed."""
    titles, *cells = table_of(rows)
    left = left_columns(rows)
    if "efficiency" in titles:
        at = titles.index("efficiency") + 1
        titles.insert(at, "")
        for row, line in zip(rows, cells, strict=True):
            line.insert(at, bar(row.efficiency))
        left.add("")
    lines = [f"{mode.text[0].upper()}{mode.text[1:]}.", "", *aligned([titles, *cells], left)]
    failed = [f"{row.nproc:,} ranks failed: {row.problem}; see {row.folder}.log" for row in rows if not row.succeeded]
    assumed = [f"assumes: {text}" for text in assumptions_of(rows)]
    blocks = (statements, failed, assumed)
    return [*lines, *(line for block in blocks if block for line in ("", *block))]


def assumptions_of(rows: Sequence[ScaleRow]) -> list[str]:
    """The assumptions of all runs, each once."""
    here = f"{Path.cwd()}/"  # source lines have absolute paths
    return list(dict.fromkeys(text.replace(here, "") for row in rows for text in row.assumptions))


def csv_of(rows: Sequence[ScaleRow]) -> str:
    """A line for each size: times in nanoseconds, sizes in bytes, shares from 0 to 1; empty: unknown."""
    tables = [row.flat() for row in rows]
    names = list(dict.fromkeys(name for table in tables for name in table))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(tables)
    return text.getvalue()


def bar(share: float | None) -> str:
    """0.5 -> "██████"."""
    if share is None:
        return ""
    eighths = round(8 * _BAR * min(max(share, 0.0), 1.5))
    return (_EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def cost_title(rows: Sequence[ScaleRow]) -> str:
    """What `cost_of` is."""
    row = next((row for row in rows if row.succeeded), None)
    if row is None or row.gpu_hours_per_billion is None:
        return "GPU-h/1000 steps" if row is None or row.price_per_step is None else "price/1000 steps"
    return f"{'GPU-h' if row.price_per_billion is None else 'price'}/1e9 {row.unit}"


def cost_of(row: ScaleRow, title: str) -> float | None:
    """The cost of a row: the price where it is known, GPU-hours otherwise; for a billion tokens if tokens are known."""
    if "steps" in title:
        step = row.price_per_step if title.startswith("price") else row.gpu_hours_per_step
        return None if step is None else 1000 * step
    return row.price_per_billion if title.startswith("price") else row.gpu_hours_per_billion


def _columns(rows: Sequence[ScaleRow]) -> list[_Column]:
    unit = next((row.unit for row in rows if row.unit), "tokens")
    cost = cost_title(rows)
    return [
        _Column("ranks", lambda row: f"{row.nproc:,}"),
        _Column("processes", lambda row: f"{row.processes:,}"),
        _Column("step time", lambda row: time_text(row.step_time_ns or 0)),
        _Column(f"{unit}/s", lambda row: known_text(row.samples_per_second, "{:,.0f}".format)),
        _Column("per GPU", lambda row: known_text(row.samples_per_second_per_gpu, "{:,.0f}".format)),
        _Column("MFU", lambda row: known_text(row.mfu, share_text)),
        _Column("efficiency", lambda row: known_text(row.efficiency, share_text)),
        _Column("exposed", lambda row: known_text(row.exposed_share, share_text)),
        _Column("memory", lambda row: bytes_text(row.peak_memory_bytes or 0)),
        _Column(cost, lambda row: known_text(cost_of(row, cost), number_text)),
        _Column("run", lambda row: f"{row.folder} ({row.seconds:.0f} s)", left=True),
    ]


def _failed(column: _Column, row: ScaleRow) -> str:
    if column.title == "step time":
        return "failed"
    return column.cell(row) if column.title in ("ranks", "run") else "-"


def known_text(value: float | None, text: Callable[[float], str]) -> str:
    """A cell of a table; empty: unknown."""
    return "" if value is None else text(value)


def aligned(table: Sequence[Sequence[str]], left: set[str]) -> list[str]:
    """A table, whose first row has the titles, as lines. `left`: titles of columns that are aligned to the left."""
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return [
        "  ".join(
            cell.ljust(width) if title in left else cell.rjust(width)
            for cell, width, title in zip(row, widths, table[0], strict=True)
        ).rstrip()
        for row in table
    ]
