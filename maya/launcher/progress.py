"""The progress of a job with many ranks: one line that is rewritten on a terminal, or a plain line now and then."""

from __future__ import annotations

import time
from typing import TextIO

_TERMINAL_SECONDS = 0.2
_PLAIN_SECONDS = 30.0


class Progress:
    """Counts the ranks that have reached each stage. Prints nothing for a job of one rank."""

    def __init__(self, ranks: int, console: TextIO) -> None:
        self.started = self.joined = self.steps = self.finished = 0
        self._ranks = ranks
        self._console = console
        self._terminal = console.isatty()
        self._shown = ""
        self._due = time.monotonic() + (_TERMINAL_SECONDS if self._terminal else _PLAIN_SECONDS)

    def seconds(self) -> float | None:
        """Time until the next call of show()."""
        return max(0.0, self._due - time.monotonic()) if self._ranks > 1 else None

    def show(self) -> None:
        if self._ranks == 1 or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + (_TERMINAL_SECONDS if self._terminal else _PLAIN_SECONDS)
        text = self.text()
        if text != self._shown:
            # The ranks also write to the terminal: leave the cursor at the beginning of the line for their output.
            self._console.write(f"\r\x1b[K{text}\r" if self._terminal else f"{text}\n")
            self._console.flush()
            self._shown = text

    def text(self) -> str:
        if self.started == 0:
            stage = "importing modules"
        elif self.started < self._ranks:
            stage = f"{self.started} of {self._ranks} ranks started"
        elif self.finished:
            stage = f"{self.finished} of {self._ranks} ranks finished"
        elif self.steps:
            stage = f"optimizer step {self.steps}"
        else:
            stage = f"{self.joined} of {self._ranks} ranks initialised"
        return f"maya-torchrun: {stage}"

    def close(self) -> None:
        if self._terminal and self._shown:
            self._console.write("\r\x1b[K")
            self._console.flush()
            self._shown = ""
