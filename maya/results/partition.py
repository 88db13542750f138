"""One rank's time in one step, divided into classes.

In: when everything ran that overlaps with the step, relative to the step's beginning. Out: nanoseconds of each class,
which add up to the step's length exactly, and of the communication that computing hid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.results.classes import CLASSES, COMPUTING, NUMBER, TimeClass

Times = npt.NDArray[np.int64]

_COMMUNICATION = NUMBER[TimeClass.COMMUNICATION]
_RUNNING = NUMBER[TimeClass.COPY] + 1  # classes of work; two kinds of waiting follow
_LAYERS = _RUNNING + 2


@dataclass(frozen=True)
class Window:
    """What a rank did during a step, one entry for each record. Nothing begins before 0 or ends after `length`."""

    length: int
    number: npt.NDArray[np.int8]  # of the class
    message: npt.NDArray[np.bool_]
    arrival: Times  # of a collective or message: when the rank came to it; of others its start
    start: Times
    end: Times
    ready: Times  # when the device knew of it
    following_ready: int  # when it knew of the first work after the step; `length`: not before its end, or never


@dataclass(frozen=True)
class Partition:
    """A step of a rank."""

    ns: tuple[int, ...]  # of each of CLASSES
    hidden_ns: int  # communication beside computing
    communication_ns: int  # all of it, exposed or hidden


def divide(window: Window) -> Partition:
    """Divide the time of a step."""
    runs = window.end > window.start
    waits = window.start > window.arrival
    layer = np.concatenate(
        (
            window.number[runs].astype(np.int64),
            np.where(window.message[waits], NUMBER[TimeClass.BUBBLE], NUMBER[TimeClass.WAITING]),
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
    return Partition(
        ns=tuple(ns.tolist()),
        hidden_ns=int(lengths[computing & communicating].sum()),
        communication_ns=int(lengths[communicating].sum()),
    )


def _coverage(
    layer: Times, begin_at: npt.NDArray[np.intp], end_at: npt.NDArray[np.intp], width: int
) -> npt.NDArray[np.bool_]:
    """For every layer and piece of time between edges: whether something of the layer runs then."""
    changes = np.bincount(layer * width + begin_at, minlength=_LAYERS * width).astype(np.int64)
    changes -= np.bincount(layer * width + end_at, minlength=_LAYERS * width)
    running: npt.NDArray[np.bool_] = np.cumsum(changes.reshape(_LAYERS, width), axis=1)[:, :-1] > 0
    return running


def _gaps(starts: Times, stops: Times, begins: Times, ready: Times, following_ready: int) -> tuple[int, int, int]:
    """Of the pieces in which nothing runs: the host's share, what was only slowed down, and what nothing follows.

    A piece ends when the next work begins. Until the device knew of that work, the host is the reason. After that
    nothing is left in the model that could hold it up but the time that overlapped communication cost its stream.
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
