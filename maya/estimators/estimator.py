"""How long works take on one device: the entry to all estimators.

In: a device, and `Work`s of any kinds. Out: an `Estimate` for each. Works are grouped into batches of columns, each
kind's estimator takes a batch at a time, and what was asked once is remembered. `ESTIMATORS` says who answers for which
kind: a function from (device, packs, batch) to times.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from maya.devices import Device
from maya.estimators import attention, convolution, gemm, libraries, memory_bound, roofline
from maya.estimators.batch import Batch, Times, batches
from maya.estimators.pack import Packs, key_of
from maya.estimators.work import Estimate, Kind, Origin, Work

Evaluate = Callable[[Device, Packs, Batch], Times]

ESTIMATORS: dict[Kind, Evaluate] = {
    Kind.GEMM: gemm.evaluate,
    Kind.ATTENTION: attention.evaluate,
    Kind.CONVOLUTION: convolution.evaluate,
    Kind.TRANSFER: memory_bound.evaluate_transfer,
    Kind.RNN: libraries.evaluate_rnn,
    Kind.FFT: libraries.evaluate_fft,
    Kind.LINEAR_ALGEBRA: libraries.evaluate_linear_algebra,
    **dict.fromkeys(memory_bound.KINDS, memory_bound.evaluate),
}

_SPREAD_OF_MEASURING = 0.03  # between two runs on the same device

_Key = tuple[object, ...]


class Estimator:
    """Estimates for one device. `packs` are files of the user's own, before those that come with Maya."""

    def __init__(self, device: Device, packs: Sequence[Path] = ()) -> None:
        self.device = device
        self.packs = Packs(device, packs)
        self._known: dict[_Key, Estimate] = {}

    def estimate(self, works: Sequence[Work]) -> list[Estimate]:
        """One estimate for each work, in their order."""
        with _nothing_collected():
            keys = [_key(work) for work in works]
            self._learn({key: work for key, work in zip(keys, works, strict=True) if key not in self._known})
        return [self._known[key] for key in keys]

    def _learn(self, new: dict[_Key, Work]) -> None:
        """Remember the estimates of works."""
        if new:
            new_keys, new_works = list(new), list(new.values())
            for positions, batch in batches(new_works):
                times = self.times(batch)
                nanoseconds = np.maximum(np.rint(times.seconds * 1e9), 1.0).astype(np.int64).tolist()
                spreads = np.broadcast_to(np.minimum(times.spread, 1.0), len(batch)).tolist()
                for position, ns, spread in zip(positions.tolist(), nanoseconds, spreads, strict=True):
                    self._known[new_keys[position]] = Estimate(ns, times.origin, spread, times.note)
            if self.packs.measured:
                for key, work in new.items():
                    nanoseconds_measured = self.packs.measured.get(key_of(work))
                    if nanoseconds_measured is not None:
                        ns = max(1, round(nanoseconds_measured))
                        self._known[key] = Estimate(ns, Origin.MEASURED, _SPREAD_OF_MEASURING)

    def times(self, batch: Batch) -> Times:
        """Times of works that are columns already; nothing is remembered."""
        return ESTIMATORS.get(batch.kind, roofline.evaluate)(self.device, self.packs, batch)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Python's collector goes through what is new again and again: a third of the time, and none of it is garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _key(work: Work) -> _Key:
    shape = work.shape
    sizes = (work.flops, work.bytes_read, work.bytes_written)
    return (work.kind, work.dtype, work.variant, *sizes, *shape, *shape.values())
