"""The page of a scaling study: what grows, the chart, the table and the settings, in one HTML file.

In: the study's rows, texts and chart. Out: HTML that loads nothing else. The same study gives the same bytes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maya.report.write import style_sheet
from maya.scaling.scale_chart import COLOURS
from maya.scaling.scale_row import ScaleRow
from maya.scaling.study_text import assumptions_of, left_columns, table_of

_FOLDER = Path(__file__).parent / "page"


@dataclass(frozen=True)
class StudyPage:
    """Everything on the page."""

    title: str
    subtitle: str
    mode: str
    statements: Sequence[str]  # efficiency, and what grows
    chart: str  # SVG
    rows: Sequence[ScaleRow]
    settings: Mapping[str, str]

    def html(self) -> str:
        parts = {
            "title": html.escape(self.title),
            "subtitle": html.escape(self.subtitle),
            "style": style_sheet(),
            "colours": theme_colours(),
            "notes": html_list(assumptions_of(self.rows), "notes"),
            "mode": html.escape(f"{self.mode[0].upper()}{self.mode[1:]}"),
            "growth": html_list(self.statements, "growth") or '<p class="about">Nothing to compare yet.</p>',
            "chart": self.chart,
            "table": _table(self.rows),
            "settings": "".join(f"<tr><td>{html_text(key)}</td><td>{html_text(value)}</td></tr>" for key, value in
                                self.settings.items()),
        }  # fmt: skip
        return study_html(_FOLDER / "scale.html", parts)


def study_html(sections: Path, parts: Mapping[str, str]) -> str:
    """The page of a study: the frame of all such pages around these sections, with `parts` filled in by name."""
    frame = (_FOLDER / "study.html").read_text(encoding="utf-8")
    text = frame.replace("{{sections}}", sections.read_text(encoding="utf-8"))
    # In one pass: a text of the study may look like a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], text)


def theme_colours() -> str:
    """Rules that replace the colours of the chart with those of the page's theme."""
    return "\n".join(
        f"svg .f-{name} {{ fill: var(--{name}); }} svg .s-{name} {{ stroke: var(--{name}); }}" for name in COLOURS
    )


def html_list(texts: Sequence[str], name: str) -> str:
    """Texts as a list of this class; "" if there are none."""
    items = "".join(f"<li>{html_text(text)}</li>" for text in texts)
    return f'<ul class="{name}">{items}</ul>' if items else ""


def _table(rows: Sequence[ScaleRow]) -> str:
    titles, *cells = table_of(rows)
    left = left_columns(rows)
    head = "".join(html_cell("th", title, title not in left) for title in titles)
    body = []
    for row, line in zip(rows, cells, strict=True):
        texts = [html_cell("td", cell, title not in left) for title, cell in zip(titles, line, strict=True)]
        folder = html.escape(row.folder, quote=True)
        texts[-1] = f'<td><a href="{folder}/">{folder}</a> <span class="muted">{row.seconds:.0f} s</span></td>'
        body.append(f"<tr>{''.join(texts)}</tr>")
        if not row.succeeded:
            log = f'<a href="{folder}.log">{folder}.log</a>'
            body.append(
                f'<tr><td></td><td class="failed" colspan="{len(titles) - 1}">'
                f"{html_text(row.problem)} ({log})</td></tr>"
            )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def html_cell(tag: str, text: str, number: bool) -> str:
    """A cell of a table."""
    kind = ' class="number"' if number else ""
    return f"<{tag}{kind}>{html_text(text)}</{tag}>"


def html_text(text: str) -> str:
    """A text between tags."""
    return html.escape(text, quote=False)
