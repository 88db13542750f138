"""Write the page of a report: texts, styles and scripts of page/, and the content as JSON, in one HTML file.

In: `Content`. Out: an HTML file that loads nothing else. The same content gives the same bytes.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from maya.report.content import Content
from maya.util.files import write_atomically

_FOLDER = Path(__file__).parent / "page"
_SCRIPTS = (
    "core",
    "breakdown",
    "tables",
    "ranks",
    "memory",
    "traffic",
    "streams",
    "pointing",
    "start",
)  # in the order in which they depend on each other


def page(content: Content) -> str:
    """The HTML of a report."""
    script = "\n".join(_part(f"{name}.js") for name in _SCRIPTS)
    parts = {
        "title": html.escape(f"{content.title} · Maya"),
        "style": style_sheet(),
        "script": f'(() => {{\n"use strict";\n{script}}})();',
        # "<" is escaped, so that no text of a run can end the element that holds the content.
        "content": content.to_json().replace("<", "\\u003c"),
    }
    # In one pass: a text of the run may look like a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _part("page.html"))


def write_page(content: Content, path: Path) -> None:
    """Write the HTML file atomically (temporary file, then rename)."""
    write_atomically(path, page(content))


def style_sheet() -> str:
    """The styles of the page, for pages of other commands."""
    return _part("style.css")


def _part(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
