"""How kernels that give each row a block go through memory: what crosses the memory bus, and what blocks wait for.

In: a device and a batch of norms or softmaxes. Out: bytes, as many as would take as long at full bandwidth (`traffic`),
and seconds that blocks wait in turn whatever the bandwidth (`chain`). Rows that a block goes through more than once are
read from memory again when the rows in work, of all SMs together, do not fit into the L2 cache. All other kernels move
their bytes once, and wait for nothing but those.
"""

from __future__ import annotations

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, Floats
from maya.estimators.kernel import KernelClass

HAS_MEAN = "has_mean"  # of a norm's shape: 1 for a layer norm, 0 for one by the root of the mean square
IN_PASSES = "_in_passes"  # ends the variant of a softmax whose rows are read again for each pass

# A norm gives a row to a block of 128 threads, which take four elements each at a time. The block waits for memory each
# time, and for its threads at the end. Both waits are fitted to all norms that were measured, on six GPUs from V100 to
# GB200: where rows are few or memory is fast, norms take what these chains of waits take, whatever the bandwidth.
_NORM_THREADS = 128.0
_THREAD_ELEMENTS = 4.0
_BLOCK_SECONDS = 0.45e-6
_STRIDE_SECONDS = 0.9e-6
# A layer norm, unlike one by the root of the mean square, takes a mean, too, with a division for each element: on an SM
# full of blocks a stride takes this: from LLMCompass's A100, Liger's B200 and a profile of H100, which agree.
_MEAN_SECONDS = 2.1e-6

# A stride of the gradient's kernel, which reads two tensors and adds up two sums: on an SM full of blocks, and at
# least. From H200 and GB200, where an SM takes nearly the same for rows in bf16 at 4.8 and at 7.9 TB/s.
_GRADIENT_SECONDS = 2.0e-6
_FAR_GRADIENT_SECONDS = 2.7e-6  # where the rows that an SM has in work do not fit into its own cache
_NEAR = 1.2
_SHORTEST_GRADIENT_SECONDS = 1.2e-6

# When the last rows are in work, SMs have fewer blocks than they need to keep memory busy: half a turn of all SMs is
# lost. Fitted with the waits above, as is how much of what is read again comes from memory, and from which size on.
_TAIL_TURNS = 0.5
_NORM_AGAIN = 0.9
_NORM_LOST = 1.3
_NORM_SLOPE = 0.4

# The gradients of a norm's scale: blocks of 32 columns, each of which goes through all rows, 256 at a time, and waits
# for memory each time. From rows of 128 columns on H200 and GB200, where there are four such blocks.
_PARAMETER_COLUMNS = 32.0
_PARAMETER_ROWS = 256.0
_PARAMETER_SECONDS = 0.65e-6
_PARAMETER_BLOCKS_PER_SM = 2.0
_L2_SAVES = 0.25  # of the time that bytes take which are in the L2 cache

# Softmax: threads of a block that has a long row, and what a row must be shorter than to be kept in shared memory.
_SOFTMAX_THREADS = 1024.0
_SHARED_BYTES = 47.0 * 1024
_SOFTMAX_READS = 3.0  # for the largest, for the sum, for the result
# On A100, what is in work is 0.7 times as large as the cache where a row has 64 KiB, and nothing is read from memory
# again; 1.4 times where it has 128 KiB, and everything is.
_SOFTMAX_LOST = 1.0


def traffic(device: Device, batch: Batch) -> Floats:
    """Bytes that take as long at full bandwidth as what a kernel moves."""
    if batch.kind is KernelClass.SOFTMAX and batch.variant.endswith(IN_PASSES):
        return batch.bytes_moved + _softmax_again(device, batch)
    if batch.variant == "layer_norm_forward":
        return _norm_traffic(device, batch)
    if batch.variant == "layer_norm_backward_parameters":
        # The kernel before it has read the same two tensors.
        still_there = np.clip((1.0 - np.log2(np.maximum(batch.bytes_read, 1.0) / device.l2_bytes)) / 3.0, 0.0, 1.0)
        return batch.bytes_moved - _L2_SAVES * still_there * batch.bytes_read
    return batch.bytes_moved


def chain(device: Device, batch: Batch) -> Floats:
    """Seconds that blocks wait in turn, however fast the memory is."""
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
    """Blocks of a norm that an SM has at a time."""
    return _places(device, np.maximum(batch.column("threads", _NORM_THREADS), 32.0))


def residence(device: Device, batch: Batch) -> Floats:
    """How often the rows that an SM has in work fill its own memory."""
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
    """A norm goes through its row twice, in whole strides, and in the end with too few blocks."""
    rows, columns = np.maximum(batch.column("rows", 1.0), 1.0), np.maximum(batch.column("columns", 1.0), 1.0)
    places = norm_places(device, batch) * device.sm_count
    turns = np.maximum(rows / places, 1.0)
    threads = np.maximum(batch.column("threads", _NORM_THREADS), 32.0)
    # Threads for which there is no element at all are not waited for.
    in_strides = np.where(_strides(batch) > 1, _strides(batch) * _THREAD_ELEMENTS * threads / columns, 1.0)
    again = _NORM_AGAIN * batch.bytes_read * _lost(device, batch, places, _NORM_LOST, _NORM_SLOPE)
    # Half of a stride that is not full is not waited for: other blocks have the memory then.
    return (batch.bytes_moved * (1.0 + in_strides) / 2.0 + again) * (turns + _TAIL_TURNS) / turns


def softmax_variant(name: str, row_bytes: float) -> str:
    """The variant of a softmax by how torch does rows of this many bytes: kept near, or read for each pass."""
    return name if row_bytes < _SHARED_BYTES else f"{name}{IN_PASSES}"


def _softmax_again(device: Device, batch: Batch) -> Floats:
    """What softmax reads once more because a row does not stay near."""
    threads = np.maximum(batch.column("threads", _SOFTMAX_THREADS), 32.0)
    # Forward reads its row three times; backward reads its gradients, which are half of what it reads, twice.
    backward = batch.variant.endswith(f"backward{IN_PASSES}")
    once_more = batch.bytes_read * (0.5 if backward else _SOFTMAX_READS - 1.0)
    return once_more * _lost(device, batch, _places(device, threads) * device.sm_count, _SOFTMAX_LOST, 1.0)


def _lost(device: Device, batch: Batch, places: Floats, half: float, slope: float) -> Floats:
    """The share of rows in work, read and written, that is no longer in the L2 cache when it is needed again.

    Half of them when they are `half` times as large as the cache, and `slope` more when they are twice as large.
    """
    rows = np.maximum(batch.column("rows", 1.0), 1.0)
    in_work = np.minimum(places, rows) * batch.bytes_moved / rows
    lost: Floats = np.clip(slope * np.log2(np.maximum(in_work, 1.0) / (half * device.l2_bytes)) + 0.5, 0.0, 1.0)
    return lost
