"""The call sites of collectives: the Python stacks from which ranks call them.

In: CallSite messages of ranks, each with a number of the rank's own. Out: numbers that are equal for equal stacks,
whichever rank made the call, and the stacks behind the numbers. 0 is an unknown call site: a call that autograd made,
or one that did not come through torch.distributed.
"""

from __future__ import annotations

from rank_runtime.messages import CallSite

UNKNOWN = 0


class CallSites:
    """All call sites of a job."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # by text
        self._texts: list[str] = [""]  # by number
        self._of_ranks: dict[int, dict[int, int]] = {}  # rank -> its own number -> number

    def add(self, rank: int, site: CallSite) -> None:
        number = self._numbers.get(site.frames)
        if number is None:
            number = self._numbers[site.frames] = len(self._texts)
            self._texts.append(site.frames)
        self._of_ranks.setdefault(rank, {})[site.number] = number

    def start(self, rank: int) -> None:
        """A process of the rank has started, and counts its call sites anew."""
        self._of_ranks.pop(rank, None)

    def number(self, rank: int, own: int) -> int:
        """The number of a rank's call site."""
        known = self._of_ranks.get(rank)
        return UNKNOWN if known is None else known.get(own, UNKNOWN)

    def frames(self, number: int) -> list[tuple[str, int, str]]:
        """File, line and function of each frame, innermost first; none if the call site is unknown."""
        found = []
        for line in self._texts[number].splitlines():
            file, _, rest = line.partition("\t")
            where, _, function = rest.partition("\t")
            found.append((file, int(where) if where.isdigit() else 0, function))
        return found
