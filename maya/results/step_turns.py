"""Which optimizer steps make one iteration of the script, if several optimizers take turns.

In: for each mark the optimizer it belongs to, in order. Out: `Turns`: the marks of each iteration. A GAN's two
optimizers make D G D G …: an iteration is a period of that. An optimizer for each parameter, called during the backward
pass, makes a period of as many. Optimizers that do not overlap (another one for each phase of training) are looked at
one after the other. Where there is no period (one is left out now and then, or warmed up alone) an iteration ends with
the optimizer that comes last. One optimizer alone steps once an iteration, whatever its steps do.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turns:
    """Marks by iteration; those of an iteration that was not completed are in none."""

    iterations: tuple[range, ...]
    regular: bool = True  # False: no period was found


def find_turns(sequence: Sequence[Hashable]) -> Turns:
    """The iterations of a sequence of optimizers."""
    if len(set(sequence)) == len(sequence) > 1:
        return Turns((range(len(sequence)),))  # each of them once
    found: list[range] = []
    regular = True
    for phase in _phases(sequence):
        part = sequence[phase.start : phase.stop]
        period = _period(part)
        if 2 * period <= len(part):
            whole = len(part) // period * period
            cuts = range(phase.start, phase.start + whole, period)
            found += [range(first, first + period) for first in cuts]
        elif len(part) == 1:
            found.append(phase)
        else:
            regular = False
            first = phase.start
            for at in phase:
                if sequence[at] == part[-1]:
                    found.append(range(first, at + 1))
                    first = at + 1
    return Turns(tuple(found), regular)


def _phases(sequence: Sequence[Hashable]) -> list[range]:
    """Parts of a sequence that have no optimizer in common."""
    last = {what: at for at, what in enumerate(sequence)}
    found: list[range] = []
    first = until = 0
    for at, what in enumerate(sequence):
        until = max(until, last[what])
        if at == until:
            found.append(range(first, at + 1))
            first = until = at + 1
    return found


def _period(sequence: Sequence[Hashable]) -> int:
    """The smallest distance after which a sequence repeats itself, to its end; its length if it does not."""
    # The longest beginning that is also an end (the failure function of Knuth, Morris and Pratt).
    border = [0] * len(sequence)
    for at in range(1, len(sequence)):
        length = border[at - 1]
        while length and sequence[at] != sequence[length]:
            length = border[length - 1]
        border[at] = length + (sequence[at] == sequence[length])
    return len(sequence) - border[-1] if sequence else 1
