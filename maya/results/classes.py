"""The classes that a step's time is divided into, and which of them each work of a program is.

In: a `RankClass`. Out: for each of its records a `TimeClass`. What occupies a device at a moment is the first class of
`TimeClass` that is running then; communication that runs beside computing is hidden, and counted apart.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from maya.estimators.kernel import CLASS_TRAITS
from maya.replay.rank_class import RankClass, once_per_rank_class
from maya.replay.record_kinds import P2P_CALLS
from maya.trace import RecordKind


class TimeClass(str, Enum):
    """What a moment of a step is spent on, first things first."""

    GEMM = "gemm"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    MEMORY_BOUND = "memory_bound"
    OTHER = "other"  # of computing
    COMMUNICATION = "communication"  # exposed: nothing is computed beside it
    COPY = "copy"  # copies and memsets
    BUBBLE = "bubble"  # a message is waited for that its sender or receiver is not ready for
    WAITING = "waiting"  # a collective is waited for that another rank has not come to
    SLOWED = "slowed"  # what computing took longer because communication ran beside it
    HOST_BOUND = "host_bound"  # the host had not launched anything yet
    IDLE = "idle"  # nothing was left to do

    __hash__ = str.__hash__


CLASSES = tuple(TimeClass)
NUMBER = {name: number for number, name in enumerate(CLASSES)}
COMPUTING = CLASSES[: NUMBER[TimeClass.COMMUNICATION]]
SHARED = (TimeClass.COMMUNICATION, TimeClass.BUBBLE, TimeClass.WAITING, TimeClass.IDLE)  # not a rank's own doing

TITLES = {
    TimeClass.GEMM: "gemm",
    TimeClass.ATTENTION: "attention",
    TimeClass.CONVOLUTION: "convolution",
    TimeClass.MEMORY_BOUND: "memory-bound",
    TimeClass.OTHER: "other compute",
    TimeClass.COMMUNICATION: "exposed communication",
    TimeClass.COPY: "copies",
    TimeClass.BUBBLE: "pipeline bubble",
    TimeClass.WAITING: "waiting for other ranks",
    TimeClass.SLOWED: "slowed by communication",
    TimeClass.HOST_BOUND: "host-bound",
    TimeClass.IDLE: "idle",
}

_OF_WORK = {kind: TimeClass(traits.time_class) for kind, traits in CLASS_TRAITS.items()}


@once_per_rank_class
def classify(rank_class: RankClass) -> npt.NDArray[np.int8]:
    """The number of the time class of each row. Callers must not change it: it is kept."""
    kinds = rank_class.trace.records["kind"][rank_class.records]
    of_work = np.array([NUMBER[_OF_WORK[item.work.kind]] for item in rank_class.kernels] or [0], dtype=np.int8)
    numbers: npt.NDArray[np.int8] = of_work[np.maximum(rank_class.kernel, 0)]
    numbers[(kinds == RecordKind.MEMCPY) | (kinds == RecordKind.MEMSET)] = NUMBER[TimeClass.COPY]
    numbers[rank_class.call >= 0] = NUMBER[TimeClass.COMMUNICATION]
    return numbers


def is_p2p(rank_class: RankClass) -> npt.NDArray[np.bool_]:
    """For each row, whether it is a send or recv."""
    of_call = np.array([call.call in P2P_CALLS for call in rank_class.calls] or [False], dtype=bool)
    found: npt.NDArray[np.bool_] = of_call[np.maximum(rank_class.call, 0)] & (rank_class.call >= 0)
    return found
