"""The charts of a search as SVG: every trial by time and memory, and the best trial for each value of a parameter.

In: a `SearchAnswer`. Out: the text of an SVG, in the colours of the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from maya.config_search.search_answer import ParameterEffect, SearchAnswer
from maya.config_search.search_space import configuration_text, value_text
from maya.config_search.trial_row import TrialRow
from maya.scaling.scale_chart import fill, round_up, stroke, svg_text
from maya.util.text import bytes_text, share_text

_WIDTH = 1160
_TOP, _LEFT, _RIGHT, _BOTTOM = 44, 78, 20, 52
_SCATTER_HEIGHT = 380
_BAR, _ROW, _NAME = 560, 22, 220  # of effects: length of the longest bar, height of a row, width of names
_MOST_EFFECTS = 8


def draw_search(answer: SearchAnswer) -> str:
    """Both charts, one above the other; "" if there is nothing to draw."""
    if not answer.ranked:
        return ""
    effects = [each for each in answer.effects if each.range > 0][:_MOST_EFFECTS]
    rows = sum(len(each.values) + 1 for each in effects)
    height = _SCATTER_HEIGHT + (60 + _ROW * rows if effects else 0)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            'font-family="system-ui, sans-serif" font-size="12">',
            "<title>Trials by time and memory, and what each parameter does</title>",
            f'<rect width="{_WIDTH}" height="{height}" {fill("paper")}/>',
            *_scatter(answer),
            *(_effects(answer, effects, _SCATTER_HEIGHT + 34) if effects else []),
            "</svg>",
        ]
    )


def _scatter(answer: SearchAnswer) -> list[str]:
    """Memory to the right, the objective upwards; the Pareto front as a line."""
    rows = [row for row in answer.rows if row.is_predicted and row.figures is not None]
    capacities = sorted({row.figures.memory_capacity_bytes or 0 for row in rows if row.figures} - {0})
    most_memory = 2**30 * round_up(max([*capacities, *(_memory(row) for row in rows)]) * 1.04 / 2**30)
    objective = answer.objective
    values = [objective.value(row.figures) for row in rows if row.figures is not None]
    most = round_up(max(values) * 1.06)

    def place(row: TrialRow) -> tuple[float, float]:
        assert row.figures is not None
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * _memory(row) / most_memory
        return x, _y(objective.value(row.figures) / most)

    direction = "higher" if objective.is_best_high else "lower"
    title = f"{objective.title} ({direction} is better) and memory of every trial"
    out = [svg_text(0, 16, title, "ink", size=14, weight=600)]
    for part in range(5):
        out.append(f'<path d="M{_LEFT} {_y(part / 4):.1f}H{_WIDTH - _RIGHT}" {stroke("line")}/>')
        out.append(svg_text(_LEFT - 8, _y(part / 4) + 4, objective.text(most * part / 4), "muted", anchor="end"))
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * part / 4
        anchor = "end" if part == 4 else "middle"
        out.append(svg_text(x, _y(0) + 18, bytes_text(round(most_memory * part / 4)), "muted", anchor=anchor))
    for capacity in capacities:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * capacity / most_memory
        out.append(f'<path d="M{x:.1f} {_y(1):.1f}V{_y(0):.1f}" {stroke("waiting")}/>')
        out.append(svg_text(x - 6, _y(1) + 12, f"GPU: {bytes_text(capacity)}", "waiting", anchor="end"))
    front = sorted((place(row) for row in answer.pareto), key=lambda point: point[0])
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in front)
    out.append(f'<polyline points="{points}" fill="none" {stroke("accent")} stroke-dasharray="5 4"/>')
    for row in rows:
        x, y = place(row)
        colour = "accent" if row in answer.pareto else ("muted" if row in answer.ranked else "waiting")
        radius = 7 if row is answer.best else 4.5
        tip = (
            f"trial {row.number}: {configuration_text(row.configuration, answer.space.names)}: {_figures(answer, row)}"
        )
        out.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" {fill(colour)}><title>{escape(tip)}</title></circle>'
        )
        if row is answer.best:
            out.append(svg_text(x, y - 12, f"best: trial {row.number}", "ink", anchor="middle"))
    out.append(svg_text(_LEFT, _y(0) + 38, "the dashed line joins trials that no other beats", "muted", size=11))
    return out


def _effects(answer: SearchAnswer, effects: Sequence[ParameterEffect], top: float) -> list[str]:
    """A bar for each value: how far the best trial with it is behind the best of all."""
    longest = max(each.range for each in effects)
    out = [svg_text(0, top, "Best trial with each value, behind the best of all", "ink", size=14, weight=600)]
    y = top + 12.0
    for effect in effects:
        y += _ROW
        out.append(svg_text(0, y, effect.name, "ink", weight=600))
        for each in effect.values:
            y += _ROW
            out.append(svg_text(_NAME - 10, y, value_text(each.value), "muted", anchor="end"))
            if each.difference is None:
                why = (
                    "no trial that fits" if each.at_least is None else f"pruned, at least +{share_text(each.at_least)}"
                )
                out.append(svg_text(_NAME, y, why, "waiting"))
                continue
            width = max(2.0, _BAR * each.difference / longest)
            colour = "accent" if each.difference == 0 else "other"
            out.append(f'<rect x="{_NAME}" y="{y - 11:.1f}" width="{width:.1f}" height="14" {fill(colour)}/>')
            text = "best" if each.difference == 0 else f"+{share_text(each.difference)}"
            out.append(svg_text(_NAME + width + 8, y, f"{text} (trial {each.best}, of {each.trials})", "ink"))
    return out


def _figures(answer: SearchAnswer, row: TrialRow) -> str:
    assert row.figures is not None
    objective = answer.objective
    return f"{objective.text(objective.value(row.figures))} {objective.title}, {bytes_text(_memory(row))}"


def _memory(row: TrialRow) -> int:
    return 0 if row.figures is None else row.figures.peak_memory_bytes or 0


def _y(share: float) -> float:
    assert math.isfinite(share)
    return _SCATTER_HEIGHT - _BOTTOM - (_SCATTER_HEIGHT - _BOTTOM - _TOP) * share
