"""Tables of predicted against published training runs, as text and as Markdown.

In: the outcome of each row (its job, the predicted step and memory), new or read from the Markdown of an earlier
report. Out: the lines of tables by row, by sweep, and by source and number of GPUs.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from training_rows import TrainingJob

MARK = "<!-- made by scripts/training_runs -->"

_SWEEP_TITLES = ["sweep", "rows", "median", "p90", "bias", "rank correlation", "rows with memory", "median", "p90"]
_ROW_TITLES = [
    "row", "job", "measured ms", "predicted ms", "error", "memory", "predicted", "error",
    "time by class, % of the step",
]  # fmt: skip
_SIZES = [0, 16, 64, 256, 1024, 1_000_000]  # GPUs


@dataclass(frozen=True)
class Outcome:
    """What was predicted for a row."""

    job: TrainingJob
    step_ms: float | None
    memory: float | None  # in the unit and of the kind of the measurement; None: not measured
    shares: str  # time by class
    printed: tuple[str, ...] = ()  # cells of the earlier report that it was read from

    @property
    def error(self) -> float | None:
        """Relative error of the step's length; positive: predicted too slow."""
        return None if self.step_ms is None else self.step_ms / self.job.measured_ms - 1

    @property
    def memory_error(self) -> float | None:
        if self.memory is None or self.job.measured_memory is None:
            return None
        return self.memory / self.job.measured_memory - 1

    @property
    def cells(self) -> list[str]:
        if self.printed:
            return list(self.printed)
        job = self.job
        return [
            str(job.number), job.label, f"{job.measured_ms:.0f}", _number(self.step_ms, 0), _percent(self.error),
            _number(job.measured_memory, 1), _number(self.memory, 1), _percent(self.memory_error), self.shares,
        ]  # fmt: skip

    @property
    def text(self) -> str:
        number, label, measured, step, error, had, memory, memory_error, shares = self.cells
        times = f"{measured:>7s} -> {step:>7s} ms {error:>9s}"
        return f"{number:>4s}  {label:62s} {times}  {had:>5s} -> {memory:>5s} {memory_error:>9s}  {shares}"


def read_outcomes(file: Path, jobs: Iterable[TrainingJob]) -> list[Outcome]:
    """The outcomes in the Markdown of an earlier report, of rows whose job is still the same."""
    by_number = {str(job.number): job for job in jobs}
    found = []
    for line in file.read_text(encoding="utf-8").partition(MARK)[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        job = by_number.get(cells[0])
        if job is None or len(cells) != len(_ROW_TITLES) or cells[1] != job.label:
            continue
        # The error has more digits than a step of some milliseconds.
        step = job.measured_ms * (1 + _fraction(cells[4])) if cells[4] else None
        memory = job.measured_memory * (1 + _fraction(cells[7])) if cells[7] and job.measured_memory else None
        found.append(Outcome(job, step, memory, cells[8], tuple(cells)))
    return found


def text_tables(outcomes: Sequence[Outcome], refused: Sequence[tuple[int, str]]) -> list[str]:
    lines = []
    for table in ([_SWEEP_TITLES, *_sweeps(outcomes)], _by_source(outcomes)):
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines += ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)]
    return [*lines, "", f"{len(refused)} rows were not run: scripts/training_runs TABLE.csv --list says why"]


def write_markdown(file: Path, outcomes: Sequence[Outcome], refused: Sequence[tuple[int, str]]) -> None:
    """Write the tables after the mark; keep the handwritten text before it."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    before = text.partition(MARK)[0] if MARK in text else ""
    rows = [_ROW_TITLES, *(each.cells for each in sorted(outcomes, key=lambda each: each.job.sweep))]
    lines = [f"{before}{MARK}"]
    for table in (_by_source(outcomes), [_SWEEP_TITLES, *_sweeps(outcomes)], rows):
        lines += ["", _markdown_row(table[0]), "|" + "---|" * len(table[0]), *map(_markdown_row, table[1:])]
    reasons = defaultdict(int)
    for _, reason in refused:
        reasons[reason] += 1
    lines += ["", "Not run:", "", *(f"- {count} x {reason}" for reason, count in sorted(reasons.items()))]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---- tables ----


def _by_source(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """A row for each source; for each number of GPUs the rows, their median error and their bias."""
    by_source = defaultdict(list)
    for each in outcomes:
        by_source[each.job.sweep.partition(" ")[0]].append(each)
    gpus = [each.job.gpus for each in outcomes]
    sizes = [(above, most) for above, most in itertools.pairwise(_SIZES) if any(above < each <= most for each in gpus)]
    table = [["rows: median (bias)", *(_size_text(*size) for size in sizes), "all"]]
    for source, members in [*sorted(by_source.items()), ("all", outcomes)]:
        parts = [[each for each in members if above < each.job.gpus <= most] for above, most in sizes]
        table.append([source, *(_source_cell(part) for part in (*parts, members))])
    return table


def _source_cell(outcomes: Sequence[Outcome]) -> str:
    errors = [each.error for each in outcomes if each.error is not None]
    if not errors:
        return ""
    median = statistics.median(map(abs, errors))
    return f"{len(errors)}: {100 * median:.1f} % ({_percent(statistics.median(errors))})"


def _size_text(above: int, most: int) -> str:
    if above == 0:
        return f"up to {most} GPUs"
    return f"{above + 1:,} to {most:,} GPUs" if most < _SIZES[-1] else f"more than {above:,} GPUs"


def _sweeps(outcomes: Sequence[Outcome]) -> list[list[str]]:
    by_sweep = defaultdict(list)
    for each in outcomes:
        by_sweep[each.job.sweep].append(each)
    rows = [_of_sweep(name, members) for name, members in sorted(by_sweep.items())]
    if len(rows) < 2:
        return rows
    for above, most in itertools.pairwise(_SIZES):
        if members := [each for each in outcomes if above < each.job.gpus <= most]:
            rows.append(_of_sweep(f"all, {_size_text(above, most)}", members))
    return [*rows, _of_sweep("all", outcomes)]


def _of_sweep(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    """Name, rows, median, 90th percentile, bias, rank correlation, memory's rows, median and 90th percentile."""
    timed = [(each.job, each.step_ms) for each in outcomes if each.step_ms is not None]
    errors = [each.error for each in outcomes if each.error is not None]
    memory = [abs(each.memory_error) for each in outcomes if each.memory_error is not None]
    # Compare GPU time per token; otherwise the sizes of the jobs alone would determine the order.
    measured = [job.measured_ms / job.tokens_per_gpu for job, _ in timed]
    predicted = [step / job.tokens_per_gpu for job, step in timed]
    correlation = _rank_correlation(measured, predicted)
    return [
        name, str(len(outcomes)), *_quantiles([abs(each) for each in errors]),
        _percent(statistics.median(errors)) if errors else "", _number(correlation, 2),
        str(len(memory)), *_quantiles(memory),
    ]  # fmt: skip


def _rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for fewer than three values, or if all are equal."""
    if len(left) < 3:
        return None
    ranks = [_ranks(left), _ranks(right)]
    try:
        return statistics.correlation(*ranks)
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks 1, 2, ... in ascending order; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in order[at : end + 1]:
            ranks[place] = (at + end) / 2 + 1
        at = end + 1
    return ranks


def _quantiles(values: list[float]) -> list[str]:
    if not values:
        return ["", ""]
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return [f"{100 * statistics.median(ordered):.1f} %", f"{100 * high:.1f} %"]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def _fraction(text: str) -> float:
    return float(text.removesuffix(" %")) / 100


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
