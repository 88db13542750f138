"""A run's traces, read and taken apart once; replays on different settings share it.

recording = read_recording(folder)
simulate(recording), simulate(recording, recording.settings.changed(gpu="b200"))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from maya.estimators.features.from_trace import TracedKernel
from maya.replay.collective_times import DTYPES
from maya.replay.plan_compiler import is_comm_init
from maya.replay.rank_class import Behaviour, read_behaviours
from maya.replay.run_settings import RunSettings
from maya.replay.timeline import CollectiveCall
from maya.replay.trace_digest import MESSAGES
from maya.trace import RecordKind, Trace

_FOR_EACH_MEMBER = frozenset({"ncclAllGather", "ncclReduceScatter", "ncclAlltoAll", "ncclGather", "ncclScatter"})
_WORKS = (RecordKind.KERNEL, RecordKind.LIBRARY, RecordKind.MEMCPY, RecordKind.MEMSET)


@dataclass(frozen=True, eq=False)
class Part:
    """What the ranks of one behaviour did, without times; fields as in timeline.Program."""

    behaviour: Behaviour
    records: npt.NDArray[np.intp]
    works: list[TracedKernel]
    work: npt.NDArray[np.int32]
    calls: list[CollectiveCall]
    call: npt.NDArray[np.int32]

    @property
    def trace(self) -> Trace:
        return self.behaviour.trace


@dataclass(frozen=True, eq=False)
class Recording:
    """A run as it was recorded."""

    folder: Path
    parts: list[Part]
    problems: list[str]  # with traces
    allocations: bool  # ranks that allocated differently are in different parts

    @cached_property
    def settings(self) -> RunSettings:
        """Those that the job ran with."""
        return RunSettings.load(self.folder)


def read_recording(folder: Path, inductor: Path | None = None, *, allocations: bool = False) -> Recording:
    """The recording in a run's folder. `inductor` has the sources of kernels that torch.compile generated, if they are
    not in the folder, too. `allocations`: for hosts that pay for cudaMalloc and cudaFree."""
    folder = Path(folder)
    behaviours, problems = read_behaviours(folder, inductor, allocations=allocations)
    if not behaviours:
        raise ValueError(
            problems[0]
            if problems
            else f"{folder}: there are no traces, rank0.trace and so on; give the folder of a recorded run"
        )
    return Recording(folder, [_part(behaviour) for behaviour in behaviours], problems, allocations)


def _part(behaviour: Behaviour) -> Part:
    trace = behaviour.trace
    kinds = trace.records["kind"]
    is_work = np.isin(kinds, np.array(_WORKS, dtype=np.uint8))
    is_call = (kinds == RecordKind.COLLECTIVE) & ~is_comm_init(trace)
    positions = np.flatnonzero(is_work | is_call)
    traced = behaviour.traced
    work = np.full(len(positions), -1, dtype=np.int32)
    work[is_work[positions]] = traced.which
    signatures = trace.records["signature"][positions[is_call[positions]]]
    used, which = np.unique(signatures, return_inverse=True)
    call = np.full(len(positions), -1, dtype=np.int32)
    call[is_call[positions]] = which.reshape(-1)
    return Part(behaviour, positions, traced.works, work, [_call(trace, number) for number in used.tolist()], call)


def _call(trace: Trace, number: int) -> CollectiveCall:
    signature = trace.signature(number)
    name, count, dtype = str(signature["call"]), int(signature["count"]), str(signature["dtype"])
    size = count * DTYPES[dtype][0] * (int(signature["ranks"]) if name in _FOR_EACH_MEMBER else 1)
    is_message = name in MESSAGES
    return CollectiveCall(
        call=name,
        communicator=int(signature["communicator"]),
        count=count,
        dtype=dtype,
        size=size,
        peer=int(signature.get("peer" if is_message else "root", -1)),
        shared_bytes=max(size, int(signature.get("shared_bytes", 0))) if is_message else 0,
        place=int(signature["rank"]) if is_message else -1,
    )
