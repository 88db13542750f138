"""Which optimizer steps make one iteration of the script, if several optimizers take turns.

In: for each mark its optimizer, in order. Out: `Turns`: the marks of each iteration. The two optimizers of a GAN make
the sequence D G D G …: an iteration is one period. Scripts with an optimizer for each parameter, called during the
backward pass, have a period of that length. Optimizers that do not overlap (one for each phase of training) are handled
one after the other. Where there is no period (an optimizer is skipped now and then, or warms up alone) an iteration
ends with the optimizer that comes last. A single optimizer steps once per iteration.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turns:
    """Marks by iteration, without those of an incomplete iteration at the end."""

    iterations: tuple[range, ...]
    regular: bool = True  # False: no period was found


def find_turns(sequence: Sequence[Hashable]) -> Turns:
    """The iterations of a sequence of optimizers."""
    if len(set(sequence)) == len(sequence) > 1:
        return Turns((range(len(sequence)),))  # each optimizer steps once
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
    """The parts of a sequence that have no optimizer in common."""
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
    """The smallest period of a sequence; its length if it does not repeat."""
    # The longest proper prefix that is also a suffix (the failure function of Knuth, Morris and Pratt).
    border = [0] * len(sequence)
    for at in range(1, len(sequence)):
        length = border[at - 1]
        while length and sequence[at] != sequence[length]:
            length = border[length - 1]
        border[at] = length + (sequence[at] == sequence[length])
    return len(sequence) - border[-1] if sequence else 1
