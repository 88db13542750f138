"""Puts the page together: texts, styles and scripts of page/, and a report's content as JSON, in one file.

In: `Content`. Out: the text of an HTML file that loads nothing else. The same content gives the same bytes.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from maya.report.content import Content

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
)  # in the order they need


def page(content: Content) -> str:
    """The HTML of a report."""
    script = "\n".join(_part(f"{name}.js") for name in _SCRIPTS)
    parts = {
        "title": html.escape(f"{content.title} · Maya"),
        "style": _part("style.css"),
        "script": f'(() => {{\n"use strict";\n{script}}})();',
        # "<" as JSON can write it, too, so that no text of a run can end the element that the content is in.
        "content": content.to_json().replace("<", "\\u003c"),
    }
    # All at once: a text of the run may look like a place to fill in.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _part("page.html"))


def write_page(content: Content, path: Path) -> None:
    """Under another name first, so that whoever finds it finds it complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page(content), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _part(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
