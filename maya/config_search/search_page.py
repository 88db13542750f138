"""The page of a search: the best trials, charts, all trials and the settings, in one HTML file.

In: a `SearchAnswer` and texts. Out: HTML that loads nothing else. The same search gives the same bytes.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maya.config_search.search_answer import SearchAnswer
from maya.config_search.search_chart import draw_search
from maya.config_search.search_text import failures_of, notes_of, statements_of, table_of
from maya.config_search.trial_row import INFERRED, TrialRow
from maya.report.write import style_sheet
from maya.scaling.scale_page import html_cell, html_list, html_text, study_html, theme_colours

_SECTIONS = Path(__file__).parent / "page" / "search.html"
_BEST = 10
_NOTHING = '<p class="about">No configuration has figures that fit.</p>'


@dataclass(frozen=True)
class SearchPage:
    """Everything on the page."""

    title: str
    answer: SearchAnswer
    commands: Mapping[str, str]  # that run the best configuration
    settings: Mapping[str, str]

    def html(self) -> str:
        answer = self.answer
        commands = "".join(f"<p><code>{html_text(text)}</code></p>" for text in self.commands.values())
        others = [row for row in answer.rows if row not in answer.ranked]
        parts = {
            "title": html.escape(self.title),
            "subtitle": html_text(f"{answer.counts}"),
            "style": style_sheet(),
            "colours": theme_colours(),
            "notes": html_list(notes_of(answer), "notes"),
            "best": _table(answer, answer.ranked[:_BEST]) or _NOTHING,
            "statements": html_list(statements_of(answer) if answer.ranked else [], "growth"),
            "commands": commands,
            "chart": draw_search(answer),
            "all": _table(answer, answer.ranked),
            "others": _others(answer, others),
            "failures": html_list(failures_of(answer), "growth"),
            "settings": "".join(
                f"<tr><td>{html_text(key)}</td><td>{html_text(value)}</td></tr>" for key, value in self.settings.items()
            ),
        }
        return study_html(_SECTIONS, parts)


def _table(answer: SearchAnswer, rows: Sequence[TrialRow]) -> str:
    if not rows:
        return ""
    titles, cells, left = table_of(answer, rows)
    head = "".join(html_cell("th", title, title not in left) for title in titles)
    body = []
    for row, line in zip(rows, cells, strict=True):
        texts = [html_cell("td", cell, title not in left) for title, cell in zip(titles, line, strict=True)]
        texts[-1] = f"<td>{_links(row)}</td>"
        body.append(f"<tr>{''.join(texts)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _links(row: TrialRow) -> str:
    """The run of a trial, and its output."""
    folder = html.escape(row.folder, quote=True)
    origin = "" if row.source is None else f' <span class="muted">{row.origin}</span>'
    return f'<a href="{folder}/">{folder}</a> <a href="{folder}.log">log</a>{origin}'


def _others(answer: SearchAnswer, rows: Sequence[TrialRow]) -> str:
    """Trials without figures, or with too much memory."""
    if not rows:
        return ""
    names = answer.space.names
    head = "".join(html_cell("th", title, False) for title in ("trial", *names, "outcome", "run"))
    body = []
    for row in rows:
        cells = [str(row.number), *(str(row.configuration[name]) for name in names)]
        cells.append(f"{row.outcome}: {row.problem}" if row.problem else row.outcome)
        texts = [html_cell("td", cell, False) for cell in cells]
        texts.append(f"<td>{'inferred' if row.origin == INFERRED else _links(row)}</td>")
        body.append(f"<tr>{''.join(texts)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
