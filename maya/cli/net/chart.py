"""A chart of bandwidth over size, as SVG written by hand.

In: named series of (size, GB/s). Out: the text of an SVG file, sizes on a logarithmic axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from maya.util.text import axis_bytes_text

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 50, 50
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


@dataclass(frozen=True)
class Series:
    """Points of one name: joined by a line, or single dots."""

    name: str
    points: Sequence[tuple[int, float]]
    dots: bool = False


def draw_chart(title: str, unit: str, series: Sequence[Series]) -> str:
    """All series in one chart."""
    points = [point for each in series for point in each.points]
    low, high = (math.log2(max(1, edge(size for size, _ in points))) for edge in (min, max))
    most = _round_up(max(value for _, value in points))

    def x(size: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log2(max(1, size)) - low) / max(high - low, 1e-9)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / most

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    for step in range(5):
        value = most * step / 4
        out.append(f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    out.append(f'<text x="{_LEFT - 8}" y="{_TOP - 12}" text-anchor="end">{escape(unit)}</text>')
    for power in range(math.ceil(low), math.floor(high) + 1, max(1, math.ceil((high - low) / 11))):
        size = 1 << power
        place = f'x="{x(size):.1f}" y="{_HEIGHT - _BOTTOM + 18}"'
        out.append(f'<text {place} text-anchor="middle">{axis_bytes_text(size)}</text>')
    out.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 10}" text-anchor="middle">bytes</text>')
    for number, each in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        if each.dots:
            out += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"/>' for s, v in each.points]
        else:
            path = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in each.points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        row = _TOP + 8 + 16 * number
        out.append(f'<rect x="{_LEFT + 14}" y="{row - 9}" width="10" height="10" fill="{colour}"/>')
        out.append(f'<text x="{_LEFT + 30}" y="{row}">{escape(each.name)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _round_up(value: float) -> float:
    """To a number that four steps divide nicely."""
    if value <= 0:
        return 1.0
    unit = math.pow(10.0, math.floor(math.log10(value)))
    return next(unit * factor for factor in (1, 2, 4, 6, 8, 10) if unit * factor >= value * 0.999)
