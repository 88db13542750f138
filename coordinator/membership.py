"""Communicator init: joins, splits and shrinks are collected until every member has called.

In: requests of ranks. Out: the requests that can be answered now, each with a new communicator or with an error.
Requests that belong together but contradict each other are answered with an error, and so are all later ones. Members
that share a GPU get an error as well, as from NCCL, once all members have called; splits and shrinks take members of
their parent and need no such check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.absent_ranks import AbsentRanks, CommunicatorOrigin
from coordinator.answers import INVALID_ARGUMENT, INVALID_USAGE
from maya.util.ranks import ranks_text
from rank_runtime.messages import Join, RequestFailed, Shrink, Split

DUPLICATE_GPU = "Duplicate GPU detected"  # the beginning of NCCL's text

MembershipFailure = tuple[int, RequestFailed]  # rank, answer


@dataclass(frozen=True)
class NewCommunicator:
    """A new communicator: its members in their order, each with the request that it answers.

    A request of None belongs to a rank that has ended meanwhile, or that is absent.
    """

    members: tuple[int, ...]
    requests: tuple[int | None, ...]
    origin: CommunicatorOrigin | None = None  # only in jobs with absent ranks


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

    def __init__(self, ranks: int, absent: AbsentRanks | None = None) -> None:
        super().__init__()
        self.ranks = ranks
        self._absent = absent
        self._origin: CommunicatorOrigin | None = None
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
        return MembershipOutcome() if self._absent is not None else self.outcome(join.key)

    def outcome(self, key: bytes) -> MembershipOutcome:
        """The new communicator, if every present member has joined."""
        if self._absent is not None and self._origin is None:
            self._origin = self._absent.origin_of_join(key, self.ranks)
        if self._failed or len(self._arrived) < self._present_members():
            return MembershipOutcome()
        complaint = self._complaint_about_places()
        if complaint:
            return self._fail(list(self._arrived.values()), complaint)
        if len(self._gpus) < len(self._arrived):
            return self._refuse_shared_gpus()
        expected = self._origin.members if self._origin is not None else range(self.ranks)
        ordered = [self._arrived.get(member, (rank, None)) for member, rank in enumerate(expected)]
        members, requests = tuple(rank for rank, _ in ordered), tuple(request for _, request in ordered)
        return MembershipOutcome([NewCommunicator(members, requests, self._origin)])

    def _present_members(self) -> int:
        if self._absent is None or self._origin is None:
            return self.ranks
        return sum(map(self._absent.is_present, self._origin.members))

    def _complaint_about_places(self) -> str:
        """The problem if ranks have joined in other places than those of their process group."""
        for member, (rank, _) in self._arrived.items():
            if self._origin is not None and self._origin.members[member] != rank:
                return (
                    f"a communicator cannot be made: rank {rank} joined it as member {member}, which is rank "
                    f"{self._origin.members[member]} of process group {self._origin.group.name}"
                )
        return ""

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
        missing = (member for member in range(self.ranks) if member not in self._arrived)
        if self._absent is None or self._origin is None:
            return tuple(missing)
        return tuple(member for member in missing if self._absent.is_present(self._origin.members[member]))


class Dividing(_Requests):
    """Splits or shrinks of one communicator with the same sequence number."""

    def __init__(
        self,
        parent: Sequence[int],
        member_of: dict[int, int],
        first: Split | Shrink,
        absent: AbsentRanks | None = None,
    ) -> None:
        super().__init__()
        self._absent = absent
        self._origins: dict[int, CommunicatorOrigin | None] = {}  # for each rank of a job with absent ranks
        self._parent = parent
        self._member_of = member_of
        self._first = first
        self._arrived: dict[int, tuple[Split | Shrink, int | None]] = {}  # rank -> request
        self._excluded = frozenset(first.excluded) if isinstance(first, Shrink) else frozenset()
        self._missing = sum(
            1
            for member, rank in enumerate(parent)
            if member not in self._excluded and (absent is None or absent.is_present(rank))
        )

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
        if self._absent is not None:
            self._origins[rank] = self._absent.origin_of_split(rank, self._parent)
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
            if member not in self._excluded
            and rank not in self._arrived
            and (self._absent is None or self._absent.is_present(rank))
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
        if self._absent is not None:
            return self._outcome_with_absent(self._absent)
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

    def _outcome_with_absent(self, absent: AbsentRanks) -> MembershipOutcome:
        """Absent ranks never call: of a split, the members are those of the process groups that it is made for."""
        outcome = MembershipOutcome()
        numbers = {rank: number for rank, (_, number) in self._arrived.items()}
        if isinstance(self._first, Shrink):
            members = tuple(rank for member, rank in enumerate(self._parent) if member not in self._excluded)
            outcome.groups.append(NewCommunicator(members, tuple(numbers.get(rank) for rank in members)))
            return outcome
        colors: dict[int, list[int]] = {}
        for rank, (request, number) in sorted(self._arrived.items()):
            assert isinstance(request, Split)
            if request.color >= 0:
                colors.setdefault(request.color, []).append(rank)
            elif number is not None:
                outcome.without.append((rank, number))
        for _, ranks in sorted(colors.items()):
            origin = self._origins[ranks[0]]
            if origin is None or ranks != sorted(filter(absent.is_present, origin.members)):
                return self._fail(
                    list(numbers.items()),
                    f"{ranks_text(ranks)} called ncclCommSplit outside of torch's functions that create process "
                    "groups, so the members that are absent are not known: run the job with --represent all",
                )
            requests = tuple(numbers.get(member) for member in origin.members)
            outcome.groups.append(NewCommunicator(origin.members, requests, origin))
        return outcome
