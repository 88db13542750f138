"""What a trace says was done -> what had to be done: `Work` for every kernel, library call, copy and memset.

    tensors, launch, kernel_names   what a record and its op say
    elementwise, rows, lists, movement, attention, products, library, triton, inductor   one family of launches each
    extract         which of them a launch goes to
    from_trace      a trace of Maya -> works
    kineto          a profile of a real run -> works with measured durations

Extractors return None for a launch that is not what its name promised; `extract` then goes on.
"""

from __future__ import annotations

from maya.estimators.features.extract import kernel_of
from maya.estimators.features.from_trace import TracedKernel, TracedKernels, kernels_of, launch_of
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.tensors import Tensor

__all__ = ["KernelLaunch", "Tensor", "TracedKernel", "TracedKernels", "kernel_of", "kernels_of", "launch_of"]
