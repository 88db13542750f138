"""A parameter of a search: its name, its values, and when it matters.

In: values as text ("1,2,4", "1..16*2", "full,selective"). Out: a `Parameter`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from maya.config_search.errors import SearchError
from maya.util.expressions import Expression, ExpressionError, Value

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:([*+])(\d+))?")
_WHOLE = re.compile(r"-?(?:0|[1-9]\d*)")
_NUMBER = re.compile(r"-?\d+\.\d*(?:[eE][+-]?\d+)?|-?\d+[eE][+-]?\d+")
_MOST_VALUES = 1000


@dataclass(frozen=True)
class Parameter:
    """One thing that the search may choose."""

    name: str
    values: tuple[Value, ...]
    when: Expression | None = None  # matters only where this is true; elsewhere it has its first value

    @property
    def is_ordered(self) -> bool:
        """Whether the values are numbers, in ascending order."""
        return all(not isinstance(value, str) for value in self.values)

    def only_when(self, text: str) -> Parameter:
        """The parameter with a condition."""
        try:
            return replace(self, when=Expression(text))
        except ExpressionError as error:
            raise SearchError(f"condition of {self.name}: {error}") from error


def make_parameter(name: str, values: Sequence[Value]) -> Parameter:
    """A parameter with these values; numbers are put in ascending order."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise SearchError(f"{name!r} is not a name for a parameter; use letters, digits and _")
    if not values:
        raise SearchError(f"{name} has no values; give one or more, e.g. 1,2,4 or 1..16*2")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise SearchError(f"{name}: {value!r} is not a number or a text")
    repeated = [value for at, value in enumerate(values) if value in values[:at]]
    if repeated:
        raise SearchError(f"{name} has the value {repeated[0]!r} twice")
    if len(values) > _MOST_VALUES:
        raise SearchError(f"{name} has {len(values)} values; at most {_MOST_VALUES} are possible")
    numbers = [value for value in values if not isinstance(value, str)]
    return Parameter(name, tuple(sorted(numbers)) if len(numbers) == len(values) else tuple(values))


def parse_values(name: str, text: str) -> list[Value]:
    """The values in "1,2,4", "1..8" (every number), "1..16*2" (doubled), "8..64+8" (in steps), or words."""
    values: list[Value] = []
    for item in text.split(","):
        values += _range(name, found) if (found := _RANGE.fullmatch(item.strip())) else [parse_value(item.strip())]
    return values


def parse_value(text: str) -> Value:
    """A number where the text is one."""
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _range(name: str, found: re.Match[str]) -> list[Value]:
    first, last, step = int(found[1]), int(found[2]), int(found[4] or 1)
    grows = found[3] == "*"
    if first > last:
        raise SearchError(f"{name}: the range {found[0]} is empty: {first} is larger than {last}")
    if step < 1 or (grows and (step < 2 or first < 1)):
        raise SearchError(f"{name}: the range {found[0]} never ends; write e.g. 1..16*2 or 8..64+8")
    values: list[Value] = []
    while first <= last and len(values) <= _MOST_VALUES:
        values.append(first)
        first = first * step if grows else first + step
    return values
