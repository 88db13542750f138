"""What a trace says was done -> what had to be done: `Work` for every kernel, library call, copy and memset.

    tensors, launch, kernel_names   what a record and its op say
    elementwise, rows, lists, movement, attention, products, library, triton, inductor   one family of launches each
    extract         which of them a launch goes to
    from_trace      a trace of Maya -> works
    kineto          a profile of a real run -> works with measured durations

Extractors return None for a launch that is not what its name promised; `extract` then goes on.
"""

from __future__ import annotations

from maya.estimators.features.extract import work_of
from maya.estimators.features.from_trace import TracedWork, TracedWorks, launch_of, works_of
from maya.estimators.features.launch import Launch
from maya.estimators.features.tensors import Tensor

__all__ = ["Launch", "Tensor", "TracedWork", "TracedWorks", "launch_of", "work_of", "works_of"]
