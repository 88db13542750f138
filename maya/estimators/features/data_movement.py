"""Kernels that move elements to other places: cat, gather, scatter, index, embedding, sort, scan, pooling.

In: a `KernelLaunch`. Out: a `Kernel` that reads the elements (and the indices) and writes the elements. Sorting is
several kernels; each of them accesses all keys.
"""

from __future__ import annotations

import math

from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.parts import itemsizes, list_part, share
from maya.estimators.features.tensors import Tensor, broadcast, tensors_in
from maya.estimators.kernel import Kernel, KernelClass

_MOST_PER_THREAD = 32  # keys or values that a thread of CUB's kernels takes


def concatenation(launch: KernelLaunch) -> Kernel | None:
    """cat and stack: reads every tensor, writes all of them."""
    lists = [value for value in launch.inputs if isinstance(value, list)]
    tensors = list(tensors_in(lists[0] if lists else launch.inputs))
    sizes = [tensor.elements * tensor.itemsize for tensor in tensors]
    if not sum(sizes):
        return None
    # A launch takes a limited number of tensors: the second dimension of its grid.
    in_batches = launch.function.startswith("CatArray")
    count = launch.grid[1] if in_batches else len(tensors)
    moved = sum(sizes) * (list_part(sizes, launch.before, count) if in_batches else 1.0)
    in_vectors = "aligned" in launch.function or "vectorized" in launch.function
    variant = "vectorized" if in_vectors else "strided"
    shape = {"elements": moved / tensors[0].itemsize, "operands": float(count + 1)}
    return Kernel(KernelClass.COPY, tensors[0].dtype, 0.0, moved, moved, shape, variant)


def splitting(launch: KernelLaunch) -> Kernel | None:
    """split_with_sizes_copy: reads one tensor, writes its parts."""
    if not launch.tensors:
        return None
    source = launch.tensors[0]
    moved = float(source.elements * source.itemsize)
    shape = {"elements": float(source.elements), "operands": 2.0}
    return Kernel(KernelClass.COPY, source.dtype, 0.0, moved, moved, shape, "vectorized")


def in_place(launch: KernelLaunch) -> Kernel | None:
    """Rotary embeddings and cache writes: every tensor that is not a cache or a table is read and written once."""
    tensors = launch.tensors
    if not tensors:
        return None
    rows = max(tensor.shape[0] for tensor in tensors[:1])
    mine = [tensor for tensor in tensors if tensor.shape[:1] == (rows,)] or list(tensors[:1])
    moved = float(sum(tensor.elements * tensor.itemsize for tensor in mine))
    elements = float(sum(tensor.elements for tensor in mine))
    return Kernel(
        KernelClass.ELEMENTWISE, mine[-1].dtype, elements * 4, moved, moved, {"elements": elements}, "strided"
    )


def gather_rows(launch: KernelLaunch) -> Kernel | None:
    """Embedding forward and index_select: whole rows of a table, one for each index."""
    table = launch.tensor(0) or (launch.tensors[0] if launch.tensors else None)
    index = next((tensor for tensor in launch.tensors if tensor.dtype in ("int64", "int32")), None)
    if table is None or index is None or len(table.shape) < 2:
        return None
    columns = math.prod(table.shape[1:])
    # An index expanded over the rows already includes their length.
    expanded = len(index.shape) == len(table.shape) and 0 in index.strides
    count = index.elements / columns if expanded else index.elements
    moved = float(count * columns * table.itemsize)
    shape = {"rows": float(count), "columns": float(columns)}
    return Kernel(KernelClass.EMBEDDING, table.dtype, 0.0, moved + 8.0 * count, moved, shape, "forward")


def embedding_backward(launch: KernelLaunch) -> Kernel | None:
    """Kernels of embedding_dense_backward. The sums read all gradients; the other kernels read only indices."""
    gradient = launch.tensors[0] if launch.tensors else None
    if gradient is None or not gradient.shape:
        return None
    columns = gradient.shape[-1]
    rows = gradient.elements / columns
    moved = float(gradient.elements * gradient.itemsize)
    shape = {"rows": float(rows), "columns": float(columns)}
    name = launch.function
    if name in ("embedding_backward_feature_kernel", "embedding_backward_kernel"):
        return Kernel(
            KernelClass.EMBEDDING, gradient.dtype, float(gradient.elements), 2 * moved, moved, shape, "backward"
        )
    if name in ("compute_grad_weight", "compute_grad_weight_bags"):  # partial sums in fp32
        wide = float(gradient.elements * 4)
        return Kernel(KernelClass.EMBEDDING, gradient.dtype, float(gradient.elements), moved, wide, shape, "backward")
    if name == "sum_and_scatter":
        wide = float(gradient.elements * 4)
        return Kernel(KernelClass.EMBEDDING, gradient.dtype, float(gradient.elements), wide, moved, shape, "backward")
    return Kernel(
        KernelClass.EMBEDDING, "int64", rows, 8.0 * rows, 8.0 * rows, {"rows": rows, "columns": 1.0}, "indices"
    )


def indexing(launch: KernelLaunch) -> Kernel | None:
    """index, index_put, gather, scatter, take, masked ops: one element or row for each index."""
    tensors = launch.tensors
    if not tensors:
        return None
    indices = [tensor for tensor in tensors if tensor.dtype in ("int64", "int32", "bool", "uint8")]
    values = [tensor for tensor in tensors if tensor not in indices] or list(tensors)
    name = launch.op_name
    if name.startswith(
        ("index_put", "_index_put", "scatter", "index_add", "index_copy", "masked_scatter", "index_fill")
    ):
        moved_tensor = min(values[1:] or values, key=lambda tensor: tensor.elements)
        elements = float(max(moved_tensor.elements, max((t.elements for t in indices), default=1)))
        if len(values) > 1:
            elements = float(max(values[-1].elements, 1))
    else:
        elements = float(_indexed(values[0], indices, name))
    size = values[0].itemsize
    part = share(launch, elements, itemsizes(tensors, elements))
    index_bytes = sum(tensor.bytes for tensor in indices) * min(part, 1.0)
    elements *= part
    accumulates = "add" in name or "reduce" in name or True in launch.inputs[3:4]
    read = elements * size * (2.0 if accumulates else 1.0) + index_bytes
    shape = {"elements": elements, "operands": 3.0}
    return Kernel(KernelClass.INDEX, values[0].dtype, 0.0, read, elements * size, shape, _contiguity(values))


def _indexed(source: Tensor, indices: list[Tensor], name: str) -> int:
    """Elements of the result of reading `source` at the indices."""
    if not indices:
        return source.elements
    places = math.prod(broadcast(indices))
    if name in ("gather", "take", "take_along_dim", "masked_select"):
        return places
    if indices[0].dtype in ("bool", "uint8"):  # the number of set elements is unknown: assume all
        return source.elements
    return places * math.prod(source.shape[len(indices) :])


def _contiguity(tensors: list[Tensor]) -> str:
    return "strided" if all(tensor.rows_are_contiguous for tensor in tensors) else "transposed"


def keys_and_values(launch: KernelLaunch) -> Kernel:
    """A kernel of a sort, a scan or a selection: reads and writes keys, and values if there are any."""
    name = launch.function
    source = launch.tensors[0] if launch.tensors else None
    columns = float(source.shape[-1]) if source is not None and source.shape else 0.0
    if "Segmented" in name and columns:  # a block for each row
        capacity = launch.blocks * columns
    else:
        capacity = float(launch.blocks * launch.threads * (1 if name.startswith("fill_reverse") else _MOST_PER_THREAD))
    elements = min(float(source.elements), capacity) if source is not None else capacity / 4
    if "embedding" in launch.op and len(launch.tensors) > 1:
        elements = min(float(launch.tensors[1].elements), capacity)
    if launch.elements:
        elements = float(launch.elements)
    size = 8.0 if source is None or "embedding" in launch.op else float(source.itemsize)
    pair = size + 8.0  # sorted with their positions
    if any(word in name for word in ("Histogram", "Upsweep", "PartitionKernel", "Reduce", "partial", "segment")):
        read, written = elements * size, 0.0
    elif any(word in name for word in ("Init", "ExclusiveSum", "compute_num")):
        read, written = 0.0, 32.0 * launch.blocks
        elements = float(launch.blocks * launch.threads)
    elif any(word in name for word in ("Scan", "scan", "Unique", "Select", "transform", "fill_reverse", "fill_index")):
        read, written = elements * size, elements * size
    else:
        read, written = elements * pair, elements * pair
    dtype = source.dtype if source is not None else "int64"
    shape = {"elements": elements, "columns": columns or elements}
    return Kernel(KernelClass.SORT, dtype, elements, read, written, shape, name)


_HISTOGRAM = 1024.0  # bytes: a counter for each value of a digit of eight bits


def selection(launch: KernelLaunch) -> Kernel | None:
    """Kernels of topk: some read all values, digit by digit, the others only counts of digits."""
    if not launch.tensors:
        return None
    source = launch.tensors[0]
    counts = _HISTOGRAM * launch.blocks
    everything = launch.function.startswith(("computeBlockDigitCounts", "gatherTopK", "sbtopk"))
    read = float(source.bytes) if everything else counts
    elements = float(source.elements) if everything else counts / 4
    shape = {"elements": elements, "columns": float(source.shape[-1]) if source.shape else 1.0}
    return Kernel(KernelClass.SORT, source.dtype, elements, read, counts, shape, "selection")


def pooling(launch: KernelLaunch) -> Kernel | None:
    """Pooling, interpolation and their backward: one pass over input and result."""
    tensors = launch.tensors
    if not tensors:
        return None
    read = float(sum(tensor.elements * tensor.itemsize for tensor in tensors))
    if "backward" in launch.op_name:
        written_elements = max(tensors, key=lambda tensor: tensor.elements).elements
        written = float(written_elements * tensors[0].itemsize)
        # Reads the gradient of the result and its indices; the input only provides its shape.
        read = float(sum(t.elements * t.itemsize for t in tensors if t is not tensors[1])) if len(tensors) > 1 else read
    else:
        written_elements = min(launch.blocks * launch.threads, tensors[0].elements * 64)
        written = float(written_elements * (tensors[0].itemsize + (8 if "indices" in launch.op_name else 0)))
    shape = {"elements": float(max(written_elements, tensors[0].elements)), "operands": float(len(tensors) + 1)}
    return Kernel(KernelClass.ELEMENTWISE, tensors[0].dtype, 9.0 * written_elements, read, written, shape, "strided")
