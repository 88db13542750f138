"""The process groups that a rank knows, with present and absent members.

In: the ranks that are processes, and groups in the order in which the program creates them. Out: for a group, the
places of present members, the present member that stands for an absent one, and the sibling of an absent member. The
rules are those of the coordinator (coordinator/communicators.py, coordinator/sibling_posts.py), except that the first
group counts where the coordinator takes the smallest rank: a rank may not know all groups yet.

  stand-in   the closest present member before an absent one; for those before the first present member, that one
  sibling    the k-th groups of all ranks correspond to each other; the sibling of an absent member is the present
             member in the same place of the first such group that has one
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

Kind = tuple[int, int]  # which of its first member's groups it is, and its size


class GroupMembers:
    """A process group: members are ranks of the job, a place is a rank in the group."""

    def __init__(self, name: str, members: Sequence[int], present: frozenset[int], kind: Kind) -> None:
        self.name = name
        self.members = tuple(members)
        self.kind = kind
        self.present = tuple(place for place, rank in enumerate(self.members) if rank in present)
        self._is_present = frozenset(self.present)

    def is_present(self, place: int) -> bool:
        return place in self._is_present

    @cached_property
    def stand_ins(self) -> list[int]:
        """For each place, the present place that contributes for it: itself if it is present."""
        chosen: list[int] = []
        last = self.present[0]  # also for the places before it
        for place in range(len(self.members)):
            if place in self._is_present:
                last = place
            chosen.append(last)
        return chosen

    @cached_property
    def shares(self) -> dict[int, int]:
        """For each present place, how many members it contributes for, itself included."""
        counts = dict.fromkeys(self.present, 0)
        for place in self.stand_ins:
            counts[place] += 1
        return counts


class KnownGroups:
    """All groups of the job that have been created so far."""

    def __init__(self, world_size: int, present: Iterable[int]) -> None:
        self.world_size = world_size
        self.present = frozenset(present)
        self._by_name: dict[str, GroupMembers] = {}
        self._by_kind: dict[Kind, list[GroupMembers]] = {}
        self._count: dict[int, int] = {}  # groups of each rank
        self._made: dict[str, int] = {}  # groups of each name: torch uses a name again after destroying all groups

    def add(self, name: str, members: Sequence[int]) -> GroupMembers | None:
        """A group is created; None: the members are invalid, which torch says itself. The name is empty if it is not
        known: the group then has no siblings."""
        if not members or not all(0 <= rank < self.world_size for rank in members):
            return None
        kind = (self._count.get(members[0], 0), len(members))
        made = self._made[name] = self._made.get(name, 0) + 1
        unique = f"{name}~{made}" if name and made > 1 else name
        group = GroupMembers(unique, members, self.present, kind)
        for rank in members:
            self._count[rank] = self._count.get(rank, 0) + 1
        self._by_name[name] = group
        self._by_kind.setdefault(kind, []).append(group)
        return group

    def named(self, name: str) -> GroupMembers | None:
        return self._by_name.get(name)

    def may_have_siblings(self, group: GroupMembers) -> bool:
        return len(group.members) < self.world_size

    def has_sibling(self, group: GroupMembers, place: int) -> bool:
        """Whether the sibling of an absent member is present, also in a group whose name is not known here."""
        return any(other.is_present(place) for other in self._by_kind.get(group.kind, ()))

    def sibling(self, group: GroupMembers, place: int) -> GroupMembers | None:
        """The group in which the sibling of an absent member is present."""
        if not self.may_have_siblings(group):
            return None
        others = self._by_kind.get(group.kind, ())
        return next((other for other in others if other.name and other.is_present(place)), None)

    def takers(self, group: GroupMembers, sender: int, receiver: int | None) -> int:
        """How many present ranks take what the sender of this group sends, in the place of its absent siblings.
        `receiver`: the place it sends to; None: to all members."""
        if not self.may_have_siblings(group):
            return 0
        takers = 0
        for other in self._by_kind[group.kind]:
            if other is group or other.is_present(sender) or self.sibling(other, sender) is not group:
                continue
            takers += len(other.present) if receiver is None else int(other.is_present(receiver))
        return takers


def parse_present(text: str) -> list[int]:
    """The ranks of a list such as "0-3,8"."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks
