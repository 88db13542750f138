"""The answer of a search as text: lines for the terminal, and CSV.

In: a `SearchAnswer`. Out: lines, table cells, and the text of a CSV file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from maya.config_search.search_answer import ParameterEffect, SearchAnswer
from maya.config_search.search_space import configuration_text, value_text
from maya.config_search.trial_row import FAILED, INFERRED, TrialRow
from maya.results.time_classes import TimeClass
from maya.scaling.scale_row import ScaleRow
from maya.scaling.study_text import aligned, cost_of, cost_title, known_text
from maya.util.text import bytes_text, number_text, share_text, time_text

_MOST_ROWS = 10
_MOST_FAILURES = 5
_NEGLIGIBLE = 0.005  # a parameter with a smaller effect is not worth a line


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[TrialRow], str]
    is_left: bool = False


def table_of(answer: SearchAnswer, rows: Sequence[TrialRow]) -> tuple[list[str], list[list[str]], set[str]]:
    """Titles, cells and the titles of columns that are aligned to the left. Columns without any text are left out."""
    columns = _columns(answer)
    cells = [[column.cell(row) for column in columns] for row in rows]
    used = [at for at in range(len(columns)) if any(line[at] for line in cells)]
    left = {column.title for column in columns if column.is_left}
    return [columns[at].title for at in used], [[line[at] for at in used] for line in cells], left


def lines_of_search(answer: SearchAnswer) -> list[str]:
    """The best trials, what is as good, what each parameter does, and what failed."""
    blocks: list[Sequence[str]] = [[f"{answer.counts}."]]
    if answer.ranked:
        titles, cells, left = table_of(answer, answer.ranked[:_MOST_ROWS])
        more = len(answer.ranked) - _MOST_ROWS
        table = aligned([titles, *cells], left)
        blocks.append([*table, *([f"and {more} more"] if more > 0 else [])])
        blocks.append(statements_of(answer))
    else:
        blocks.append(["No configuration has figures that fit."])
    blocks += [failures_of(answer), notes_of(answer)]
    lines: list[str] = []
    for block in filter(None, blocks):
        lines += ["", *block] if lines else block
    return lines


def statements_of(answer: SearchAnswer) -> list[str]:
    """What is as good as the best, the Pareto front, and the effect of each parameter."""
    best = answer.best
    assert best is not None
    texts = []
    if answer.equals:
        numbers = ", ".join(str(row.number) for row in answer.equals)
        spread = share_text(max(best.spread, *(row.spread for row in answer.equals)))
        which = "trial" if len(answer.equals) == 1 else "trials"
        texts.append(
            f"as good as trial {best.number}, within the error of a kernel's time ({spread}): {which} {numbers}"
        )
    front = [row for row in answer.pareto if row is not best]
    if front:
        texts.append(f"less memory or cost for more time: {'; '.join(_trade(answer, row) for row in front[:4])}")
    texts += [effect_text(answer, each) for each in answer.effects if each.range >= _NEGLIGIBLE]
    small = [each.name for each in answer.effects if each.range < _NEGLIGIBLE]
    if small:
        texts.append(f"{', '.join(small)}: no difference above {share_text(_NEGLIGIBLE)} between the best trials")
    return texts


def effect_text(answer: SearchAnswer, effect: ParameterEffect) -> str:
    """tp: best 2; 1 +3.2 %, 4 +11 %, 8 never fits."""
    best = answer.best
    parts = []
    for each in effect.values:
        if best is not None and each.value == best.configuration[effect.name]:
            continue
        value = value_text(each.value)
        if each.at_least is not None:
            parts.append(f"{value} at least +{share_text(each.at_least)} (pruned)")
        elif each.difference is not None:
            parts.append(f"{value} +{share_text(each.difference)}")
        else:
            parts.append(f"{value} {'never fits' if each.tried else 'was not tried'}")
    own = "" if best is None else value_text(best.configuration[effect.name])
    return f"{effect.name}: best {own}; with others at best {', '.join(parts)}"


def failures_of(answer: SearchAnswer) -> list[str]:
    """Trials that failed for another reason than memory, and those above the limit."""
    failed = [row for row in answer.rows if row.outcome == FAILED]
    texts = [
        f"trial {row.number} failed ({configuration_text(row.configuration, answer.space.names)}): {row.problem}"
        for row in failed[:_MOST_FAILURES]
    ]
    if len(failed) > _MOST_FAILURES:
        texts.append(f"and {len(failed) - _MOST_FAILURES} more that failed")
    if answer.pruned:
        texts.append(
            f"pruned, because they would be far behind: {'; '.join(_pruned(answer, row) for row in answer.pruned)}"
        )
    if answer.too_large:
        numbers = ", ".join(str(row.number) for row in answer.too_large)
        texts.append(f"more than {share_text(answer.memory)} of the GPU's memory: trials {numbers}")
    return texts


def notes_of(answer: SearchAnswer) -> list[str]:
    """Statements to read before the figures."""
    notes = [answer.objective.note] if answer.objective.note else []
    inferred = answer.count(INFERRED)
    if inferred:
        notes.append(
            f"{inferred} configurations run out of memory like trials that need no more, as pairs of trials of this "
            "search show; they were not run"
        )
    return [f"assumes: {text}" for text in (*notes, *assumptions_of(answer))]


def assumptions_of(answer: SearchAnswer) -> list[str]:
    """The assumptions of the best trial's run."""
    best = answer.best
    return [] if best is None or best.figures is None else list(best.figures.assumptions)


def csv_of_search(answer: SearchAnswer) -> str:
    """A line for each trial: times in nanoseconds, sizes in bytes, shares from 0 to 1; empty: unknown."""
    tables = [row.flat() for row in answer.rows]
    names = list(dict.fromkeys(name for table in tables for name in table))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(tables)
    return text.getvalue()


def _columns(answer: SearchAnswer) -> list[_Column]:
    objective = answer.objective
    figures = [row.figures for row in answer.ranked if row.figures is not None]
    cost = cost_title(figures)

    def of(cell: Callable[[ScaleRow], str]) -> Callable[[TrialRow], str]:
        return lambda row: "" if row.figures is None else cell(row.figures)

    columns = [_Column("trial", lambda row: str(row.number))]
    columns += [_Column(name, _parameter(name)) for name in answer.space.names]
    columns += [
        _Column(objective.title, of(lambda figures: objective.text(objective.value(figures)))),
        _Column("behind", lambda row: "" if row is answer.best else f"+{share_text(answer.difference(row))}"),
    ]
    others = [
        _Column("step time", of(lambda figures: time_text(figures.step_time_ns or 0))),
        _Column("MFU", of(lambda figures: known_text(figures.mfu, share_text))),
        _Column("exposed", of(lambda figures: known_text(figures.exposed_share, share_text))),
        _Column("bubble", of(_bubble)),
        _Column("memory", of(lambda figures: bytes_text(figures.peak_memory_bytes or 0))),
        _Column(cost, of(lambda figures: known_text(cost_of(figures, cost), number_text))),
        _Column("run", lambda row: row.folder + ("" if row.source is None else f" ({row.origin})"), is_left=True),
    ]
    return columns + [each for each in others if each.title != objective.title]


def _parameter(name: str) -> Callable[[TrialRow], str]:
    return lambda row: value_text(row.configuration[name])


def _bubble(figures: ScaleRow) -> str:
    whole = sum(figures.class_ns.values())
    bubble = figures.class_ns.get(TimeClass.BUBBLE.value, 0)
    return share_text(bubble / whole) if bubble and whole else ""


def _pruned(answer: SearchAnswer, row: TrialRow) -> str:
    least = answer.least_difference(row)
    return f"trial {row.number}" + (f" (at least +{share_text(least)})" if least is not None else "")


def _trade(answer: SearchAnswer, row: TrialRow) -> str:
    memory = bytes_text(row.figures.peak_memory_bytes or 0) if row.figures is not None else ""
    return f"trial {row.number} (+{share_text(answer.difference(row))}, {memory})"
