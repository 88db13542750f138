"""Who can never go on.

In: what each rank waits for at the coordinator, and what kind of standing still the ranks are in. Out: the ranks that
can never go on, whatever the others do. A rank that runs, sleeps, or stands still for a reason that cannot be seen from
here can do anything; whoever waits only for such ranks can go on, and so can whoever waits for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from coordinator.communicators import PendingWait


class Condition(Enum):
    """Of a rank."""

    FREE = "free"  # it runs, or may go on for a reason of its own
    CALLS = "calls"  # it stands until a call at the coordinator is answered
    MEETS = "meets"  # it stands until some other rank does something, in a store or with Gloo
    ENDED = "ended"


def stuck_ranks(conditions: Mapping[int, Condition], waits: Iterable[PendingWait]) -> set[int]:
    """Ranks that can never go on."""
    waits_of: dict[int, list[PendingWait]] = {}
    for wait in waits:
        for rank in wait.waiting:
            waits_of.setdefault(rank, []).append(wait)
    free = {rank for rank, condition in conditions.items() if condition is Condition.FREE}
    standing = {
        rank: condition for rank, condition in conditions.items() if condition in (Condition.CALLS, Condition.MEETS)
    }
    changed = True
    while changed:
        changed = False
        for rank, condition in list(standing.items()):
            own = waits_of.get(rank, [])
            # Not even a call that is not answered yet: the answer is on its way.
            is_free = condition is Condition.CALLS and not own
            is_free = is_free or (condition is Condition.MEETS and any(other != rank for other in free))
            if is_free or any(_can_complete(wait, free) for wait in own):
                del standing[rank]
                free.add(rank)
                changed = True
    return set(standing)


def _can_complete(wait: PendingWait, free: set[int]) -> bool:
    """Whether everybody who is missing may still come."""
    if wait.communicator == 0:  # who is missing is not known, only how many are
        return len(free.difference(wait.waiting)) >= len(wait.missing)
    return free.issuperset(wait.missing)
