"""Assumptions of a prediction, which a reader must know before its numbers: statements, and lines of the script.

maya/results/trace_assumptions.py finds them in traces; the launcher adds others. Out: lines for the terminal and the
report, and `assumptions` in summary.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BRANCHES, PLACEHOLDERS, NOT_KEPT = "placeholder_branches", "placeholder_reads", "contents_not_kept"
EMPTY_GEMMS = "empty_gemms"
ROUTING, ROUTING_READS = "routing", "routing_reads"
STEPS, CLOCK = "steps", "clock"

_PLACES_SHOWN = 3


@dataclass(frozen=True)
class Place:
    """A line of the script, or of a library that it calls."""

    what: str  # "item()"
    at: str  # "/home/me/train.py:42"; "" if unknown
    times: int  # on the rank that reached it most often


@dataclass(frozen=True)
class Assumption:
    """One assumption: a statement, the places where it shows, and the consequence."""

    kind: str
    statement: str
    places: tuple[Place, ...] = ()
    consequence: str = ""

    def text(self, shorten: Callable[[str], str] = str) -> str:
        """One sentence. `shorten` turns a path and line into "train.py:42"."""
        shown = [f"{_place_text(place, shorten)} ({_times(place.times)})" for place in self.places[:_PLACES_SHOWN]]
        if len(self.places) > _PLACES_SHOWN:
            shown.append(f"{len(self.places) - _PLACES_SHOWN} more")
        listed = f": {', '.join(shown)}" if shown else ""
        return f"{self.statement}{listed}{'; ' if self.consequence else ''}{self.consequence}"

    def document(self) -> dict[str, Any]:
        """The entry in summary.json."""
        places = [{"what": place.what, "at": place.at or None, "times": place.times} for place in self.places]
        return {"kind": self.kind, "text": self.text(), "places": places}


def wall_clock(why: str) -> Assumption:
    """The script's clocks show wall time; `why` is the option that says so."""
    return Assumption(
        CLOCK, f"times that the script prints are wall-clock times of this machine ({why}), not predictions"
    )


def _place_text(place: Place, shorten: Callable[[str], str]) -> str:
    return f"{place.what} at {shorten(place.at)}" if place.at else f"{place.what} in backward or at an unknown line"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
