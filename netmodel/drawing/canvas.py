"""Shapes for drawings of clusters, and the SVG file they make.

In: lines, boxes and words at places. Out: the text of a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

WIDTH = 1200
MARGIN = 40
COLOURS = {
    "gpu": ("#76b900", "#ffffff"),
    "nvswitch": ("#4a7a00", "#ffffff"),
    "pcie": ("#c9d1d9", "#24292f"),
    "host": ("#8b949e", "#ffffff"),
    "nic": ("#0b7285", "#ffffff"),
    "switch": ("#1f4e79", "#ffffff"),
    "node": ("#f3f6e8", "#24292f"),
}
Point = tuple[float, float]


@dataclass
class Canvas:
    """Shapes in the order of painting; shapes in `below` lie under everything else."""

    below: list[str] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    height: float = 0

    def line(
        self, start: Point, end: Point, colour: str, width: float = 1.5, *, dashed: bool = False, opacity: float = 1
    ) -> None:
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        dash += f' stroke-opacity="{opacity:.2f}"' if opacity < 1 else ""
        self.below.append(
            f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" stroke="{colour}" '
            f'stroke-width="{width:.1f}"{dash}/>'
        )

    def arc(self, start: Point, end: Point, lift: float, colour: str, width: float) -> None:
        middle = (start[0] + end[0]) / 2
        self.below.append(
            f'<path d="M {start[0]:.1f} {start[1]:.1f} Q {middle:.1f} {start[1] - lift:.1f} {end[0]:.1f} {end[1]:.1f}" '
            f'fill="none" stroke="{colour}" stroke-width="{width:.1f}"/>'
        )

    def box(self, centre: Point, width: float, height: float, label: str, kind: str, *, broken: str = "") -> None:
        fill, ink = COLOURS[kind]
        left, top = centre[0] - width / 2, centre[1] - height / 2
        edge = f' stroke="{broken}" stroke-width="2.5"' if broken else ' stroke="#24292f" stroke-opacity="0.25"'
        self.above.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" fill="{fill}"{edge}/>'
        )
        size = min(12.0, 1.6 * width / max(4, len(label)))
        self.text(label, (centre[0], centre[1] + size * 0.35), size=size, colour=ink, anchor="middle")

    def text(
        self,
        words: str,
        at: Point,
        *,
        size: float = 12,
        colour: str = "#24292f",
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.above.append(
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{size:.1f}" fill="{colour}" text-anchor="{anchor}"'
            f"{weight}>{escape(words)}</text>"
        )

    def panel(self, top: float, bottom: float) -> None:
        self.below.insert(
            0,
            f'<rect x="{MARGIN / 2}" y="{top:.1f}" width="{WIDTH - MARGIN}" height="{bottom - top:.1f}" rx="10" '
            'fill="#ffffff" stroke="#d0d7de"/>',
        )

    def svg(self, title: str) -> str:
        return "\n".join(
            [
                '<?xml version="1.0" encoding="UTF-8"?>',
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" width="{WIDTH}" '
                f'height="{self.height:.0f}" font-family="system-ui, \'DejaVu Sans\', Helvetica, Arial, sans-serif">',
                f"<title>{escape(title)}</title>",
                '<rect width="100%" height="100%" fill="#f6f8fa"/>',
                *self.below,
                *self.above,
                "</svg>",
                "",
            ]
        )
