"""Kernels over lists of tensors: foreach ops and fused optimizers.

In: a `KernelLaunch` of multi_tensor_apply_kernel. Out: a `Kernel` with the bytes of this launch alone. torch cuts the
tensors of a list into chunks of 65536 elements, in order, one block per chunk; a launch takes as many chunks as fit its
parameters. So the numbers of blocks of the earlier launches and of this one determine exactly its elements.
"""

from __future__ import annotations

from maya.estimators.features.kernel_names import list_depth, list_reads
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.parts import list_part
from maya.estimators.features.tensors import Tensor, tensors_in
from maya.estimators.kernel import Kernel, KernelClass

_CHUNK = 65536


def over_lists(launch: KernelLaunch) -> Kernel | None:
    lists = [[item for item in value if isinstance(item, Tensor)] for value in launch.inputs if isinstance(value, list)]
    lists = [tensors for tensors in lists if tensors]
    if not lists:
        return None
    depth = list_depth(launch.name) or len(lists)
    # Only lists as long as the first: later ones (steps, scalars) are not accessed element by element.
    through = [tensors for tensors in lists if _elements(tensors) == _elements(lists[0])][:depth]
    share = _share(launch, lists[0])
    elements = _elements(lists[0]) * share
    read, written = _traffic(launch, through, depth, elements, share)
    name = launch.op_name.strip("_")
    flops = elements * (20.0 if name.startswith("fused") else 2.0)
    shape = {"elements": elements, "tensors": float(len(lists[0])), "lists": float(depth)}
    return Kernel(KernelClass.OPTIMIZER, lists[0][0].dtype, flops, read, written, shape, name)


def _traffic(
    launch: KernelLaunch, through: list[list[Tensor]], depth: int, elements: float, share: float
) -> tuple[float, float]:
    sizes = [sum(tensor.elements * tensor.itemsize for tensor in tensors) * share for tensors in through]
    first = sizes[0]
    sizes += [first] * (depth - len(sizes))
    if "fused" in launch.op or "FusedOptimizer" in launch.name:
        # Parameters and states are read and written, gradients only read: (parameters, gradients, states ...).
        return float(sum(sizes)), float(sum(sizes) - (sizes[1] if len(sizes) > 1 else 0.0))
    reads = list_reads(launch.name)
    if "LpNorm" in launch.name or "lpnorm" in launch.name or "LpMax" in launch.name:
        return float(sum(sizes)), 4.0 * launch.blocks
    if reads is None:
        reads = max(depth - (0 if launch.op_name.endswith("_") else 1), 1)
    return float(sum(sizes[:reads])), float(first)


def clean_up(launch: KernelLaunch) -> Kernel:
    """The second kernel of _foreach_norm: one block per tensor adds up the partial sums of its chunks."""
    tensors = list(tensors_in(launch.inputs))
    partial = 4.0 * sum(-(-tensor.elements // _CHUNK) for tensor in tensors)
    shape = {"elements": partial / 4.0, "tensors": float(len(tensors)), "lists": 1.0}
    return Kernel(KernelClass.OPTIMIZER, "fp32", partial, partial, 4.0 * len(tensors), shape, "foreach_norm_cleanup")


def _elements(tensors: list[Tensor]) -> int:
    return sum(tensor.elements for tensor in tensors)


def _share(launch: KernelLaunch, tensors: list[Tensor]) -> float:
    """The share of all elements that this launch covers."""
    chunks: list[int] = []
    for tensor in tensors:
        whole, rest = divmod(tensor.elements, _CHUNK)
        chunks += [_CHUNK] * whole + ([rest] if rest else [])
    return list_part(chunks, launch.before, launch.blocks)
