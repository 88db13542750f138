"""Lists of ranks as text: "ranks 0-5, 7" and "0-7,9"; "0-7", "0,8,16" and "0:64:8"; and in order, "0-56:8"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MOST_RANKS = 1 << 24  # of a job
_MOST_RUNS = 12
_MOST_NAMED = 1 << 25


class NoSuchRankError(ValueError):
    """A list of ranks names one that is not in the job."""


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


def parse_ranks(text: str, *, repeated: bool = False, world_size: int = MOST_RANKS) -> tuple[int, ...]:
    """The ranks in "0-7", "0,8,16", "0:64:8" (start, stop, step), or several of these after commas. With `repeated`,
    ranks may overlap, and come back in order."""
    ranks: list[int] = []
    for part in text.split(","):
        if match := re.fullmatch(r"\s*(\d{1,18})\s*", part):
            named = range(int(match[1]), int(match[1]) + 1)
        elif (match := re.fullmatch(r"\s*(\d{1,18})-(\d{1,18})\s*", part)) and int(match[1]) <= int(match[2]):
            named = range(int(match[1]), int(match[2]) + 1)
        elif match := re.fullmatch(r"\s*(\d{1,18}):(\d{1,18})(?::([1-9]\d{0,17}))?\s*", part):
            named = range(int(match[1]), int(match[2]), int(match[3] or 1))
        else:
            raise ValueError(f"{text!r} does not name ranks; write e.g. 0-7, 0,8,16 or 0:64:8")
        if named and named[-1] >= world_size:
            raise NoSuchRankError(f"there is no rank {named[-1]}; ranks are 0 to {world_size - 1}")
        ranks += named
        if len(ranks) > _MOST_NAMED:
            raise ValueError(f"{text!r} names more than {_MOST_NAMED:,} ranks")
    if not ranks:
        raise ValueError(f"{text!r} names no rank")
    if repeated:
        return tuple(sorted(set(ranks)))
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"{text!r} names a rank twice")
    return tuple(ranks)


def format_strided(numbers: Sequence[int]) -> str:
    """Numbers in their order, as a trace names the members of a communicator: "0-7", "0-56:8", "3,1"."""
    parts: list[str] = []
    at = 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 0
        end = at + 1
        while step > 0 and end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        if end - at < 3:  # two numbers are no shorter as a range
            end = at + 1
        run = f"-{numbers[end - 1]}" if end - at > 1 else ""
        parts.append(f"{numbers[at]}{run}{f':{step}' if run and step > 1 else ''}")
        at = end
    return ",".join(parts)


def parse_strided(text: str) -> tuple[int, ...]:
    """The numbers in "0-7", "0-56:8", "3,1"."""
    numbers: list[int] = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        named = range(int(first), int(last or first) + 1, int(step or 1))
        if len(numbers) + len(named) > _MOST_NAMED:
            raise ValueError(f"{text[:40]!r} names more than {_MOST_NAMED:,} ranks")
        numbers.extend(named)
    return tuple(numbers)


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """First and last of every run of consecutive numbers."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs
