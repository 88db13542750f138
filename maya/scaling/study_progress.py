"""The progress of a study: which size runs, what it does, and the time that is left.

In: events of the study. Out: one line that is rewritten on a terminal, or a plain line for each event and now and then.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

_TERMINAL_SECONDS = 1.0
_PLAIN_SECONDS = 60.0
_OWN = "maya-torchrun: "


def seconds_left(done: Sequence[tuple[int, float]], todo: Sequence[int], elapsed: float = 0.0) -> float | None:
    """An estimate for the sizes that are left, of which the first runs since `elapsed`. None: nothing is known yet.

    A line through the last two sizes, or the last one alone; a larger job takes no less.
    """
    if not done:
        return None
    (size, seconds), least = done[-1], done[-1][1]
    slope = 0.0
    if len(done) > 1 and size > done[-2][0]:
        slope = max(0.0, (seconds - done[-2][1]) / (size - done[-2][0]))
    expected = [max(least, seconds + slope * (each - size)) for each in todo]
    return sum(expected) - min(elapsed, expected[0]) if expected else 0.0


def short_time(seconds: float) -> str:
    """75 -> "1 min 15 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{round(whole / 60)} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class StudyProgress:
    """Shows progress while entered; without a console, nothing."""

    def __init__(self, sizes: Sequence[int], console: TextIO | None) -> None:
        self._sizes = list(sizes)
        self._console = console
        self._terminal = console is not None and console.isatty()
        self._done: list[tuple[int, float]] = []
        self._todo = list(sizes)
        self._current: int | None = None
        self._began = 0.0
        self._stage = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="study progress", daemon=True)

    def __enter__(self) -> StudyProgress:
        if self._console is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._console is not None:
            self._thread.join()
            self._rewrite("")

    def begin(self, nproc: int) -> None:
        with self._lock:
            self._current, self._began, self._stage = nproc, time.monotonic(), "starting"
        if not self._terminal:
            self._plain(self.text())

    def output(self, line: str) -> None:
        """A line of the job; those of maya-torchrun itself tell the stage."""
        if line.startswith(_OWN):
            with self._lock:
                self._stage = line[len(_OWN) :].strip()

    def end(self, nproc: int, text: str, seconds: float, *, ran: bool) -> None:
        """A size has taken this long; `ran`: now, not in an earlier study."""
        with self._lock:
            self._todo = [each for each in self._todo if each != nproc]
            self._done = sorted([*self._done, (nproc, seconds)])
            self._current = None
            left = seconds_left(self._done, self._todo)
        took = f"; took {short_time(seconds)}" if ran else ""
        more = f"; about {short_time(left)} left" if left and ran else ""
        self._rewrite("")
        self._plain(f"{nproc:,} ranks: {text}{took}{more}")

    def text(self) -> str:
        """The state in one line."""
        with self._lock:
            if self._current is None:
                return ""
            elapsed = time.monotonic() - self._began
            left = seconds_left(self._done, self._todo, elapsed)
            number = len(self._sizes) - len(self._todo) + 1
            stage = self._stage
            parts = [f"{self._current:,} ranks ({number} of {len(self._sizes)})", short_time(elapsed)]
        if left:
            parts.append(f"about {short_time(left)} left")
        return f"{', '.join(parts)}: {stage}"  # a narrow terminal cuts the end

    def _tick(self) -> None:
        while not self._over.wait(_TERMINAL_SECONDS if self._terminal else _PLAIN_SECONDS):
            text = self.text()
            if self._terminal:
                self._rewrite(text)
            elif text:
                self._plain(text)

    def _rewrite(self, text: str) -> None:
        if self._terminal and self._console is not None:
            self._console.write(f"\r\x1b[K{f'maya scale: {text}'[: _width()]}" if text else "\r\x1b[K")
            self._console.flush()

    def _plain(self, text: str) -> None:
        if self._console is not None:
            self._console.write(f"maya scale: {text}\n")
            self._console.flush()


def _width() -> int:
    return shutil.get_terminal_size().columns - 1
