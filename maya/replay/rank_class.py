"""Rank classes: ranks whose traces say the same. The trace files of a run's folder -> one `RankClass` for each.

Every trace gets a digest; of the traces with equal digests one is read in full. Traces with different digests may
still mean the same, see `trace_digest.refined_digest`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from maya.estimators.features.from_trace import TracedKernel, TracedKernels, kernels_of
from maya.estimators.kernel import Estimate, Kernel
from maya.replay.collective_times import CALLS, DTYPES
from maya.replay.record_kinds import KERNEL_KINDS, P2P_CALLS, is_comm_init
from maya.replay.represented_ranks import FILE as REPRESENTED_FILE
from maya.replay.represented_ranks import RepresentedJob
from maya.replay.run_settings import FILE as SETTINGS_FILE
from maya.replay.run_settings import RunSettings
from maya.replay.trace_digest import CommInit, refined_digest, trace_files
from maya.replay.trace_digests import digests_of
from maya.trace import RecordKind, Trace, TraceError, read
from maya.util.ranks import parse_strided, ranks_text

Found = TypeVar("Found")
KernelNumbers = dict[tuple[object, ...], int]  # a number for each distinct kernel

_P2P_TEXTS = ('{"call":"ncclSend', '{"call":"ncclRecv')
_LENGTH = re.compile(r'"shape":\[(\d+)')
_SIZED_PER_MEMBER = frozenset({"ncclAllGather", "ncclReduceScatter", "ncclAlltoAll", "ncclGather", "ncclScatter"})


@dataclass(frozen=True)
class TracedCommunicator:
    """The same on all its ranks: its members in order, and a number that tells communicators of the same members
    apart."""

    members: tuple[int, ...]
    instance: int

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.members, self.instance))  # once: a communicator may have thousands of members

    def place(self, rank: int, recorded: int) -> int:
        """The place of a rank; `recorded`: in the trace of its class, which counts if a rank has several places."""
        if len(self._places) < len(self.members):
            return recorded
        if rank not in self._places:
            raise ValueError(
                f"rank {rank} sends on a communicator of {ranks_text(self.members)}, so it does not do the same as the "
                "rank that represents it: name it as well (--represent)"
            )
        return self._places[rank]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {rank: place for place, rank in enumerate(self.members)}


@dataclass(frozen=True)
class CollectiveCall:
    """A distinct collective, send or recv of a rank class, from its signature in the trace."""

    call: str  # "ncclAllReduce", ...
    communicator: int  # number in the trace
    count: int
    dtype: str
    size: int  # bytes, as netmodel.Collective counts them
    peer: int  # root or peer, by its place in the communicator; -1: none
    shared_bytes: int = 0  # only for send/recv
    place: int = -1  # only for send/recv: the own place of the rank whose trace it is; see TracedCommunicator.place


@dataclass(frozen=True, eq=False)
class RankClass:
    """Ranks that do the same, and what they do. A row is a record that occupies a stream: a kernel, library call,
    copy, memset, collective, send or recv. `estimates` are empty until a replay on given settings fills them in."""

    ranks: Sequence[int]
    communicators: Sequence[dict[int, TracedCommunicator]]  # for each of the ranks, by number in its trace
    trace: Trace  # the trace of the first rank
    records: npt.NDArray[np.intp]  # for each row, its position in trace.records
    kernels: Sequence[TracedKernel]  # the distinct ones
    kernel: npt.NDArray[np.int32]  # for each row, its position in `kernels`; -1: a collective
    calls: Sequence[CollectiveCall]  # the distinct ones
    call: npt.NDArray[np.int32]  # for each row, its position in `calls`; -1: not a collective
    estimates: Sequence[Estimate] = ()  # for each of `kernels`


def once_per_rank_class(function: Callable[[RankClass], Found]) -> Callable[[RankClass], Found]:
    """Keep what a function of a rank class returns for as long as the rank class lives."""
    known: WeakKeyDictionary[RankClass, Found] = WeakKeyDictionary()

    @wraps(function)
    def call_once(rank_class: RankClass) -> Found:
        if rank_class not in known:
            known[rank_class] = function(rank_class)
        return known[rank_class]

    return call_once


def read_rank_classes(
    folder: Path, inductor: Path | None = None, *, allocations: bool = False, absent: bool = True
) -> tuple[list[RankClass], list[str]]:
    """The rank classes of a run, in the order of their first ranks, and a sentence for each trace that cannot be read.
    A rank that did nothing on its GPU has no trace. `allocations`: cudaMalloc and cudaFree tell classes apart.
    `absent`: add the ranks that were no processes to the classes of their representatives."""
    found = _read_traces(folder, inductor, allocations=allocations)
    job = RepresentedJob.load(folder) if absent else None
    if job is not None and found.of_rank:
        recorded_with = RunSettings.load(folder) if (folder / SETTINGS_FILE).exists() else None
        try:
            _add_absent_ranks(job, found.of_rank, recorded_with.faulty_ranks if recorded_with is not None else ())
        except (LookupError, TypeError) as error:
            raise ValueError(
                f"the traces in {folder} do not fit its {REPRESENTED_FILE} ({type(error).__name__}: {error}); "
                "run the job again"
            ) from error
    classes = {id(members): members for members in found.of_rank.values()}
    return [_rank_class(members) for members in classes.values()], found.problems


@dataclass(frozen=True)
class TraceFacts:
    """What a survey needs to know about traces."""

    digests: dict[int, bytes]  # for each rank, the same for ranks of the same class
    p2p: set[tuple[int, ...]]  # the members of communicators with send/recv, all-to-alls not counted
    lengths: set[int]  # of the tensors that ops have as inputs, along their first dimension


def trace_facts(folder: Path, kernel_numbers: KernelNumbers) -> TraceFacts:
    """The facts about the traces in a run's folder. Digests of several folders can be compared if all were made with
    the same `kernel_numbers`."""
    found = _read_traces(folder, None, allocations=False, kernel_numbers=kernel_numbers).of_rank
    p2p: set[tuple[int, ...]] = set()
    lengths: set[int] = set()
    for members in {id(members): members for members in found.values()}.values():
        lengths.update(_lengths_of_tensors(members.trace))
    for rank, members in found.items():
        communicators = members.communicators[members.ranks.index(rank)]
        p2p.update(communicators[number].members for number in _communicators_with_p2p(members.trace))
    return TraceFacts({rank: members.digest for rank, members in found.items()}, p2p, lengths)


@dataclass(frozen=True)
class _Traces:
    """The traces of a run's folder."""

    of_rank: dict[int, _ClassMembers]
    problems: list[str]


def _read_traces(
    folder: Path, inductor: Path | None, *, allocations: bool, kernel_numbers: KernelNumbers | None = None
) -> _Traces:
    files = dict(trace_files(folder))
    by_digest: dict[bytes, _ClassMembers] = {}
    by_refined_digest: dict[bytes, _ClassMembers] = {}
    kernel_numbers = {} if kernel_numbers is None else kernel_numbers
    problems: list[str] = []
    members_of_rank: dict[int, _ClassMembers] = {}
    for rank, found in digests_of(folder, files, allocations=allocations):
        if found.problem:
            problems.append(f"rank {rank} is left out: {found.problem}")
            continue
        members = by_digest.get(found.digest)
        if members is None:
            trace = read(files[rank])
            traced = kernels_of(trace, inductor)
            numbers = [kernel_numbers.setdefault(_key(item.kernel), len(kernel_numbers)) for item in traced.kernels]
            each = np.array(numbers, dtype=np.int64)[traced.which] if numbers else np.zeros(0, dtype=np.int64)
            refined = refined_digest(trace, each, allocations=allocations)
            members = by_refined_digest.setdefault(refined, _ClassMembers(refined, trace, traced, [], []))
            by_digest[found.digest] = members
        members_of_rank[rank] = members
        members.ranks.append(rank)
        members.communicators.append({number: _communicator(init) for number, init in found.communicators.items()})
    return _Traces(members_of_rank, problems)


@dataclass(frozen=True, eq=False)
class _ClassMembers:
    """A rank class while its ranks are collected."""

    digest: bytes
    trace: Trace
    traced: TracedKernels
    ranks: list[int]
    communicators: list[dict[int, TracedCommunicator]]


def _add_absent_ranks(
    job: RepresentedJob, members_of_rank: Mapping[int, _ClassMembers], faulty: Collection[int]
) -> None:
    """Add each absent rank to the class of its representative, and sort the ranks of every class. `faulty`: ranks that
    represent none, because a fault was injected into them."""
    communicators = {
        rank: members.communicators[members.ranks.index(rank)] for rank, members in members_of_rank.items()
    }
    digests = {rank: members.digest for rank, members in members_of_rank.items() if rank not in faulty}
    # One object for each communicator: comparing the members of a thousand ranks' communicators would take long.
    known = {each: each for mine in communicators.values() for each in mine.values()}
    made: dict[tuple[int, int], tuple[object, TracedCommunicator]] = {}  # by the identity of the members, and instance
    inits = {
        rank: {number: (each.members, each.instance) for number, each in mine.items()}
        for rank, mine in communicators.items()
    }
    for rank, representative in job.representatives(digests, _peers_of_rank_0(members_of_rank)).items():
        found: dict[int, TracedCommunicator] = {}
        for number, (members, instance) in job.communicators_of(rank, representative, inits[representative]).items():
            key = (id(members), instance)
            if key not in made:
                communicator = TracedCommunicator(members, instance)
                made[key] = members, known.setdefault(communicator, communicator)  # keep the tuple and its identity
            found[number] = made[key][1]
        members_of_rank[representative].ranks.append(rank)
        members_of_rank[representative].communicators.append(found)
    for each in {id(members): members for members in members_of_rank.values()}.values():
        order = sorted(range(len(each.ranks)), key=each.ranks.__getitem__)
        each.ranks[:] = [each.ranks[at] for at in order]
        each.communicators[:] = [each.communicators[at] for at in order]


def _peers_of_rank_0(members_of_rank: Mapping[int, _ClassMembers]) -> set[int]:
    """The ranks that rank 0 sends to or receives from."""
    members = members_of_rank.get(0)
    if members is None:
        return set()
    communicators = members.communicators[members.ranks.index(0)]
    return {
        communicators[signature["communicator"]].members[signature["peer"]]
        for signature in _p2p_signatures(members.trace)
    }


def _communicators_with_p2p(trace: Trace) -> list[int]:
    """The numbers of communicators with send/recv. An all-to-all is none: in it, a rank sends to itself as often as to
    any other."""
    times = np.bincount(trace.records["signature"], trace.records["kind"] == RecordKind.COLLECTIVE, len(trace.strings))
    sends: dict[int, Counter[int]] = {}  # for each communicator, the number of sends and recvs by peer
    own: dict[int, int] = {}  # the rank's place in each communicator
    for position, text in enumerate(trace.strings):
        if text.startswith(_P2P_TEXTS):
            signature = json.loads(text)
            number = signature["communicator"]
            own[number] = signature["rank"]
            sends.setdefault(number, Counter())[signature["peer"]] += int(times[position])
    return [number for number, peers in sends.items() if max(peers.values()) > peers[own[number]]]


def _lengths_of_tensors(trace: Trace) -> set[int]:
    ops = (text for text in trace.strings if text.startswith('{"op"'))
    return {int(length) for text in ops for length in _LENGTH.findall(text)}


def _p2p_signatures(trace: Trace) -> list[dict[str, Any]]:
    texts = (text for text in trace.strings if text.startswith(_P2P_TEXTS))
    return [json.loads(text) for text in texts]


def _rank_class(members: _ClassMembers) -> RankClass:
    trace, traced = members.trace, members.traced
    kinds = trace.records["kind"]
    is_kernel = np.isin(kinds, np.array(KERNEL_KINDS, dtype=np.uint8))
    is_call = (kinds == RecordKind.COLLECTIVE) & ~is_comm_init(trace)
    positions = np.flatnonzero(is_kernel | is_call)
    kernel = np.full(len(positions), -1, dtype=np.int32)
    kernel[is_kernel[positions]] = traced.which
    signatures = trace.records["signature"][positions[is_call[positions]]]
    used, which = np.unique(signatures, return_inverse=True)
    call = np.full(len(positions), -1, dtype=np.int32)
    call[is_call[positions]] = which.reshape(-1)
    calls = [_call(trace, number) for number in used.tolist()]
    _check_communicators(members, calls)
    return RankClass(members.ranks, members.communicators, trace, positions, traced.kernels, kernel, calls, call)


def _check_communicators(members: _ClassMembers, calls: Sequence[CollectiveCall]) -> None:
    for rank, communicators in zip(members.ranks, members.communicators, strict=True):
        for call in calls:
            joined = communicators.get(call.communicator)
            if joined is None or call.peer >= len(joined.members):
                what = "never joined" if joined is None else f"joined with {len(joined.members)} members"
                raise TraceError(
                    f"{members.trace.path} is damaged: {call.call} of rank {rank} is on communicator "
                    f"{call.communicator}, which the rank {what}. Record it again."
                )


def _call(trace: Trace, number: int) -> CollectiveCall:
    signature = trace.signature(number)
    name, count, dtype = str(signature["call"]), int(signature["count"]), str(signature["dtype"])
    if name not in CALLS or dtype not in DTYPES:
        raise TraceError(f"{trace.path} is damaged: string {number} has call {name!r} of {dtype!r}. Record it again.")
    size = count * DTYPES[dtype][0] * (int(signature["ranks"]) if name in _SIZED_PER_MEMBER else 1)
    is_p2p = name in P2P_CALLS
    return CollectiveCall(
        call=name,
        communicator=int(signature["communicator"]),
        count=count,
        dtype=dtype,
        size=size,
        peer=int(signature.get("peer" if is_p2p else "root", -1)),
        shared_bytes=max(size, int(signature.get("shared_bytes", 0))) if is_p2p else 0,
        place=int(signature["rank"]) if is_p2p else -1,
    )


def _key(kernel: Kernel) -> tuple[object, ...]:
    sizes = (kernel.flops, kernel.bytes_read, kernel.bytes_written)
    return (kernel.kernel_class, kernel.dtype, kernel.variant, *sizes, *kernel.shape, *kernel.shape.values())


@lru_cache(maxsize=1 << 16)
def _communicator(init: CommInit) -> TracedCommunicator:
    return TracedCommunicator(_parse_members(init[0]), init[1])


_parse_members = lru_cache(maxsize=1 << 12)(parse_strided)  # the same tuple for the same text
