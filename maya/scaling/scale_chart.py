"""The chart of a scaling study, as SVG written by hand: throughput, efficiency, cost and memory of every size.

In: the rows of a study. Out: the text of an SVG. Every mark has its colour as an attribute and the name of the colour
as its class, so that a page can replace the colours with those of its theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from maya.results.time_classes import CLASSES, TITLES
from maya.scaling.efficiency import ScalingMode
from maya.scaling.growth import MEMORY_TITLES
from maya.scaling.scale_row import ScaleRow
from maya.scaling.study_text import cost_of, cost_title
from maya.util.text import bytes_text, number_text, share_text, time_text

COLOURS = {
    "paper": "#ffffff", "ink": "#1b2330", "muted": "#5b6675", "line": "#d9dee6", "accent": "#1d5fb4",
    "gemm": "#2f6db5", "attention": "#7b57b8", "convolution": "#1c8f8a", "memory_bound": "#5d9e46",
    "other": "#8493a8", "communication": "#d8622b", "copy": "#a98646", "bubble": "#e3a51d", "waiting": "#b8305a",
    "slowed": "#9c7fc9", "host_bound": "#6b5145", "idle": "#ccd2da",
}  # fmt: skip
_MEMORY_COLOURS = {"reserved": "gemm", "nccl": "communication", "context": "other", "workspaces": "memory_bound"}
_WIDTH, _HEIGHT = 1160, 700
_PANEL_WIDTH, _PANEL_HEIGHT = 560, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 44, 62  # around the plot of a panel
_MOST_KEYS = 8  # of a legend
_LETTER = 6.2  # average width of a letter in a legend
_KEY = 0.01  # of a stack: smaller parts get no key


def draw_study(rows: Sequence[ScaleRow], mode: ScalingMode, title: str) -> str:
    """All panels in one SVG."""
    places = [(0, 20), (_WIDTH - _PANEL_WIDTH, 20), (0, 370), (_WIDTH - _PANEL_WIDTH, 370)]
    panels = [_throughput(rows), _shares(rows, mode), _cost(rows), _memory(rows)]
    drawn = [
        f'<g transform="translate({x} {y})">{"".join(panel)}</g>' for (x, y), panel in zip(places, panels, strict=True)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            'font-family="system-ui, sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" {fill("paper")}/>',
            *drawn,
            "</svg>",
        ]
    )


@dataclass(frozen=True)
class _Stack:
    """The parts of a bar, from the bottom: (colour, name, amount)."""

    parts: Sequence[tuple[str, str, float]]

    @property
    def height(self) -> float:
        return sum(amount for _, _, amount in self.parts)


class _Axes:
    """The plot of a panel: where values are, and its frame."""

    def __init__(self, rows: Sequence[ScaleRow], low: float, high: float, *, logarithmic: bool = False) -> None:
        self._rows = rows
        self._log = logarithmic
        self._low, self._high = (math.log10(low), math.log10(high)) if logarithmic else (low, high)
        self._sizes = [math.log2(row.nproc) for row in rows]

    def x(self, nproc: float) -> float:
        """A size on the logarithmic axis of sizes."""
        first, last = self._sizes[0], self._sizes[-1]
        part = (math.log2(nproc) - first) / (last - first) if last > first else 0.5
        return _LEFT + 24 + (_PANEL_WIDTH - _LEFT - _RIGHT - 48) * part

    def slot(self, number: int) -> tuple[float, float]:
        """Middle and width of a bar."""
        width = (_PANEL_WIDTH - _LEFT - _RIGHT) / len(self._rows)
        return _LEFT + width * (number + 0.5), min(90.0, width * 0.62)

    def y(self, value: float) -> float:
        at = math.log10(value) if self._log else value
        height = _PANEL_HEIGHT - _TOP - _BOTTOM
        return _PANEL_HEIGHT - _BOTTOM - height * (at - self._low) / ((self._high - self._low) or 1.0)

    def frame(self, title: str, ticks: Sequence[tuple[float, str]], *, slots: bool) -> list[str]:
        """Title, grid and the names of all sizes; a size that failed is marked."""
        out = [svg_text(0, 14, title, "ink", size=14, weight=600)]
        for value, name in ticks:
            out.append(f'<path d="M{_LEFT} {self.y(value):.1f}H{_PANEL_WIDTH - _RIGHT}" {stroke("line")}/>')
            out.append(svg_text(_LEFT - 8, self.y(value) + 4, name, "muted", anchor="end"))
        for number, row in enumerate(self._rows):
            at = self.slot(number)[0] if slots else self.x(row.nproc)
            out.append(svg_text(at, _PANEL_HEIGHT - _BOTTOM + 18, f"{row.nproc:,}", "muted", anchor="middle"))
            if not row.succeeded:
                out.append(
                    svg_text(at, _PANEL_HEIGHT - _BOTTOM - 6, "✕ failed", "waiting", anchor="middle", tip=row.problem)
                )
        out.append(svg_text(_LEFT - 8, _PANEL_HEIGHT - _BOTTOM + 18, "ranks", "muted", anchor="end"))
        return out

    def line(self, points: Sequence[tuple[int, float, str]], colour: str, *, dashed: bool = False) -> list[str]:
        """A line through (size, value, tooltip), with a dot at each."""
        path = " ".join(f"{self.x(size):.1f},{self.y(value):.1f}" for size, value, _ in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        out = [f'<polyline points="{path}" fill="none" {stroke(colour)} stroke-width="2"{dashes}/>']
        for size, value, tip in () if dashed else points:
            place = f'cx="{self.x(size):.1f}" cy="{self.y(value):.1f}" r="4"'
            out.append(f"<circle {place} {fill(colour)}><title>{escape(tip)}</title></circle>")
        return out

    def stack(self, number: int, stack: _Stack, text: Callable[[float], str]) -> list[str]:
        """A bar of parts, with its total above it."""
        middle, width = self.slot(number)
        out, base = [], 0.0
        for colour, name, amount in stack.parts:
            top, bottom = self.y(base + amount), self.y(base)
            box = f'x="{middle - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}"'
            tip = escape(f"{name}: {text(amount)}, {share_text(amount / (stack.height or 1))}")
            out.append(f"<rect {box} {fill(colour)}><title>{tip}</title></rect>")
            base += amount
        return [*out, svg_text(middle, self.y(base) - 6, text(base), "ink", anchor="middle")]


def _throughput(rows: Sequence[ScaleRow]) -> list[str]:
    good = [row for row in rows if row.samples_per_second]
    if not good:
        return _steps(rows)
    first, unit = good[0], good[0].unit or "tokens"
    ideal = [(row.nproc, (first.samples_per_second or 0) * row.nproc / first.nproc, "") for row in good]
    points = [
        (row.nproc, row.samples_per_second or 0, f"{row.nproc:,} ranks: {row.samples_per_second:,.0f} {unit}/s")
        for row in good
    ]
    values = [value for _, value, _ in (*ideal, *points)]
    axes = _Axes(rows, min(values) / 1.6, max(values) * 1.6, logarithmic=True)
    ticks = [(tick, _short(tick)) for tick in _log_ticks(min(values) / 1.6, max(values) * 1.6)]
    legend = _legend([("accent", f"{unit}/s"), ("muted", f"ideal, from {first.nproc:,} ranks (dashed)")])
    return [
        *axes.frame(f"Throughput, {unit} per second", ticks, slots=False),
        *axes.line(ideal, "muted", dashed=True),
        *axes.line(points, "accent"),
        *legend,
    ]


def _steps(rows: Sequence[ScaleRow]) -> list[str]:
    """The step time, where tokens are unknown."""
    points = [
        (row.nproc, float(row.step_time_ns or 0), time_text(row.step_time_ns or 0)) for row in rows if row.succeeded
    ]
    most = round_up(max((value for _, value, _ in points), default=1.0))
    axes = _Axes(rows, 0.0, most)
    ticks = [(most * part / 4, time_text(round(most * part / 4))) for part in range(5)]
    return [*axes.frame("Step time", ticks, slots=False), *(axes.line(points, "accent") if points else [])]


def _shares(rows: Sequence[ScaleRow], mode: ScalingMode) -> list[str]:
    kinds: list[tuple[str, str, Callable[[ScaleRow], float | None]]] = [
        ("accent", "efficiency", lambda row: row.efficiency),
        ("communication", "exposed communication, of the step", lambda row: row.exposed_share),
        ("memory_bound", "MFU", lambda row: row.mfu),
    ]
    lines = []
    for colour, name, value in kinds:
        points = [
            (row.nproc, share, f"{row.nproc:,} ranks: {name} {share_text(share)}")
            for row in rows
            if row.succeeded and (share := value(row)) is not None
        ]
        if points:
            lines.append((colour, name, points))
    most = max((share for _, _, points in lines for _, share, _ in points), default=1.0)
    quarters = max(4, math.ceil(4 * most - 0.2))  # a little more than 100 % fits above the last line
    axes = _Axes(rows, 0.0, quarters / 4)
    ticks = [(tick / 4, f"{25 * tick} %") for tick in range(quarters + 1)]
    title = f"Efficiency ({mode.kind} scaling)" if lines and lines[0][1] == "efficiency" else "Shares of the step"
    return [
        *axes.frame(title, ticks, slots=False),
        *(mark for colour, _, points in lines for mark in axes.line(points, colour)),
        *_legend([(colour, name) for colour, name, _ in lines]),
    ]


def _cost(rows: Sequence[ScaleRow]) -> list[str]:
    """The cost of each size, divided as the time of its step is."""
    title = cost_title(rows)
    stacks: dict[int, _Stack] = {}
    for number, row in enumerate(rows):
        cost, whole = cost_of(row, title), sum(row.class_ns.values())
        if row.succeeded and cost is not None and whole:
            named = [(of.value, TITLES[of], row.class_ns.get(of.value, 0)) for of in CLASSES]
            stacks[number] = _Stack([(key, name, cost * ns / whole) for key, name, ns in named if ns])
    what = title.replace("GPU-h/", "GPU-hours for ").replace("price/", "Price of ").replace("1e9", "a billion")
    return _bars(rows, stacks, f"{what}, by where the time goes", number_text)


def _memory(rows: Sequence[ScaleRow]) -> list[str]:
    stacks = {
        number: _Stack([(_MEMORY_COLOURS[part], MEMORY_TITLES[part], size) for part, size in row.memory_bytes.items()])
        for number, row in enumerate(rows)
        if row.succeeded and row.memory_bytes
    }
    capacity = next((row.memory_capacity_bytes for row in rows if row.memory_capacity_bytes), 0)
    return _bars(
        rows, stacks, "Memory of the rank that needs most", lambda size: bytes_text(round(size)), capacity, 2**30
    )


def _bars(
    rows: Sequence[ScaleRow],
    stacks: Mapping[int, _Stack],
    title: str,
    text: Callable[[float], str],
    capacity: float = 0.0,
    unit: float = 1.0,
) -> list[str]:
    """Stacked bars, and a line at the capacity if there is one. `unit`: what ticks are round in."""
    most = unit * round_up(max([*(stack.height for stack in stacks.values()), capacity], default=1.0) * 1.08 / unit)
    axes = _Axes(rows, 0.0, most)
    out = axes.frame(title, [(most * part / 4, text(most * part / 4)) for part in range(5)], slots=True)
    for number, stack in stacks.items():
        out += axes.stack(number, stack, text)
    if capacity:
        out.append(f'<path d="M{_LEFT} {axes.y(capacity):.1f}H{_PANEL_WIDTH - _RIGHT}" {stroke("waiting")}/>')
        out.append(
            svg_text(_PANEL_WIDTH - _RIGHT, axes.y(capacity) - 5, f"GPU: {text(capacity)}", "waiting", anchor="end")
        )
    names: dict[tuple[str, str], float] = {}
    for stack in stacks.values():
        for colour, name, amount in stack.parts:
            names[colour, name] = max(names.get((colour, name), 0.0), amount / (stack.height or 1))
    return [*out, *_legend([key for key, share in names.items() if share >= _KEY][:_MOST_KEYS])]


def _legend(keys: Sequence[tuple[str, str]]) -> list[str]:
    """Keys under the plot, in as many lines as they need."""
    out: list[str] = []
    x, y = float(_LEFT), _PANEL_HEIGHT - _BOTTOM + 38
    for colour, name in keys:
        width = 34 + _LETTER * len(name)
        if x > _LEFT and x + width > _PANEL_WIDTH:
            x, y = float(_LEFT), y + 16
        out.append(f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10" rx="2" {fill(colour)}/>')
        out.append(svg_text(x + 15, y, name, "muted", size=11))
        x += width
    return out


def svg_text(
    x: float,
    y: float,
    text: str,
    colour: str,
    *,
    anchor: str = "start",
    size: int = 12,
    weight: int = 400,
    tip: str = "",
) -> str:
    """A text element."""
    style = f' font-size="{size}" font-weight="{weight}"' if (size, weight) != (12, 400) else ""
    inside = f"<title>{escape(tip)}</title>{escape(text)}" if tip else escape(text)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style} {fill(colour)}>{inside}</text>'


def fill(colour: str) -> str:
    """The attributes of a filled mark."""
    return f'class="f-{colour}" fill="{COLOURS[colour]}"'


def stroke(colour: str) -> str:
    """The attributes of a line."""
    return f'class="s-{colour}" stroke="{COLOURS[colour]}"'


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]


def _short(value: float) -> str:
    """2000000 -> "2M"."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def round_up(value: float) -> float:
    """To a number that four steps divide nicely."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * factor for factor in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if unit * factor >= value * 0.999)
