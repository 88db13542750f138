"""The outcome of a replay: when everything started and ended, on every rank.

Ranks that do the same share a `RankClass`. Those of them that also did everything at the same times share a
`GroupTimeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.devices import Device
from maya.replay.rank_class import RankClass
from maya.replay.run_settings import RunSettings
from maya.trace import Trace
from maya.util.arrays import Integers


@dataclass(frozen=True, eq=False)
class GroupTimeline:
    """A replay group at the end of a replay: ranks of one class that did everything at the same times. Arrays have a
    row for each of rank_class.records and a column for each rank. All columns are views of the same memory, so one
    column stands for all."""

    ranks: npt.NDArray[np.int32]  # of the job, ascending
    rank_class: RankClass
    launched_ns: Integers  # the host cursor at the launch
    start_ns: Integers  # for a collective: the arrival of its last member
    end_ns: Integers
    arrival_ns: Integers  # for a collective: the arrival of this rank; for other rows start_ns
    # Rows that the replay never reached, because the job stalled or a trace is cut short, start and end when the rank
    # ends.
    reached: npt.NDArray[np.bool_]  # for each row
    communicators: Sequence[dict[int, tuple[int, ...]]]  # for each rank: number in its trace -> ranks of the job


@dataclass(frozen=True, eq=False)
class RankDetail:
    """One rank in full: the host cursor after every record of its trace."""

    rank: int
    trace: Trace  # the trace of its rank class
    host_ns: Integers
    own_ns: Integers  # time that the script's own code took before each record, without the record's call


@dataclass(frozen=True, eq=False)
class Timeline:
    """A whole job."""

    settings: RunSettings
    device: Device
    groups: Sequence[GroupTimeline]
    details: dict[int, RankDetail]  # for the ranks that the caller asked for
    end_ns: npt.NDArray[np.int64]  # for every rank, the end of its last kernel or host call; 0 without a trace
    host_end_ns: npt.NDArray[np.int64]  # for every rank, its main thread's clock at the end
    network_origin: str  # origin of the network's parameters
    problems: Sequence[str] = ()  # truncated traces and collectives that never completed: one sentence each

    @property
    def rank_classes(self) -> list[RankClass]:
        """The distinct rank classes, in the order of their first ranks."""
        return list({id(group.rank_class): group.rank_class for group in self.groups}.values())

    @property
    def world_size(self) -> int:
        return self.settings.world_size
