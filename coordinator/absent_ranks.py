"""Absent ranks: ranks of the job that are not processes, and what the coordinator knows about them.

In: process groups that present ranks announce, and values that they set in the store. Out: the members of a new
communicator, of which absent ones never call; and the values of store keys that only an absent rank would set.

Every rank creates all process groups, also those it is not a member of, so the groups of absent ranks are known from
any present rank. torch passes the unique id of a communicator through the store, under a key that names the group:

    /default_pg/0//3//cuda//0                a communicator of group "3"; its member 0 sets the key
    /default_pg/0//3//cuda//0:5              one of its members 0 and 5 only, for send/recv; the smaller one sets it
    /default_pg/0//3//cuda//UniqueNCCLID:2   one of several ids of a large communicator; some members set one each
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from coordinator.sibling_posts import Siblings
from rank_runtime.absent_members.store_exchange import ASSUMED

ID_BYTES = 128  # of an ncclUniqueId

_ID_KEY = re.compile(
    r"(?P<prefix>.*?(?P<name>[^/]*)//[a-z]+//)(?:(?P<pair>[0-9]{1,9}:[0-9]{1,9})|UniqueNCCLID:(?P<root>[0-9]{1,9})|[0-9]+)"
)
_NUMBER = re.compile(r"[0-9]{1,9}")
_MOST_TRIED = 64  # present ranks whose keys are looked for
_OURS = b"maya "  # the beginning of every id: of ncclGetUniqueId, and of `_absent_id`
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class KnownGroup:
    """A process group: torch's name of it, and its members, ranks of the job."""

    name: str
    members: tuple[int, ...]
    description: str = field(default="", compare=False)


@dataclass(frozen=True)
class CommunicatorOrigin:
    """The process group that a communicator belongs to; `pair`: it has only these two places of the group."""

    group: KnownGroup
    pair: tuple[int, int] | None = None

    @property
    def members(self) -> tuple[int, ...]:
        if self.pair is None:
            return self.group.members
        return self.group.members[self.pair[0]], self.group.members[self.pair[1]]


class AbsentRanks:
    """Which ranks are present, the process groups of all ranks, and the unique ids of communicators."""

    def __init__(self, world_size: int, present: Iterable[int]) -> None:
        self.world_size = world_size
        self.present = frozenset(present)
        self.groups: dict[KnownGroup, None] = {}  # in the order of their first announcement
        self._by_name: dict[str, KnownGroup] = {}
        self._count = [0] * world_size  # groups of each rank
        self._kind: dict[KnownGroup, tuple[int, int]] = {}  # which of its members' groups it is, and its size
        self._siblings: dict[tuple[int, int, tuple[int, int] | None], Siblings] = {}
        self._latest: dict[int, KnownGroup] = {}  # for each rank, the last group that it announced and belongs to
        self._ids: dict[str, bytes] = {}  # store key -> unique id
        self._resolved: set[bytes] = set()  # ids whose origin is known
        self._origins: dict[bytes, CommunicatorOrigin] = {}  # key of a join -> origin
        self.filled: list[str] = []  # store keys other than those of unique ids that were set for absent ranks

    def is_present(self, rank: int) -> bool:
        return rank in self.present

    # ---- in ----

    def announce(self, rank: int, name: str, members: Sequence[int], description: str = "") -> None:
        """A present rank creates a process group."""
        if not members or max(members) >= self.world_size:
            return  # torch refuses such a group
        group = KnownGroup(name, tuple(members), description)
        if group not in self.groups:
            self.groups[group] = None
            self._kind[group] = kind = (self._count[group.members[0]], len(group.members))
            for (*of, pair), siblings in self._siblings.items():
                if tuple(of) == kind:
                    siblings.add(CommunicatorOrigin(group, pair).members)
            for member in group.members:
                self._count[member] += 1
        if name:
            self._by_name[name] = group
        if rank in group.members:
            self._latest[rank] = group

    def note_value(self, key: str, value: bytes) -> None:
        """A rank has set a key of the store."""
        if len(value) == ID_BYTES and value.startswith(_OURS):
            self._ids[key] = value
        elif ASSUMED in key:
            what = key.partition(ASSUMED)[2]
            if what not in self.filled:
                self.filled.append(what)

    # ---- out ----

    def origin_of_join(self, key: bytes, ranks: int) -> CommunicatorOrigin | None:
        """The origin of the communicator whose members join with `key`; None: not known yet, or never."""
        found = self._origins.get(key)
        if found is None:
            self._find_origins()
            found = self._origins.get(key)
        if found is None and ranks == self.world_size and not self._has_reordered_world():
            found = CommunicatorOrigin(KnownGroup("", tuple(range(ranks))))
        return found if found is not None and len(found.members) == ranks else None

    def _has_reordered_world(self) -> bool:
        """Whether a group has all ranks in another order: a communicator of all ranks may then be that group's."""
        world = tuple(range(self.world_size))
        return any(len(group.members) == self.world_size and group.members != world for group in self.groups)

    def origin_of_split(self, rank: int, parent: Sequence[int]) -> CommunicatorOrigin | None:
        """The origin of the communicator that a rank gets from ncclCommSplit: torch splits a communicator while it
        creates a process group."""
        group = self._latest.get(rank)
        if group is None or not set(group.members).issubset(parent):
            return None
        return CommunicatorOrigin(group)

    def siblings_of(self, origin: CommunicatorOrigin) -> Siblings | None:
        """The communicators that correspond to one of this origin in the sibling groups."""
        kind = self._kind.get(origin.group)
        if kind is None:
            return None
        key = (*kind, origin.pair)
        found = self._siblings.get(key)
        if found is None:
            groups = [
                CommunicatorOrigin(group, origin.pair).members for group, its in self._kind.items() if its == kind
            ]
            found = self._siblings[key] = Siblings(groups, self.present)
        return found

    def value_for(self, key: str, among: Sequence[str]) -> bytes | None:
        """The value of a store key that only an absent rank would set, if it is a unique id. `among`: all keys that the
        same client waits for."""
        match = _ID_KEY.fullmatch(key)
        group = self._by_name.get(match["name"]) if match is not None else None
        if match is None or group is None:
            return None
        setter = 0
        if match["pair"]:
            setter = int(match["pair"].partition(":")[0])
        elif match["root"]:
            roots = sum(1 for other in among if other.startswith(f"{match['prefix']}UniqueNCCLID:"))
            setter = _member_of_root(int(match["root"]), roots, len(group.members))
        if setter >= len(group.members) or self.is_present(group.members[setter]):
            return None
        value = self._ids[key] = _absent_id(key)
        return value

    def form_of(self, key: str) -> str | None:
        """The key without the number of the absent rank that it names; None: it names none."""
        for match in reversed(list(_NUMBER.finditer(key))):
            if int(match[0]) < self.world_size and not self.is_present(int(match[0])):
                return f"{key[: match.start()]}*{key[match.end() :]}"
        return None

    def key_like(self, key: str, exists: Callable[[str], bool]) -> str | None:
        """The key that a present rank has set in the place of `key`, which an absent rank would set: the same text with
        a present rank's number, of the closest one before the absent rank, then of others."""
        for match in reversed(list(_NUMBER.finditer(key))):
            rank = int(match[0])
            if rank >= self.world_size or self.is_present(rank):
                continue
            others = sorted(self.present, key=lambda other: (other > rank, abs(other - rank)))
            for other in others[:_MOST_TRIED]:
                like = f"{key[: match.start()]}{other:0{len(match[0])}d}{key[match.end() :]}"
                shorter = f"{key[: match.start()]}{other}{key[match.end() :]}"
                for found in (like, shorter):
                    if exists(found):
                        return found
        return None

    def _find_origins(self) -> None:
        several: dict[str, dict[int, bytes]] = {}  # prefix of keys -> ids of a communicator with several
        for key, value in self._ids.items():
            if value in self._resolved:
                continue
            match = _ID_KEY.fullmatch(key)
            group = self._by_name.get(match["name"]) if match is not None else None
            if match is None or group is None:
                continue
            if match["root"]:
                several.setdefault(match["prefix"], {})[int(match["root"])] = value
                continue
            self._resolved.add(value)
            low, high = map(int, (match["pair"] or "0:0").split(":"))
            if high < len(group.members):
                pair = (low, high) if match["pair"] else None
                self._origins[join_key(value)] = CommunicatorOrigin(group, pair)
        for prefix, ids in several.items():
            name = _ID_KEY.fullmatch(f"{prefix}0")
            assert name is not None
            self._origins[join_key(_joined(ids))] = CommunicatorOrigin(self._by_name[name["name"]])


def join_key(identifiers: bytes) -> bytes:
    """The key by which members of a communicator join, as shim/nccl_rendezvous.c makes it from the unique ids."""
    one, other = 0xCBF29CE484222325, 0x9E3779B97F4A7C15
    for byte in identifiers:
        one = ((one ^ byte) * 0x100000001B3) & _MASK
        other = ((other + byte) * 0xD6E8FEB86659FD93) & _MASK
        other ^= other >> 32
    return one.to_bytes(8, "little") + other.to_bytes(8, "little")


def _joined(ids: dict[int, bytes]) -> bytes:
    return b"".join(ids[root] for root in sorted(ids))


def _absent_id(key: str) -> bytes:
    """An id as ncclGetUniqueId would make it in an absent rank; the same in every run."""
    digest = sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    return f"maya absent {digest}".encode().ljust(ID_BYTES, b"\0")


def _member_of_root(root: int, roots: int, members: int) -> int:
    """The member that makes the id number `root`: torch spreads the roots evenly, larger shares first."""
    share, larger = divmod(members, max(roots, 1))
    return root * (share + 1) if root < larger else larger * (share + 1) + (root - larger) * share
