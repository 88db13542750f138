"""Communicator init: joins, splits and shrinks are collected until every member has called.

In: requests of ranks. Out: the requests that can be answered now, each with a new communicator or with an error.
Requests that belong together but contradict each other are answered with an error, and so are all later ones. Members
that share a GPU get an error as well, as from NCCL, once all members have called; splits and shrinks take members of
their parent and need no such check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.answers import INVALID_ARGUMENT, INVALID_USAGE
from maya.util.ranks import ranks_text
from rank_runtime.messages import Join, RequestFailed, Shrink, Split

DUPLICATE_GPU = "Duplicate GPU detected"  # the beginning of NCCL's text

MembershipFailure = tuple[int, RequestFailed]  # rank, answer


@dataclass(frozen=True)
class NewCommunicator:
    """A new communicator: its members in their order, each with the request that it answers.

    A request of None belongs to a rank that has ended meanwhile.
    """

    members: tuple[int, ...]
    requests: tuple[int | None, ...]


@dataclass
class MembershipOutcome:
    """The answers that a request leads to."""

    groups: list[NewCommunicator] = field(default_factory=list)
    without: list[tuple[int, int]] = field(default_factory=list)  # rank and request of those in no group
    failures: list[MembershipFailure] = field(default_factory=list)


class _Requests:
    """Requests that lead to the same communicators."""

    def __init__(self) -> None:
        self._failed = ""

    def _fail(self, waiting: Sequence[tuple[int, int | None]], text: str) -> MembershipOutcome:
        self._failed = text
        outcome = MembershipOutcome()
        for rank, request in waiting:
            if request is not None:
                outcome.failures.append((rank, RequestFailed(request, INVALID_USAGE, text)))
        return outcome


class Joining(_Requests):
    """ncclCommInitRank calls with the same unique id."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks
        self._arrived: dict[int, tuple[int, int | None]] = {}  # member -> rank, request
        self._gpus: dict[tuple[int, int, int], list[int]] = {}  # node, GPU, bus id -> members
        self._ranks: set[int] = set()

    def add(self, rank: int, join: Join) -> MembershipOutcome:
        if self._failed:
            return self._fail([(rank, join.request)], self._failed)
        complaint = self._complaint(rank, join)
        if complaint:
            return self._fail([*self._arrived.values(), (rank, join.request)], complaint)
        self._ranks.add(rank)
        self._arrived[join.member] = (rank, join.request)
        self._gpus.setdefault((join.node, join.gpu, join.bus_id), []).append(join.member)
        if len(self._arrived) < self.ranks:
            return MembershipOutcome()
        if len(self._gpus) < self.ranks:
            return self._refuse_shared_gpus()
        ordered = [self._arrived[member] for member in range(self.ranks)]
        return MembershipOutcome(
            [NewCommunicator(tuple(rank for rank, _ in ordered), tuple(request for _, request in ordered))]
        )

    def _refuse_shared_gpus(self) -> MembershipOutcome:
        """Answer every member with NCCL's text, followed by all ranks of the job that use the GPU."""
        texts: dict[int, str] = {}
        for (node, gpu, bus_id), sharing in sorted(self._gpus.items()):
            for member in sharing if len(sharing) > 1 else ():
                other = min(each for each in sharing if each != member)
                ranks = ranks_text({self._arrived[each][0] for each in sharing})
                texts[member] = (
                    f"{DUPLICATE_GPU} : rank {member} and rank {other} both on CUDA device {bus_id:x} "
                    f"(GPU {gpu} of node {node} is used by {ranks} of the job)"
                )
        self._failed = texts[min(texts)]
        outcome = MembershipOutcome()
        for member, (rank, request) in sorted(self._arrived.items()):
            if request is not None:
                failure = RequestFailed(request, INVALID_USAGE, texts.get(member, self._failed))
                outcome.failures.append((rank, failure))
        return outcome

    def _complaint(self, rank: int, join: Join) -> str:
        failure = "a communicator cannot be made: "
        if join.ranks != self.ranks:
            others = f"{ranks_text(self._ranks)} joined it as one of {self.ranks}"
            return f"{failure}{others}, rank {rank} as one of {join.ranks}"
        if not 0 <= join.member < self.ranks:
            return f"{failure}rank {rank} joined it as member {join.member}, expected 0 to {self.ranks - 1}"
        if join.member in self._arrived:
            return (
                f"{failure}rank {self._arrived[join.member][0]} and rank {rank} both joined it as member {join.member}"
            )
        return ""

    def forget(self, rank: int) -> None:
        """Note that a rank has ended."""
        for member, (other, _) in self._arrived.items():
            if other == rank:
                self._arrived[member] = (rank, None)

    def waiting(self) -> tuple[int, ...]:
        return tuple(rank for rank, request in self._arrived.values() if request is not None and not self._failed)

    def missing(self) -> tuple[int, ...]:
        """The missing members: their ranks are not known before they call."""
        return tuple(member for member in range(self.ranks) if member not in self._arrived)


class Dividing(_Requests):
    """Splits or shrinks of one communicator with the same sequence number."""

    def __init__(self, parent: Sequence[int], member_of: dict[int, int], first: Split | Shrink) -> None:
        super().__init__()
        self._parent = parent
        self._member_of = member_of
        self._first = first
        self._arrived: dict[int, tuple[Split | Shrink, int | None]] = {}  # rank -> request
        self._excluded = frozenset(first.excluded) if isinstance(first, Shrink) else frozenset()
        self._missing = len(parent) - len(self._excluded)

    def add(self, rank: int, request: Split | Shrink) -> MembershipOutcome:
        if self._failed:
            return self._fail([(rank, request.request)], self._failed)
        if rank in self._arrived:
            text = f"rank {rank} has already called {self.what} with sequence number {request.sequence}"
            return MembershipOutcome(failures=[(rank, RequestFailed(request.request, INVALID_ARGUMENT, text))])
        complaint = self._complaint(rank, request)
        if complaint:
            waiting = [(other, number) for other, (_, number) in self._arrived.items()]
            return self._fail([*waiting, (rank, request.request)], complaint)
        self._arrived[rank] = (request, request.request)
        self._missing -= 1
        return MembershipOutcome() if self._missing else self._outcome()

    def forget(self, rank: int) -> None:
        """Note that a rank has ended."""
        if rank in self._arrived:
            self._arrived[rank] = (self._arrived[rank][0], None)

    @property
    def what(self) -> str:
        return "ncclCommSplit" if isinstance(self._first, Split) else "ncclCommShrink"

    @property
    def sequence(self) -> int:
        return self._first.sequence

    def waiting(self) -> tuple[int, ...]:
        return tuple(rank for rank, (_, number) in self._arrived.items() if number is not None and not self._failed)

    def missing(self) -> tuple[int, ...]:
        return tuple(
            rank
            for member, rank in enumerate(self._parent)
            if member not in self._excluded and rank not in self._arrived
        )

    def _complaint(self, rank: int, request: Split | Shrink) -> str:
        if type(request) is not type(self._first):
            calls = {Split: "ncclCommSplit", Shrink: "ncclCommShrink"}
            return f"{ranks_text(self._arrived)} called {self.what}, rank {rank} called {calls[type(request)]}"
        if isinstance(request, Shrink):
            excluded = frozenset(request.excluded)
            if excluded != self._excluded:
                return (
                    f"{ranks_text(self._arrived)} called ncclCommShrink without members {sorted(self._excluded)}, "
                    f"rank {rank} without {sorted(excluded)}"
                )
            if self._member_of[rank] in excluded:
                return f"rank {rank} called ncclCommShrink though it is excluded"
            if max(excluded, default=0) >= len(self._parent):
                return f"ncclCommShrink without members {sorted(excluded)}, expected 0 to {len(self._parent) - 1}"
        return ""

    def _outcome(self) -> MembershipOutcome:
        outcome = MembershipOutcome()
        colors: dict[int, list[tuple[int, int, int | None]]] = {}  # key, member, request; ordered by key and member
        for rank, (request, number) in self._arrived.items():
            member = self._member_of[rank]
            if isinstance(request, Shrink):
                colors.setdefault(0, []).append((0, member, number))
            elif request.color >= 0:
                colors.setdefault(request.color, []).append((request.key, member, number))
            elif number is not None:
                outcome.without.append((rank, number))
        for _, entries in sorted(colors.items()):
            entries.sort(key=lambda entry: entry[:2])
            members = tuple(self._parent[member] for _, member, _ in entries)
            outcome.groups.append(NewCommunicator(members, tuple(number for _, _, number in entries)))
        return outcome
