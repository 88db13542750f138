"""Gives a job up early: after the first round of its survey, if a step will certainly take too long.

In: --give-up-above, and what rank 0 did alone. Out: `GaveUp`, and gave_up.json in the run's folder. A step of rank 0 in
which nothing waits for other ranks is the least that a step of the job can take (maya/results/lone_step.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maya.util.files import read_versioned, write_atomically
from maya.util.text import time_text
from maya.util.units import NANOSECONDS

FILE = "gave_up.json"
VERSION = 1
_LIMIT = re.compile(r"([^/]+?)(?:/(=?)([1-9][0-9]*))?")


@dataclass(frozen=True)
class GiveUpLimit:
    """The longest time that a step may take."""

    ns: int
    samples: int | None = None  # tokens or images that `ns` is for; None: for a step, whatever it processes
    is_fixed: bool = False  # every step has `samples`

    @staticmethod
    def parse(text: str) -> GiveUpLimit:
        """A time for any step, "2.1s"; for a number of tokens, "2.1s/1048576"; or for a step that is known to have this
        number of tokens, "2.1s/=1048576"."""
        found = _LIMIT.fullmatch(text)
        if found is None:
            raise ValueError(f'"{text}": expected a time, or a time and a number of tokens: 2.1s, 2.1s/1048576')
        time, fixed, samples = found.groups()
        return GiveUpLimit(NANOSECONDS.parse(time), int(samples) if samples else None, bool(fixed))

    def allowed_ns(self, samples: int | None) -> int:
        """The longest time that a step with this number of samples may take."""
        return self.ns if self.samples is None else self.ns * (samples or 0) // self.samples

    def text(self) -> str:
        """As `parse` reads it."""
        return f"{self.ns}ns" + (f"/{'=' if self.is_fixed else ''}{self.samples}" if self.samples else "")


@dataclass(frozen=True)
class LeastStep:
    """What the first round says of a job; gave_up.json."""

    step_ns: int  # that a step takes at least
    spread: float  # expected relative error of a kernel's time
    unit: str | None  # of the samples; None: not known
    samples: int | None  # of a step; at most, where ranks send to each other
    limit: str

    def exceeds(self, limit: GiveUpLimit) -> bool:
        """Whether a step takes longer even if kernels are faster by their error."""
        if limit.samples is not None and self.samples is None:
            return False
        return self.step_ns / (1.0 + self.spread) > limit.allowed_ns(self.samples)

    @property
    def problem(self) -> str:
        """One sentence."""
        work = f" of {self.samples:,} {self.unit}" if self.samples is not None else ""
        return f"a step{work} takes at least {time_text(self.step_ns)}: that is what rank 0 needs if it never waits"

    def save(self, folder: Path) -> None:
        write_atomically(folder / FILE, json.dumps({"version": VERSION, **asdict(self)}) + "\n")

    @staticmethod
    def load(folder: Path) -> LeastStep | None:
        """None: the job was not given up."""
        content: Mapping[str, Any] | None = read_versioned(folder / FILE, VERSION)
        return None if content is None else LeastStep(**{name: content[name] for name in LeastStep.__annotations__})


class GaveUp(Exception):
    """A step takes too long; the text says how long."""


def least_step(folder: Path, limit: GiveUpLimit, stages: int) -> LeastStep | None:
    """What the first round in this folder says. `stages`: how many ranks send to each other in a chain, at most."""
    from maya.results.lone_step import find_lone_step

    try:
        lone = find_lone_step(folder)
    except (OSError, ValueError):  # the round failed halfway, or recorded nothing
        return None
    if lone is None:
        return None
    samples = lone.most_samples
    # All stages of a pipeline were counted. Fewer samples mean fewer a second, so this has to be certain.
    if limit.is_fixed and samples is not None and limit.samples is not None and samples == limit.samples * stages:
        samples = limit.samples
    return LeastStep(lone.ns, lone.spread, lone.unit, samples, limit.text())
