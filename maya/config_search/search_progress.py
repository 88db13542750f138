"""The progress of a search: what runs, what each trial gave, and the time that is left.

In: events of the search. Out: one line that is rewritten on a terminal, and a plain line for each trial.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import TextIO

from maya.config_search.search_space import Configuration, configuration_text
from maya.config_search.trial_row import INFERRED, RUN, TrialRow
from maya.scaling.study_progress import short_time
from maya.util.text import bytes_text, time_text

_TERMINAL_SECONDS = 1.0


class SearchProgress:
    """`names`: the parameters that are shown. Without a console, nothing is."""

    def __init__(self, names: Sequence[str], console: TextIO | None) -> None:
        self._names = names
        self._console = console
        self._terminal = console is not None and console.isatty()
        self._shown = 0.0

    def say(self, text: str) -> None:
        self._rewrite("")
        if self._console is not None:
            self._console.write(f"maya search: {text}\n")
            self._console.flush()

    def show(self, running: Sequence[tuple[Configuration, float]]) -> None:
        """What runs, and for how long."""
        now = time.monotonic()
        if self._terminal and now - self._shown >= _TERMINAL_SECONDS:
            self._shown = now
            each = [f"{configuration_text(one, self._names)} ({short_time(seconds)})" for one, seconds in running]
            self._rewrite(f"running {'; '.join(each)}")

    def end(self, row: TrialRow, rows: Sequence[TrialRow], runs_left: int, jobs: int) -> None:
        """A trial has finished."""
        took = f"; took {short_time(row.seconds)}" if row.origin == RUN else f" ({row.origin})"
        seconds = [each.seconds for each in rows if each.origin == RUN]
        expected = runs_left * sum(seconds) / len(seconds) / jobs if seconds else 0.0
        left = f"; at most {short_time(expected)} left" if row.origin != INFERRED and expected >= 1 else ""
        chosen = configuration_text(row.configuration, self._names)
        self.say(f"trial {row.number}: {chosen}: {outcome_text(row)}{took}{left}")

    def close(self) -> None:
        self._rewrite("")

    def _rewrite(self, text: str) -> None:
        if self._terminal and self._console is not None:
            width = shutil.get_terminal_size().columns - 1
            self._console.write(f"\r\x1b[K{f'maya search: {text}'[:width]}" if text else "\r\x1b[K")
            self._console.flush()


def outcome_text(row: TrialRow) -> str:
    """The result of a trial in a few words."""
    if row.figures is None:
        return row.problem if row.origin == INFERRED else f"{row.outcome}: {row.problem}"
    return f"{time_text(row.figures.step_time_ns or 0)} a step, {bytes_text(row.figures.peak_memory_bytes or 0)}"
