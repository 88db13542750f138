"""Launch -> `Kernel`: choose the extractor for a kernel launch, library call or copy.

The kernel's own name decides first, because one op may launch several kernels; then the op. A launch that matches no
rule is a kernel of class UNKNOWN. Its bytes are those behind its pointers (if it was launched through the driver),
those of its op's tensors, or a guess from its grid; they are never zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

from maya.estimators.features import data_movement, elementwise, gemms, lists, rows
from maya.estimators.features.attention_kernels import attention_of_launch
from maya.estimators.features.inductor import InductorSources
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.library import library_call
from maya.estimators.features.triton import from_pointers, gathering, triton
from maya.estimators.kernel import Kernel, KernelClass

Extractor = Callable[[KernelLaunch], Kernel | None]

# The first pattern that matches the kernel's own name decides.
_KERNELS: tuple[tuple[re.Pattern[str], Extractor], ...] = tuple(
    (re.compile(pattern), extractor)
    for pattern, extractor in (
        (r"reshape_and_cache|rotary|rope_|_rope", data_movement.in_place),
        (r"flash_(fwd|bwd)|[Ff]lash_?[Aa]tt|fmha|attention_of_launch", attention_of_launch),
        (r"multi_tensor_apply_kernel|FusedOptimizer", lists.over_lists),
        (r"^lpnorm_cleanup|^lpmax_cleanup", lists.clean_up),
        (r"(?i)gemm|nvjet|cutlass|gemv|splitK|^dot_kernel|wgmma|xmma", gemms.gemm_from_launch),
        (
            r"fused_dropout|dropout_kernel|distribution_|philox|random|bernoulli|curand|generate_seed",
            elementwise.random,
        ),
        (r"layer_norm_grad_input|layer_norm_backward", rows.layer_norm_backward_input),
        (r"GammaBetaBackward|cuComputePartGradGammaBeta|cuComputeGradGammaBeta", rows.layer_norm_backward_parameters),
        (r"(?i)fused_add_(rms|layer)_?norm", rows.add_and_norm),
        (r"(?i)layer_?norm|rms_?norm", rows.layer_norm_forward),
        (r"(?i)batch_norm|group_?norm|RowwiseMoments|FusedParams|InternalGradients", rows.batch_norm),
        (r"(?i)softmax", rows.softmax),
        (r"(?i)nll_loss|cross_entropy", rows.cross_entropy),
        (r"reduce_kernel|(?i:reduce_1block)|^kernelReduce", rows.reduction),
        (r"CatArray|chunk_cat", data_movement.concatenation),
        (r"split_with_sizes_copy|split_copy", data_movement.splitting),
        (r"^elementwise_kernel_with_index", elementwise.elementwise),
        (r"vectorized_gather|indexSelect", data_movement.gather_rows),
        (
            r"embedding_|compute_grad_weight|sum_and_scatter|krn_partial|compute_num_of_partial",
            data_movement.embedding_backward,
        ),
        (r"^compute(Block|Digit)|gatherTopK|^fill$", data_movement.selection),
        (r"(?i)index|scatter|gather|masked_|take_|put_|roll_cuda|flip|tril|coalesceValues", data_movement.indexing),
        (
            r"(?i)sort|topk|kthvalue|scan|unique|select|DeviceCompact|DeviceReduce|transform_kernel|transform_vals"
            r"|convert_indices|histogram|fill_reverse",
            data_movement.keys_and_values,
        ),
        (r"(?i)pool|upsample|interpolate|im2col|col2im|grid_sampl", data_movement.pooling),
        (r"elementwise|nchwToNhwc|nhwcToNchw|copy_kernel|fill_kernel", elementwise.elementwise),
    )
)
# Rules by op, for kernels whose own name is not specific.
_OPS: tuple[tuple[re.Pattern[str], Extractor], ...] = tuple(
    (re.compile(pattern), extractor)
    for pattern, extractor in (
        (r"^aten::(mm|addmm|bmm|baddbmm|linear|matmul|_scaled_mm|_int_mm|_grouped_mm)$", gemms.gemm_from_launch),
        (r"convolution", gemms.convolution_from_launch),
        (r"attention", attention_of_launch),
    )
)
_ELEMENTS_PER_THREAD = 4.0


def kernel_of(launch: KernelLaunch, sources: InductorSources | None = None) -> Kernel:
    """The `Kernel` of a launch."""
    found: Kernel | None = None
    if launch.what == "copy":
        found = _copy(launch)
    elif launch.what == "memset":
        size = float(launch.bytes)
        found = Kernel(KernelClass.MEMSET, "uint8", 0.0, 0.0, size, {"elements": size}, "memset")
    elif launch.what == "library":
        found = library_call(launch)
    else:
        # Sources and signatures come from the user's program: one that cannot be parsed has no model, but must not end
        # a job.
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):
            found = _kernel(launch, sources)
            if _is_of_a_package(launch) and (found is None or found.kernel_class not in _SHAPED):
                found = gathering(launch)
    return found or _unknown(launch)


# Their shapes come from the op, whoever wrote the kernel.
_SHAPED = (KernelClass.GEMM, KernelClass.ATTENTION)
# Namespaces of kernels that rules by name are meant for, in mangled names. Packages use CUB and Thrust as well.
_KNOWN_NAMESPACES = ("2at6native", "3cub", "6thrust")
_NAMESPACE_LENGTH = 64  # how far into the name they are looked for; template arguments follow


def _is_of_a_package(launch: KernelLaunch) -> bool:
    """A compiled kernel with known pointers that is neither torch's nor launched by an op of torch's. If its name
    resembles that of a kernel of torch's, that is by accident."""
    beginning = launch.name[:_NAMESPACE_LENGTH]
    is_known = not beginning.startswith("_Z") or any(name in beginning for name in _KNOWN_NAMESPACES)
    return not is_known and any(launch.pointers) and not launch.op.startswith("aten::")


def _copy(launch: KernelLaunch) -> Kernel:
    size = float(launch.bytes)
    if launch.name == "DtoD":
        return Kernel(KernelClass.COPY, "uint8", 0.0, size, size, {"elements": size, "operands": 2.0}, "vectorized")
    variant = launch.name + ("_pageable" if launch.arguments.get("pageable") else "")
    return Kernel(KernelClass.TRANSFER, "uint8", 0.0, size, size, {"bytes": size}, variant)


def _kernel(launch: KernelLaunch, sources: InductorSources | None) -> Kernel | None:
    if launch.function.startswith("triton_"):
        return triton(launch, sources.of(launch) if sources else None)
    for pattern, extractor in _KERNELS:
        if pattern.search(launch.function):
            found = extractor(launch)
            if found is not None:
                return found
            break
    for pattern, extractor in _OPS:
        if pattern.search(launch.op):
            return extractor(launch)
    return None


def _unknown(launch: KernelLaunch) -> Kernel:
    """Bytes from its pointers or the op's tensors, each once, the largest as the result; without either, from the
    grid."""
    found = from_pointers(launch)
    if found is not None:
        return found
    tensors = launch.tensors
    if tensors:
        largest = max(tensors, key=lambda tensor: tensor.elements)
        part = min(launch.elements / largest.elements, 1.0) if launch.elements else 1.0
        read = sum(tensor.bytes for tensor in tensors) * part
        elements = largest.elements * part
        shape = {"elements": elements, "blocks": float(launch.blocks)}
        return Kernel(KernelClass.UNKNOWN, largest.dtype, elements, read, largest.bytes * part, shape, "from_op")
    if launch.what == "library":
        return Kernel(KernelClass.UNKNOWN, "fp32", 0.0, 0.0, 0.0, {}, "library_call")
    elements = launch.blocks * launch.threads * _ELEMENTS_PER_THREAD
    shape = {"elements": elements, "blocks": float(launch.blocks)}
    return Kernel(KernelClass.UNKNOWN, "fp32", elements, 4.0 * elements, 4.0 * elements, shape, "from_grid")
