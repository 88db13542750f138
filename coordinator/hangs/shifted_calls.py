"""Finds collectives of one communicator that were matched although ranks called them from different places.

In: the history of a communicator (coordinator/call_history.py). Out: the first call that some members left out, or made
in addition, so that all their later calls meet other calls than they should. Nothing but the order matches NCCL's
collectives, so calls of equal size and type meet unnoticed.

Different call sites of matching calls are legal: a branch on the rank may call the same collective from two lines. What
tells the two apart is the continuation. After a legal branch the members meet again at the same call sites. After a
missing call, the later calls of one side equal those of the other side, shifted by one or more. Where the calls end
before that shows, the order of the same calls earlier in the job decides. The result is a suspicion, not a proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from coordinator.call_history import PastCall

_MOST_SHIFTED = 64  # calls in a row that a member may have left out
_MOST_COMPARED = 256
_MOST_SWAPPED = 4


class Difference(Enum):
    """How the calls of some members differ from those of the others."""

    SKIPPED = "skipped"
    EXTRA = "extra"
    NEW = "new"  # a call that no member made before, instead of a usual one: nothing tells which of the two is wrong


@dataclass(frozen=True)
class MadeCall:
    """A call of one member."""

    site: int
    call: int  # Call
    count: int

    def __eq__(self, other: object) -> bool:
        """Calls of unknown sites are compared by operation and size."""
        if not isinstance(other, MadeCall):
            return NotImplemented
        if self.site or other.site:
            return self.site == other.site
        return (self.call, self.count) == (other.call, other.count)

    def __hash__(self) -> int:
        return hash(self.site) if self.site else hash((self.call, self.count))


@dataclass(frozen=True)
class Shift:
    """The first calls that do not belong together."""

    difference: Difference
    sequence: int
    odd: tuple[int, ...]  # members
    others: tuple[int, ...]
    calls: tuple[MadeCall, ...]  # that the odd members left out, or made in addition
    odd_site: int  # from where they called the one with this number
    others_site: int


def find_shift(runs: Sequence[Sequence[PastCall]]) -> Shift | None:
    """The first shift of a communicator's calls."""
    for run in runs:
        for index, call in enumerate(run):
            if isinstance(call.sites, int) or len(call.sites) < 2:
                continue
            others = max(call.sites, key=lambda group: (len(group[1]), -group[1][0]))
            for site, odd in call.sites:
                if site == others[0]:
                    continue
                shift = _compare(run, index, odd, others[1])
                if shift is None and len(odd) == len(others[1]):
                    shift = _compare(run, index, others[1], odd)
                if shift is not None:
                    return shift
    return None


def _compare(run: Sequence[PastCall], index: int, odd: tuple[int, ...], others: tuple[int, ...]) -> Shift | None:
    """How the calls of two groups of members go on from the first that differs; None: they meet again, or nothing
    shows which call is missing."""
    calls = run[index : index + _MOST_COMPARED]
    theirs, own = _made_by(calls, others[0]), _made_by(calls, odd[0])
    if not theirs or not own or _is_swapped(theirs, own):
        return None
    found = _continuation(theirs, own)
    if found is None:
        return None
    if found == _NOTHING_FOLLOWS:
        habit = _habit(_made_by(run[:index], others[0]), theirs[0], own[0]) if not run[index].complete else None
        if habit is None:
            return None
        difference, missing = habit
    else:
        difference, count = found
        missing = (theirs if difference is Difference.SKIPPED else own)[:count]
    return Shift(difference, run[index].sequence, odd, others, tuple(missing), own[0].site, theirs[0].site)


def _made_by(calls: Sequence[PastCall], member: int) -> list[MadeCall]:
    """The calls of a member up to the first that it has not made."""
    found = []
    for call in calls:
        site = call.site_of(member)
        if site is None:
            break
        found.append(MadeCall(site, call.call, call.count))
    return found


def _is_swapped(theirs: Sequence[MadeCall], own: Sequence[MadeCall]) -> bool:
    """Whether a few last calls are the same in another order, as on two sides of a branch."""
    return len(theirs) == len(own) <= _MOST_SWAPPED and Counter(theirs) == Counter(own)


def _agreement(one: Sequence[MadeCall], other: Sequence[MadeCall]) -> int:
    """The length of the shorter sequence, if the longer one begins with it; otherwise 0."""
    common = min(len(one), len(other))
    return common if list(one[:common]) == list(other[:common]) else 0


_NOTHING_FOLLOWS = (Difference.SKIPPED, 0)


def _continuation(theirs: Sequence[MadeCall], own: Sequence[MadeCall]) -> tuple[Difference, int] | None:
    """The explanation that needs the fewest changed calls for the most equal ones that follow. None: the members meet
    again after a branch."""
    best: int | None = None
    found: tuple[Difference, int] | None = _NOTHING_FOLLOWS
    for count in range(1, _MOST_SHIFTED + 1):
        for agreement, explanation in (
            (_agreement(theirs[count:], own[count:]), None),
            (_agreement(theirs[count:], own), (Difference.SKIPPED, count)),
            (_agreement(own[count:], theirs), (Difference.EXTRA, count)),
        ):
            if agreement and (best is None or agreement - count > best):
                best, found = agreement - count, explanation
    return found


def _habit(past: Sequence[MadeCall], theirs: MadeCall, own: MadeCall) -> tuple[Difference, list[MadeCall]] | None:
    """The explanation by the order of these calls earlier in the job."""
    past = past[-_MOST_COMPARED:]
    skipped = _between(past, theirs, own)
    extra = _between(past, own, theirs)
    if skipped and (not extra or len(skipped) <= len(extra)):
        return Difference.SKIPPED, skipped
    if own not in past and theirs in past:
        return Difference.NEW, [own]
    return None


def _between(past: Sequence[MadeCall], first: MadeCall, second: MadeCall) -> list[MadeCall]:
    """The calls from the last `first` that a `second` followed, up to that `second`."""
    for start in range(len(past) - 1, -1, -1):
        if past[start] == first and second in past[start + 1 : start + 1 + _MOST_SHIFTED]:
            return list(past[start : past.index(second, start + 1)])
    return []
