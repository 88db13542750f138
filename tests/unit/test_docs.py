"""The documents: links between pages and into the tree lead somewhere, and functions that they name exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT, ROOT / "rank_runtime")  # that paths in the pages are relative to
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("tests/*.md")])

_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SOURCE = re.compile(r"`((?:maya|coordinator|netmodel|rank_runtime|shim|tests|scripts)/[\w/]+\.(?:py|c|cpp|h|toml))`")
_TEST = re.compile(r"`(test_\w+\.py)`")
_FUNCTION = re.compile(r"`([\w/]+\.(?:py|c|cpp)):([\w.]+)`")


@cache
def prose(page: Path) -> str:
    return _CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The names that headings have in links, by GitHub's rule."""
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(page)))
    return {heading.strip().replace(" ", "-") for heading in headings}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_files_that_pages_name_exist(page: Path) -> None:
    text = prose(page)
    sources = [path for path in _SOURCE.findall(text) if not any((folder / path).exists() for folder in FOLDERS)]
    tests = [path for path in _TEST.findall(text) if not any((ROOT / "tests").glob(f"*/{path}"))]
    assert not sources + tests


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_functions_that_pages_name_exist(page: Path) -> None:
    missing = []
    for file, function in _FUNCTION.findall(prose(page)):
        source = next((folder / file for folder in FOLDERS if (folder / file).exists()), ROOT / file)
        last = function.rpartition(".")[2]
        declared = rf"(?:def|class) {last}\b" if source.suffix == ".py" else rf"\b{last}\("
        if not source.exists() or not re.search(declared, source.read_text(encoding="utf-8")):
            missing.append(f"{file}:{function}")
    assert not missing


def test_every_page_is_in_the_index() -> None:
    index = prose(ROOT / "docs" / "index.md")
    listed = {target.partition("#")[0] for target in _LINK.findall(index)}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= listed
