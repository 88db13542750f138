"""Lists of ranks as text: format "ranks 0-5, 7" and "0-7,9"; parse "0-7", "0,8,16" and "0:64:8"."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MOST_RUNS = 12


def ranks_text(ranks: Iterable[int], noun: str = "rank") -> str:
    """`rank 3`, `ranks 0-5, 7`; a long list is cut, with the number of ranks."""
    runs = _runs(ranks)
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    if len(texts) > _MOST_RUNS:
        number = sum(last - first + 1 for first, last in runs)
        texts[_MOST_RUNS - 1 :] = [f"... ({number} {noun}s)"]
    plural = len(runs) > 1 or (runs and runs[0][0] != runs[0][1])
    return f"{noun}{'s' if plural else ''} {', '.join(texts)}"


def ranges(numbers: Iterable[int]) -> str:
    """All numbers as ranges: "0-7,9"."""
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in _runs(numbers))


def parse_ranks(text: str, *, repeated: bool = False) -> tuple[int, ...]:
    """The ranks in "0-7", "0,8,16", "0:64:8" (start, stop, step), or several of these after commas. With `repeated`,
    ranks may overlap, and come back in order."""
    ranks: list[int] = []
    for part in text.split(","):
        if match := re.fullmatch(r"\s*(\d+)\s*", part):
            ranks.append(int(match[1]))
        elif (match := re.fullmatch(r"\s*(\d+)-(\d+)\s*", part)) and int(match[1]) <= int(match[2]):
            ranks += range(int(match[1]), int(match[2]) + 1)
        elif match := re.fullmatch(r"\s*(\d+):(\d+)(?::([1-9]\d*))?\s*", part):
            ranks += range(int(match[1]), int(match[2]), int(match[3] or 1))
        else:
            raise ValueError(f"{text!r} does not name ranks; write e.g. 0-7, 0,8,16 or 0:64:8")
    if not ranks:
        raise ValueError(f"{text!r} names no rank")
    if repeated:
        return tuple(sorted(set(ranks)))
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"{text!r} names a rank twice")
    return tuple(ranks)


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """First and last of every run of consecutive numbers."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs
