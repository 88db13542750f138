"""The time classes that a step is broken down into, and the time class of each row of a rank class.

In: a `RankClass`. Out: for each of its rows a `TimeClass`. A moment of a step belongs to the first `TimeClass` that is
running then. Communication that overlaps with computing is hidden, and counted separately.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from maya.estimators.kernel import CLASS_TRAITS
from maya.replay.rank_class import RankClass, once_per_rank_class
from maya.replay.record_kinds import P2P_CALLS
from maya.trace import RecordKind
from maya.util.arrays import Booleans


class TimeClass(str, Enum):
    """What a moment of a step is spent on, in order of precedence."""

    GEMM = "gemm"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    MEMORY_BOUND = "memory_bound"
    OTHER = "other"  # computing of another kind
    COMMUNICATION = "communication"  # exposed: no computing overlaps with it
    COPY = "copy"  # copies and memsets
    BUBBLE = "bubble"  # waits in a send or recv for its peer
    WAITING = "waiting"  # waits in a collective for ranks that arrive later
    SLOWED = "slowed"  # extra time of kernels that overlap with communication
    HOST_BOUND = "host_bound"  # the host has not launched the next kernel yet
    IDLE = "idle"  # no kernel is left in the step

    __hash__ = str.__hash__


CLASSES = tuple(TimeClass)
NUMBER = {name: number for number, name in enumerate(CLASSES)}
COMPUTING = CLASSES[: NUMBER[TimeClass.COMMUNICATION]]
SHARED = (TimeClass.COMMUNICATION, TimeClass.BUBBLE, TimeClass.WAITING, TimeClass.IDLE)  # not the rank's own time

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

_OF_KERNEL = {name: TimeClass(traits.time_class) for name, traits in CLASS_TRAITS.items()}


@once_per_rank_class
def classify(rank_class: RankClass) -> npt.NDArray[np.int8]:
    """The number of the time class of each row. Callers must not change it: it is kept."""
    kinds = rank_class.trace.records["kind"][rank_class.records]
    of_kernel = np.array(
        [NUMBER[_OF_KERNEL[item.kernel.kernel_class]] for item in rank_class.kernels] or [0], dtype=np.int8
    )
    numbers: npt.NDArray[np.int8] = of_kernel[np.maximum(rank_class.kernel, 0)]
    numbers[(kinds == RecordKind.MEMCPY) | (kinds == RecordKind.MEMSET)] = NUMBER[TimeClass.COPY]
    numbers[rank_class.call >= 0] = NUMBER[TimeClass.COMMUNICATION]
    return numbers


def is_p2p(rank_class: RankClass) -> Booleans:
    """For each row, whether it is a send or recv."""
    of_call = np.array([call.call in P2P_CALLS for call in rank_class.calls] or [False], dtype=bool)
    found: Booleans = of_call[np.maximum(rank_class.call, 0)] & (rank_class.call >= 0)
    return found
