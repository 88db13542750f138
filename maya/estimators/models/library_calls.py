"""Times of library calls that are neither GEMMs nor memory-bound: FFT, linear algebra, recurrent layers.

In: batches of these classes. Out: times. There are no public measurements of FFTs and factorisations: their times are
bounds at typical efficiencies. Recurrent layers are chains of small GEMMs: each step waits for the one before, and
costs at least a fixed time; that time and the efficiency of the GEMMs are fitted to DeepBench's V100.
"""

from __future__ import annotations

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, BatchTimes, Floats
from maya.estimators.kernel import Origin
from maya.estimators.models.bounds import LAUNCH_SECONDS, compute_seconds, element_bytes, vector_flops
from maya.estimators.pack import Packs

_FFT_IN_SHARED = 4096.0  # points that one pass through memory can transform
_FFT_MEMORY_EFFICIENCY = 0.75
_FFT_ARITHMETIC_EFFICIENCY = 0.3


def evaluate_fft(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """FFTs by their passes through memory: one per dimension, more where a dimension is long."""
    points = np.maximum(batch.column("points", 2.0), 2.0)
    dimensions = np.maximum(batch.column("dimensions", 1.0), 1.0)
    each = np.ceil(np.log2(points) / dimensions / np.log2(_FFT_IN_SHARED))
    passes = np.where(points <= _FFT_IN_SHARED, 1.0, dimensions * each)
    memory = passes * batch.bytes_moved / device.memory_bandwidth / _FFT_MEMORY_EFFICIENCY
    computing = batch.flops / (vector_flops(device, batch.dtype) * _FFT_ARITHMETIC_EFFICIENCY)
    seconds = passes * LAUNCH_SECONDS + np.maximum(memory, computing)
    return BatchTimes(seconds, Origin.ROOFLINE, 0.4, "passes through memory at a typical efficiency")


_STEP_SECONDS = 8e-6  # per panel of a factorisation: two or three dependent kernels
_ALGEBRA_EFFICIENCY = 0.35
_BATCH_EFFICIENCY = 0.1
_SPARSE_EFFICIENCY = 0.5


def evaluate_linear_algebra(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """Factorisations: a chain of steps, plus their compute and memory time."""
    steps = np.maximum(batch.column("steps", 1.0), 1.0)
    count = np.maximum(batch.column("batch", 1.0), 1.0)
    if batch.variant.startswith("sparse"):
        seconds = LAUNCH_SECONDS + batch.bytes_moved / device.memory_bandwidth / _SPARSE_EFFICIENCY
        return BatchTimes(seconds, Origin.ROOFLINE, 0.5, "a row of the dense matrix is read for each nonzero")
    chain = np.where(steps > 1, steps * _STEP_SECONDS, LAUNCH_SECONDS)
    # The matrices of a batch are factorised in parallel, each by one block.
    chain = chain * np.maximum(count / (4 * device.sm_count), 1.0)
    efficiency = np.where(count > 1, _BATCH_EFFICIENCY, _ALGEBRA_EFFICIENCY)
    computing = batch.flops / (vector_flops(device, batch.dtype) * efficiency)
    memory = batch.bytes_moved / device.memory_bandwidth / 0.75
    seconds = LAUNCH_SECONDS + np.maximum(chain, np.maximum(computing, memory))
    return BatchTimes(
        seconds, Origin.ROOFLINE, 0.6, "standard operation counts and a fixed time for each dependent step"
    )


# Fitted to DeepBench's recurrent layers on V100 (scripts/train_curves prints them): minimum seconds per step, reads of
# the weights per step at full bandwidth, and multiples of the compute time at the peak.
RNN_CONSTANTS = {
    "forward": (32.6e-6, 1.10, 0.55),
    "backward_data": (38.4e-6, 0.81, 0.64),
    "backward_weights": (54.2e-6, 5.32, 0.94),
}
_RNN_SPREAD = {"forward": 0.25, "backward_data": 0.16, "backward_weights": 0.1}


def rnn_terms(device: Device, batch: Batch) -> tuple[Floats, Floats, Floats]:
    """The factors of the constants: steps, time to read the weights (or all), compute time."""
    computing = compute_seconds(device, batch.dtype, batch.flops)
    if batch.variant == "backward_weights":
        return np.ones(len(batch)), batch.bytes_moved / device.memory_bandwidth, computing
    steps, layers = batch.column("steps", 1.0), batch.column("layers", 1.0)
    recurrent = batch.column("gates", 1.0) * batch.column("hidden", 1.0) ** 2 * element_bytes(batch.dtype)
    return steps * layers, steps * layers * recurrent / device.memory_bandwidth, computing


def evaluate_rnn(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """Recurrent layers: sequential steps; the gradient of the weights is one GEMM over all steps."""
    variant = batch.variant if batch.variant in RNN_CONSTANTS else "forward"
    terms = rnn_terms(device, batch)
    seconds = sum((c * term for c, term in zip(RNN_CONSTANTS[variant], terms, strict=True)), np.zeros(len(batch)))
    bound = LAUNCH_SECONDS + np.maximum(terms[2], batch.bytes_moved / device.memory_bandwidth)
    own = device.key == "v100"
    origin = Origin.MODEL if own else Origin.ROOFLINE
    spread = _RNN_SPREAD[variant] + (0.0 if own else 0.2)
    return BatchTimes(np.maximum(seconds, bound), origin, spread, "" if own else "steps as measured on v100")
