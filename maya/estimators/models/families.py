"""Families: kernels that move memory in the same way share a curve (curves.py), and who stands for whom without one.

In: kind, variant and dtype of a work. Out: the name of its family, and of a family its relative and how many times
slower it is taken to be than that.
"""

from __future__ import annotations

from maya.estimators.kernel import CLASS_TRAITS, KernelClass
from maya.estimators.models.bounds import element_bytes
from maya.estimators.models.row_traffic import IN_PASSES


def family_of(kind: KernelClass, variant: str, dtype: str) -> str:
    """What shares a curve."""
    if variant in ("strided", "transposed") and element_bytes(dtype) <= 2:
        variant += "_narrow"  # goes element by element, so that it takes as long for fewer bytes
    if kind == KernelClass.NORM and variant == "layer_norm_backward_parameters":
        variant = "layer_norm_backward"  # measured together only
    if kind == KernelClass.SOFTMAX:
        variant = variant.removeprefix("log_")  # the same kernels but for the last line
        if variant.endswith(IN_PASSES) and element_bytes(dtype) <= 2:
            variant += "_narrow"
    return f"{kind.value}/{variant}"


# A family that was not measured: the one it is most like, and how many times slower it is taken to be than that.
_RELATIVES = {
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
_RELATIVES_OF_CLASSES = {kind.value: traits.similar_family for kind, traits in CLASS_TRAITS.items()}


def relative_of(family: str) -> tuple[str, float]:
    """The family that an unmeasured one is taken to be like, and how many times slower."""
    if family in _RELATIVES:
        return _RELATIVES[family]
    relative = _RELATIVES_OF_CLASSES[family.partition("/")[0]]
    return relative if relative[0] != family else ("elementwise/vectorized", 1.0)
