"""The entry point for kernel durations: estimate how long kernels take on one device.

In: a device, and `Kernel`s of any class. Out: an `Estimate` for each. Kernels are grouped into batches of columns, and
the model of each class evaluates a batch at a time; estimates are cached. `ESTIMATORS` maps each kernel class to its
model: a function from (device, packs, batch) to times.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, BatchTimes, batches
from maya.estimators.kernel import Estimate, Kernel, KernelClass, Origin
from maya.estimators.models import attention, convolution, gemm, library_calls, memory_bound, roofline
from maya.estimators.pack import Packs, key_of
from maya.estimators.pack_check import checked_pack

Evaluate = Callable[[Device, Packs, Batch], BatchTimes]

ESTIMATORS: dict[KernelClass, Evaluate] = {
    KernelClass.GEMM: gemm.evaluate,
    KernelClass.ATTENTION: attention.evaluate,
    KernelClass.CONVOLUTION: convolution.evaluate,
    KernelClass.TRANSFER: memory_bound.evaluate_transfer,
    KernelClass.RNN: library_calls.evaluate_rnn,
    KernelClass.FFT: library_calls.evaluate_fft,
    KernelClass.LINEAR_ALGEBRA: library_calls.evaluate_linear_algebra,
    **dict.fromkeys(memory_bound.CLASSES, memory_bound.evaluate),
}

_SPREAD_OF_MEASURING = 0.03  # between two runs on the same device

_Key = tuple[object, ...]


class Estimator:
    """Estimates for one device. `packs`: the user's own files, which take precedence over those that come with Maya."""

    def __init__(self, device: Device, packs: Sequence[Path] = ()) -> None:
        self.device = device
        self.packs = Packs(device, list(map(checked_pack, packs)))
        self._known: dict[_Key, int] = {}  # kernel -> index into _estimates
        self._estimates: list[Estimate] = []

    def estimate(self, kernels: Sequence[Kernel]) -> list[Estimate]:
        """One estimate per kernel, in the same order."""
        with _nothing_collected():
            known = self._known
            # Hashing keys takes most of the time, so each key is looked up and stored in one step.
            places = [known.setdefault(_key(kernel), len(known)) for kernel in kernels]
            if len(known) > len(self._estimates):
                try:
                    self._learn(kernels, places)
                except BaseException:
                    while len(known) > len(self._estimates):
                        known.popitem()  # forget the newest keys, which have no estimate
                    raise
        return list(map(self._estimates.__getitem__, places))

    def _learn(self, kernels: Sequence[Kernel], places: list[int]) -> None:
        """Compute and cache the estimates of kernels with new places, which follow the existing ones."""
        before = len(self._estimates)
        new = list({place: kernel for place, kernel in zip(places, kernels, strict=True) if place >= before}.values())
        found: list[Estimate | None] = [None] * len(new)
        for positions, batch in batches(new):
            for position, estimate in zip(positions.tolist(), _estimates(self.times(batch)), strict=True):
                found[position] = estimate
        if self.packs.measured:
            for position, kernel in enumerate(new):
                nanoseconds = self.packs.measured.get(key_of(kernel))
                if nanoseconds is not None:
                    found[position] = Estimate(max(1, round(nanoseconds)), Origin.MEASURED, _SPREAD_OF_MEASURING)
        self._estimates.extend(estimate for estimate in found if estimate is not None)

    def times(self, batch: Batch) -> BatchTimes:
        """Times of kernels that are already columns; nothing is cached."""
        return ESTIMATORS.get(batch.kernel_class, roofline.evaluate)(self.device, self.packs, batch)


def _estimates(times: BatchTimes) -> Iterator[Estimate]:
    """One estimate per time, made from tuples without a Python call for each."""
    nanoseconds = np.maximum(np.rint(times.seconds * 1e9), 1.0).astype(np.int64).tolist()
    spreads = np.broadcast_to(np.minimum(times.spread, 1.0), len(nanoseconds)).tolist()
    columns = zip(nanoseconds, repeat(times.origin), spreads, repeat(times.note), strict=False)
    return map(partial(tuple.__new__, Estimate), columns)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Pause garbage collection, which would take a third of the time and find no garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _key(kernel: Kernel) -> _Key:
    shape = kernel.shape
    sizes = (kernel.flops, kernel.bytes_read, kernel.bytes_written)
    return (kernel.kernel_class, kernel.dtype, kernel.variant, *sizes, *shape, *shape.values())
