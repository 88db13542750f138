"""One step of one rank: its time, broken down into time classes.

In: start and end of everything that overlaps with the step, relative to the step's beginning. Out: nanoseconds in each
time class, which add up to the step's length exactly, and the time of hidden communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.results.time_classes import CLASSES, COMPUTING, NUMBER, TimeClass
from maya.util.arrays import Booleans, Indices, Integers

_COMMUNICATION = NUMBER[TimeClass.COMMUNICATION]
_RUNNING = NUMBER[TimeClass.COPY] + 1  # time classes in which something runs; two kinds of waiting follow
_LAYERS = _RUNNING + 2


@dataclass(frozen=True)
class StepWindow:
    """The activity of a rank during a step, one entry for each row. Nothing begins before 0 or ends after `length`."""

    length: int
    number: npt.NDArray[np.int8]  # of the time class
    p2p: Booleans  # send or recv
    arrival: Integers  # for a collective, send or recv: when the rank arrived; for other rows the start
    start: Integers
    end: Integers
    ready: Integers  # when the launch reached the device
    following_ready: int  # when the first launch after the step reached the device, at most `length`


@dataclass(frozen=True)
class StepBreakdown:
    """The time of one step of one rank."""

    ns: tuple[int, ...]  # for each of CLASSES
    hidden_ns: int  # communication that overlaps with computing
    communication_ns: int  # all of it, exposed or hidden


def break_down_step(window: StepWindow) -> StepBreakdown:
    """Assign every moment of a step to one time class."""
    runs = window.end > window.start
    waits = window.start > window.arrival
    layer = np.concatenate(
        (
            window.number[runs].astype(np.int64),
            np.where(window.p2p[waits], NUMBER[TimeClass.BUBBLE], NUMBER[TimeClass.WAITING]),
        )
    )
    begins = np.concatenate((window.start[runs], window.arrival[waits]))
    ends = np.concatenate((window.end[runs], window.start[waits]))
    ready = np.concatenate((window.ready[runs], window.ready[waits]))
    moments = np.concatenate((begins, ends, np.array([0, window.length], dtype=np.int64)))
    edges, at = np.unique(moments, return_inverse=True)
    lengths = np.diff(edges)
    at = at.reshape(-1)
    covered = _coverage(layer, at[: len(begins)], at[len(begins) : 2 * len(begins)], len(edges))
    ns = np.zeros(len(CLASSES), dtype=np.int64)
    first = np.where(covered.any(axis=0), covered.argmax(axis=0), -1)
    for number in range(_LAYERS):
        ns[number] = lengths[first == number].sum()
    gaps = np.flatnonzero(first < 0)
    host, slowed, idle = _gaps(edges[gaps], edges[gaps + 1], begins, ready, window.following_ready)
    ns[NUMBER[TimeClass.HOST_BOUND]] = host
    ns[NUMBER[TimeClass.SLOWED]] = slowed
    ns[NUMBER[TimeClass.IDLE]] = idle
    computing = covered[: len(COMPUTING)].any(axis=0)
    communicating = covered[_COMMUNICATION]
    return StepBreakdown(
        ns=tuple(ns.tolist()),
        hidden_ns=int(lengths[computing & communicating].sum()),
        communication_ns=int(lengths[communicating].sum()),
    )


def _coverage(layer: Integers, begin_at: Indices, end_at: Indices, width: int) -> Booleans:
    """For every layer and interval between edges: whether something of the layer runs then."""
    changes = np.bincount(layer * width + begin_at, minlength=_LAYERS * width).astype(np.int64)
    changes -= np.bincount(layer * width + end_at, minlength=_LAYERS * width)
    running: Booleans = np.cumsum(changes.reshape(_LAYERS, width), axis=1)[:, :-1] > 0
    return running


def _gaps(
    starts: Integers, stops: Integers, begins: Integers, ready: Integers, following_ready: int
) -> tuple[int, int, int]:
    """Split the gaps, in which nothing runs, into host-bound, slowed by communication, and idle at the end.

    A gap ends when the next kernel begins. Until the launch of that kernel reached the device, the host is the reason.
    After that, the only reason in the model is the time that overlapping communication costs the kernel's stream.
    """
    if not len(starts):
        return 0, 0, 0
    order = np.lexsort((ready, begins))
    at = np.searchsorted(begins[order], stops)
    followed = at < len(order)
    known = np.full(len(starts), following_ready, dtype=np.int64)
    known[followed] = ready[order[at[followed]]]
    lengths = stops - starts
    by_host = np.clip(known - starts, 0, lengths)
    rest = lengths - by_host
    return int(by_host.sum()), int(rest[followed].sum()), int(rest[~followed].sum())
