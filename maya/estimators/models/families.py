"""Families of memory-bound kernels: kernels with the same access pattern share a curve (curves.py).

In: class, variant and dtype of a kernel. Out: the name of its family; and, for a family without a curve, the most
similar family and how many times slower it is assumed to be.
"""

from __future__ import annotations

from maya.estimators.kernel import CLASS_TRAITS, KernelClass
from maya.estimators.models.bounds import element_bytes
from maya.estimators.models.row_traffic import IN_PASSES


def family_of(kernel_class: KernelClass, variant: str, dtype: str) -> str:
    """The family of a kernel."""
    if variant in ("strided", "transposed") and element_bytes(dtype) <= 2:
        variant += "_narrow"  # accesses single elements, so fewer bytes take as long
    if kernel_class == KernelClass.NORM and variant == "layer_norm_backward_parameters":
        variant = "layer_norm_backward"  # only measured as a whole
    if kernel_class == KernelClass.SOFTMAX:
        variant = variant.removeprefix("log_")  # the same kernels except for the last line
        if variant.endswith(IN_PASSES) and element_bytes(dtype) <= 2:
            variant += "_narrow"
    return f"{kernel_class.value}/{variant}"


# Unmeasured families: the most similar family, and how many times slower they are assumed to be.
_SIMILAR_FAMILIES = {
    "elementwise/unrolled": ("copy/unrolled", 1.0),  # casts while it loads
    "elementwise/strided": ("elementwise/vectorized", 1.3),
    "elementwise/strided_narrow": ("elementwise/strided", 1.4),
    "elementwise/transposed": ("elementwise/strided", 1.2),  # and sectors, see memory_bound
    "elementwise/transposed_narrow": ("elementwise/strided_narrow", 1.2),
    "copy/vectorized": ("elementwise/vectorized", 1.0),
    "copy/unrolled": ("elementwise/vectorized", 1.5),
    "copy/strided": ("elementwise/strided", 1.0),
    "copy/strided_narrow": ("elementwise/strided_narrow", 1.0),
    "copy/transposed": ("elementwise/transposed", 1.0),
    "copy/transposed_narrow": ("elementwise/transposed_narrow", 1.0),
    "reduction/inner": ("elementwise/vectorized", 1.1),
    "reduction/outer": ("elementwise/vectorized", 1.25),
    "softmax/softmax_backward": ("softmax/softmax_forward", 1.0),
    "softmax/softmax_forward_in_passes": ("softmax/softmax_forward", 1.2),
    "softmax/softmax_backward_in_passes": ("softmax/softmax_forward_in_passes", 1.0),
    "softmax/softmax_forward_in_passes_narrow": ("softmax/softmax_forward_in_passes", 1.4),
    "softmax/softmax_backward_in_passes_narrow": ("softmax/softmax_forward_in_passes_narrow", 1.0),
    "norm/layer_norm_backward": ("norm/layer_norm_forward", 1.1),
    "norm/batch_norm_inference": ("elementwise/vectorized", 1.1),
    "norm/batch_norm_forward": ("elementwise/vectorized", 1.7),  # the input is read twice
    "norm/batch_norm_backward": ("elementwise/vectorized", 1.7),
    "cross_entropy/backward": ("cross_entropy/forward", 1.0),
    "embedding/forward": ("copy/vectorized", 1.2),
    "embedding/index_select": ("copy/vectorized", 2.5),
    "embedding/backward": ("embedding/forward", 1.2),
    "unknown/from_pointers": ("elementwise/vectorized", 1.1),
    "unknown/matrix_from_pointers": ("elementwise/vectorized", 1.1),
    "triton/pointwise": ("elementwise/vectorized", 1.0),
    "triton/reduction": ("elementwise/vectorized", 1.2),
    "triton/persistent_reduction": ("elementwise/vectorized", 1.1),
}
_SIMILAR_TO_CLASS = {kernel_class.value: traits.similar_family for kernel_class, traits in CLASS_TRAITS.items()}


def similar_family(family: str) -> tuple[str, float]:
    """The family most similar to an unmeasured one, and how many times slower the latter is assumed to be."""
    if family in _SIMILAR_FAMILIES:
        return _SIMILAR_FAMILIES[family]
    similar = _SIMILAR_TO_CLASS[family.partition("/")[0]]
    return similar if similar[0] != family else ("elementwise/vectorized", 1.0)
