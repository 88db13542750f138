"""The page of a report: one file, the same bytes every time, and small."""

from __future__ import annotations

import json
import re
from pathlib import Path

from helpers.report_content import synthetic_content

from maya.report.write import page, write_page

HOSTILE = "</script><script>document.title='hacked'</script>{{style}}<b>&"


def test_same_content_same_bytes(tmp_path: Path) -> None:
    write_page(synthetic_content(8), tmp_path / "one.html")
    write_page(synthetic_content(8), tmp_path / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.html", "two.html"]


def test_page_loads_nothing_else() -> None:
    text = page(synthetic_content(8))
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", text)
    assert not re.search(r"https?://|@import|url\(", text)
    assert "default-src 'none'" in text


def test_page_of_a_thousand_ranks_is_small() -> None:
    assert len(page(synthetic_content(1024)).encode()) < 2_000_000


def test_content_is_in_the_page_as_json() -> None:
    content = synthetic_content(8, title=HOSTILE)
    text = page(content)
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    assert json.loads(found[1])["title"] == HOSTILE
