"""Memory traffic and waits of kernels with one block per row: norms and softmax.

In: a device and a batch. Out: the bytes that would take as long at full bandwidth (`traffic`), and the seconds that
blocks wait one after the other, whatever the bandwidth (`chain`). Rows that a block reads more than once come from
memory again when the rows in flight on all SMs do not fit into the L2 cache. All other kernels move their bytes once.
"""

from __future__ import annotations

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, Floats
from maya.estimators.kernel import KernelClass

HAS_MEAN = "has_mean"  # in a norm's shape: 1 for layer norm, 0 for RMS norm
IN_PASSES = "_in_passes"  # suffix of the variant of a softmax that reads its rows again for each pass

# A norm assigns a row to a block of 128 threads, which read four elements each per stride. The block waits for memory
# after each stride, and for its threads at the end. Both waits are fitted to all measured norms, on six GPUs from V100
# to GB200: where rows are few or memory is fast, these waits decide the time, whatever the bandwidth.
_NORM_THREADS = 128.0
_THREAD_ELEMENTS = 4.0
_BLOCK_SECONDS = 0.45e-6
_STRIDE_SECONDS = 0.9e-6
# A layer norm, unlike an RMS norm, also computes a mean, with a division per element. This is the time of a stride on
# an SM full of blocks, from LLMCompass's A100, Liger's B200 and a profile of H100, which agree.
_MEAN_SECONDS = 2.1e-6

# A stride of the gradient's kernel, which reads two tensors and computes two sums: on an SM full of blocks, and the
# minimum. From H200 and GB200, where an SM takes nearly the same time for rows in bf16 at 4.8 and at 7.9 TB/s.
_GRADIENT_SECONDS = 2.0e-6
_FAR_GRADIENT_SECONDS = 2.7e-6  # where the rows in flight on an SM do not fit into its cache
_NEAR = 1.2
_SHORTEST_GRADIENT_SECONDS = 1.2e-6

# During the last rows, SMs have too few blocks to keep memory busy: half a turn of all SMs is lost. This is fitted with
# the waits above, as are the share of repeated reads that come from memory, and the size at which they start.
_TAIL_TURNS = 0.5
_NORM_AGAIN = 0.9
_NORM_LOST = 1.3
_NORM_SLOPE = 0.4

# The gradients of a norm's scale: a block has 32 columns, reads all rows, 256 at a time, and waits for memory each
# time. From rows of 128 columns on H200 and GB200, where there are four such blocks.
_PARAMETER_COLUMNS = 32.0
_PARAMETER_ROWS = 256.0
_PARAMETER_SECONDS = 0.65e-6
_PARAMETER_BLOCKS_PER_SM = 2.0
_L2_SAVES = 0.25  # share of time saved for bytes in the L2 cache

# Softmax: threads of a block with a long row, and the limit below which a row stays in shared memory.
_SOFTMAX_THREADS = 1024.0
_SHARED_BYTES = 47.0 * 1024
_SOFTMAX_READS = 3.0  # for the maximum, for the sum, for the result
# On A100, the rows in flight are 0.7 times as large as the cache for rows of 64 KiB, and nothing is read from memory
# again; 1.4 times for rows of 128 KiB, and everything is.
_SOFTMAX_LOST = 1.0


def traffic(device: Device, batch: Batch) -> Floats:
    """The bytes that would take as long at full bandwidth as the kernel's accesses."""
    if batch.kernel_class is KernelClass.SOFTMAX and batch.variant.endswith(IN_PASSES):
        return batch.bytes_moved + _softmax_again(device, batch)
    if batch.variant == "layer_norm_forward":
        return _norm_traffic(device, batch)
    if batch.variant == "layer_norm_backward_parameters":
        # The preceding kernel has read the same two tensors.
        still_there = np.clip((1.0 - np.log2(np.maximum(batch.bytes_read, 1.0) / device.l2_bytes)) / 3.0, 0.0, 1.0)
        return batch.bytes_moved - _L2_SAVES * still_there * batch.bytes_read
    return batch.bytes_moved


def chain(device: Device, batch: Batch) -> Floats:
    """The seconds that blocks wait one after the other, however fast the memory is."""
    if batch.variant == "layer_norm_forward":
        turns = batch.column("rows", 0.0) / (norm_places(device, batch) * device.sm_count)
        strides = _strides(batch)
        waiting = np.maximum(turns, 1.0) * (_BLOCK_SECONDS + strides * _STRIDE_SECONDS)
        return np.maximum(waiting, turns * strides * _MEAN_SECONDS * batch.column(HAS_MEAN, 0.0))
    if batch.variant == "layer_norm_backward":
        turns = batch.column("rows", 0.0) / (norm_places(device, batch) * device.sm_count)
        # Threads without an element do not wait for one.
        strides = np.minimum(_strides(batch), batch.column("columns", 1.0) / (_THREAD_ELEMENTS * _NORM_THREADS))
        near = residence(device, batch) < _NEAR
        stride = np.where(near, _GRADIENT_SECONDS, _FAR_GRADIENT_SECONDS)
        return strides * np.maximum(turns * stride, _SHORTEST_GRADIENT_SECONDS)
    if batch.variant == "layer_norm_backward_parameters":
        blocks = np.ceil(batch.column("columns", 1.0) / _PARAMETER_COLUMNS)
        turns = np.maximum(blocks / (_PARAMETER_BLOCKS_PER_SM * device.sm_count), 1.0)
        return np.ceil(batch.column("rows", 0.0) / _PARAMETER_ROWS) * turns * _PARAMETER_SECONDS
    return np.zeros(len(batch))


def norm_places(device: Device, batch: Batch) -> Floats:
    """Blocks of a norm that are resident on an SM."""
    return _places(device, np.maximum(batch.column("threads", _NORM_THREADS), 32.0))


def residence(device: Device, batch: Batch) -> Floats:
    """The bytes of the rows in flight on an SM, relative to its shared memory."""
    in_a_row = batch.bytes_read / np.maximum(batch.column("rows", 1.0), 1.0)
    filled: Floats = in_a_row * norm_places(device, batch) / device.shared_per_sm_bytes
    return filled


def _places(device: Device, threads: Floats) -> Floats:
    return np.clip(device.max_threads_per_sm // threads, 1, device.max_blocks_per_sm)


def _strides(batch: Batch) -> Floats:
    threads = np.maximum(batch.column("threads", _NORM_THREADS), 32.0)
    strides: Floats = np.ceil(batch.column("columns", 1.0) / (_THREAD_ELEMENTS * threads))
    return strides


def _norm_traffic(device: Device, batch: Batch) -> Floats:
    """The traffic of a norm, which reads its row twice, in whole strides, and has too few blocks at the end."""
    rows, columns = np.maximum(batch.column("rows", 1.0), 1.0), np.maximum(batch.column("columns", 1.0), 1.0)
    places = norm_places(device, batch) * device.sm_count
    turns = np.maximum(rows / places, 1.0)
    threads = np.maximum(batch.column("threads", _NORM_THREADS), 32.0)
    # Threads without any element cause no wait.
    in_strides = np.where(_strides(batch) > 1, _strides(batch) * _THREAD_ELEMENTS * threads / columns, 1.0)
    again = _NORM_AGAIN * batch.bytes_read * _lost(device, batch, places, _NORM_LOST, _NORM_SLOPE)
    # Half of a partial stride costs no time, because other blocks use the memory then.
    return (batch.bytes_moved * (1.0 + in_strides) / 2.0 + again) * (turns + _TAIL_TURNS) / turns


def softmax_variant(name: str, row_bytes: float) -> str:
    """The variant of a softmax: torch keeps rows of this many bytes in shared memory, or reads them for each pass."""
    return name if row_bytes < _SHARED_BYTES else f"{name}{IN_PASSES}"


def _softmax_again(device: Device, batch: Batch) -> Floats:
    """The bytes that softmax reads again because a row does not stay in the cache."""
    threads = np.maximum(batch.column("threads", _SOFTMAX_THREADS), 32.0)
    # Forward reads its row three times; backward reads its gradients, which are half of what it reads, twice.
    backward = batch.variant.endswith(f"backward{IN_PASSES}")
    once_more = batch.bytes_read * (0.5 if backward else _SOFTMAX_READS - 1.0)
    return once_more * _lost(device, batch, _places(device, threads) * device.sm_count, _SOFTMAX_LOST, 1.0)


def _lost(device: Device, batch: Batch, places: Floats, half: float, slope: float) -> Floats:
    """The share of the rows in flight, read and written, that has left the L2 cache before it is needed again.

    It is one half when they are `half` times as large as the cache, and `slope` more for every doubling.
    """
    rows = np.maximum(batch.column("rows", 1.0), 1.0)
    in_flight = np.minimum(places, rows) * batch.bytes_moved / rows
    lost: Floats = np.clip(slope * np.log2(np.maximum(in_flight, 1.0) / (half * device.l2_bytes)) + 0.5, 0.0, 1.0)
    return lost
