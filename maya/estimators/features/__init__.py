"""From launches to kernels: a `Kernel` for every kernel launch, library call, copy and memset of a trace.

    from_trace      a trace of Maya -> kernels
    kineto_trace    a profile of a real run -> launches with measured durations
    extract         launch -> kernel: chooses the extractor
    elementwise, rows, lists, data_movement, attention_kernels, gemms, library, triton, templates
                    the extractors, one per family of launches
    launch, tensors, kernel_names, parts, inductor, mask
                    what the extractors read: records, op inputs, kernel names, generated sources

An extractor returns None for a launch that does not match its name; `extract` then tries the next rule.
"""

from __future__ import annotations

from maya.estimators.features.extract import kernel_of
from maya.estimators.features.from_trace import TracedKernel, TracedKernels, kernels_of, launch_of
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.tensors import Tensor

__all__ = ["KernelLaunch", "Tensor", "TracedKernel", "TracedKernels", "kernel_of", "kernels_of", "launch_of"]
