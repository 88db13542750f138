"""What a run takes for granted and a reader has to know before its numbers: statements, and where in the script.

In: nothing; maya/results/trace_assumptions.py finds them in traces, the launcher knows the others. Out: lines for the
terminal and the report, and `assumptions` of summary.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PLACEHOLDERS, GIVEN_UP, EMPTY_PRODUCTS = "placeholder_reads", "contents_given_up", "empty_products"
STEPS, CLOCK = "steps", "clock"

_PLACES_SHOWN = 3


@dataclass(frozen=True)
class Place:
    """A line of the script's, or of a library's that it calls."""

    what: str  # "item()"
    at: str  # "/home/me/train.py:42"; "" where it is not known
    times: int  # on the rank that came there most often


@dataclass(frozen=True)
class Assumption:
    """One of them, as a sentence around the places where it shows."""

    kind: str
    statement: str
    places: tuple[Place, ...] = ()
    consequence: str = ""

    def text(self, shorten: Callable[[str], str] = str) -> str:
        """For people; `shorten` makes "train.py:42" of a place."""
        shown = [f"{_place_text(place, shorten)} ({_times(place.times)})" for place in self.places[:_PLACES_SHOWN]]
        if len(self.places) > _PLACES_SHOWN:
            shown.append(f"{len(self.places) - _PLACES_SHOWN} more")
        listed = f": {', '.join(shown)}" if shown else ""
        return f"{self.statement}{listed}{'; ' if self.consequence else ''}{self.consequence}"

    def document(self) -> dict[str, Any]:
        """For summary.json."""
        places = [{"what": place.what, "at": place.at or None, "times": place.times} for place in self.places]
        return {"kind": self.kind, "text": self.text(), "places": places}


def wall_clock(why: str) -> Assumption:
    """The script's clocks were not virtual; `why` is the option that says so."""
    return Assumption(CLOCK, f"times that the script prints are this machine's wall clock ({why}), not predicted ones")


def _place_text(place: Place, shorten: Callable[[str], str]) -> str:
    return f"{place.what} at {shorten(place.at)}" if place.at else f"{place.what} in backward or at an unknown line"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
