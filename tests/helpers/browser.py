"""Opens a page in headless Chromium, where it is installed, and reads the page and its console."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")
needs_browser = pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed (apt-get install chromium)")

# Without these it looks for updates and accounts, which is of no use here.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@dataclass(frozen=True)
class Opened:
    """A page after its scripts ran."""

    dom: str
    complaints: list[str]  # errors on the console

    def text_of(self, identifier: str) -> str:
        """The text in the element with that id."""
        reader = _TextOf(identifier)
        reader.feed(self.dom)
        assert reader.found, f"no element {identifier}"
        return " ".join(" ".join(reader.texts).split())


class _TextOf(HTMLParser):
    def __init__(self, identifier: str) -> None:
        super().__init__()
        self.identifier = identifier
        self.found = False
        self.depth = 0
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        inside = self.depth or dict(attributes).get("id") == self.identifier
        if inside and tag not in ("input", "br", "meta", "img", "link"):
            self.depth += 1
            self.found = True

    def handle_endtag(self, tag: str) -> None:
        self.depth -= bool(self.depth)

    def handle_data(self, data: str) -> None:
        if self.depth:
            self.texts.append(data)


def open_page(text: str, folder: Path, *more: str, actions: str = "") -> Opened:
    """`actions` is a script that runs after the page's own."""
    page = folder / "page.html"
    page.write_text(
        text.replace("</body>", f"<script>{actions}</script></body>") if actions else text, encoding="utf-8"
    )
    done = _run(folder, "--virtual-time-budget=2000", "--dump-dom", "--enable-logging=stderr", *more, page.as_uri())
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Opened(done.stdout, complaints)


def take_picture(page: Path, picture: Path, *more: str) -> None:
    _run(picture.parent, "--virtual-time-budget=2000", f"--screenshot={picture}", *more, page.as_uri())


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    profile = folder / "profile"
    try:
        return subprocess.run(
            [str(CHROMIUM), *_FLAGS, f"--user-data-dir={profile}", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        shutil.rmtree(profile, ignore_errors=True)
