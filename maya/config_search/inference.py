"""What finished trials say about others: a configuration that needs more memory than one that ran out of it.

In: finished trials. Out: for a configuration, the trial from which follows that it does not fit. More of a parameter
means more (or less) memory only if at least two pairs of trials of the same search show it, which differ in nothing
else, and no pair contradicts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from maya.config_search.parameter import Parameter
from maya.config_search.search_space import Configuration
from maya.config_search.trial_row import INFERRED, OUT_OF_MEMORY, TrialRow

_FEWEST_PAIRS = 2


def memory_directions(rows: Iterable[TrialRow], parameters: Sequence[Parameter]) -> dict[str, int]:
    """1: memory grows with the parameter, -1: it falls; parameters without enough evidence are left out."""
    tried = [row for row in rows if row.origin != INFERRED and (row.is_predicted or row.outcome == OUT_OF_MEMORY)]
    found = {}
    for parameter in parameters:
        if not parameter.is_ordered or len(parameter.values) < 2:
            continue
        signs = [sign for lines in _lines(tried, parameter.name) for sign in _signs(lines)]
        signs = [sign for sign in signs if sign]
        if len(signs) >= _FEWEST_PAIRS and len(set(signs)) == 1:
            found[parameter.name] = signs[0]
    return found


def inferred_from(
    configuration: Configuration, rows: Iterable[TrialRow], directions: Mapping[str, int]
) -> TrialRow | None:
    """The first trial that ran out of memory though it needs no more than this configuration does."""
    for row in rows:
        if row.outcome != OUT_OF_MEMORY or row.origin == INFERRED:
            continue
        different = [name for name, value in configuration.items() if row.configuration[name] != value]
        if different and all(name in directions and _grows(row, configuration, name, directions) for name in different):
            return row
    return None


def _grows(row: TrialRow, configuration: Configuration, name: str, directions: Mapping[str, int]) -> bool:
    before, after = row.configuration[name], configuration[name]
    assert not isinstance(before, str)
    assert not isinstance(after, str)
    return (after - before) * directions[name] > 0


def _lines(rows: Sequence[TrialRow], name: str) -> list[list[TrialRow]]:
    """Trials that differ in this parameter only, in its order."""
    lines: dict[tuple[object, ...], list[TrialRow]] = {}
    for row in rows:
        others = tuple(sorted((key, str(value)) for key, value in row.configuration.items() if key != name))
        lines.setdefault(others, []).append(row)
    return [sorted(line, key=lambda row: row.configuration[name]) for line in lines.values() if len(line) > 1]


def _signs(line: Sequence[TrialRow]) -> list[int]:
    """For neighbours, whether memory grows (1) or falls (-1); 0: nothing is known."""
    return [_sign(before, after) for before, after in pairwise(line)]


def _sign(before: TrialRow, after: TrialRow) -> int:
    if before.outcome != after.outcome:
        return 1 if after.outcome == OUT_OF_MEMORY else -1
    if before.figures is None or after.figures is None:
        return 0  # neither fits
    one, other = before.figures.memory_bytes.get("allocated"), after.figures.memory_bytes.get("allocated")
    if one is None or other is None:
        one, other = before.figures.peak_memory_bytes, after.figures.peak_memory_bytes
    return (int(other or 0) > int(one or 0)) - (int(other or 0) < int(one or 0))
