"""Computes the stuck ranks: those that can never go on.

In: the pending waits of ranks at the coordinator, and the condition of each rank. Out: the ranks that can never go on,
whatever the others do. A rank that runs, sleeps, or blocks for an unknown reason is free: it may do anything. A rank
that waits only for free ranks is free itself; the computation repeats this rule until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from coordinator.communicators import PendingWait


class Condition(Enum):
    """Which event can unblock a rank."""

    FREE = "free"  # none is needed: it runs, or may go on by itself
    CALLS = "calls"  # an answer of the coordinator to one of its calls
    OTHER_RANKS = "other ranks"  # an action of any other rank, in a store or with Gloo
    ENDED = "ended"


def stuck_ranks(conditions: Mapping[int, Condition], waits: Iterable[PendingWait]) -> set[int]:
    """Ranks that can never go on."""
    waits_of: dict[int, list[PendingWait]] = {}
    for wait in waits:
        for rank in wait.waiting:
            waits_of.setdefault(rank, []).append(wait)
    free = {rank for rank, condition in conditions.items() if condition is Condition.FREE}
    blocked = {
        rank: condition
        for rank, condition in conditions.items()
        if condition in (Condition.CALLS, Condition.OTHER_RANKS)
    }
    changed = True
    while changed:
        changed = False
        for rank, condition in list(blocked.items()):
            own = waits_of.get(rank, [])
            # A rank without a pending wait has been answered: the answer is on its way.
            is_free = condition is Condition.CALLS and not own
            is_free = is_free or (condition is Condition.OTHER_RANKS and any(other != rank for other in free))
            if is_free or any(_can_complete(wait, free) for wait in own):
                del blocked[rank]
                free.add(rank)
                changed = True
    return set(blocked)


def _can_complete(wait: PendingWait, free: set[int]) -> bool:
    """Whether every missing rank may still arrive."""
    if wait.communicator == 0:  # only the number of missing ranks is known
        return len(free.difference(wait.waiting)) >= len(wait.missing)
    return free.issuperset(wait.missing)
