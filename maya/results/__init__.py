"""What users came for: a timeline -> step time, where it goes, tokens a second, memory, traffic, traces.

    result = conclude(simulate(run_folder))
    result.step_ns, result.anatomy.of_rank(0), result.throughput.mfu

`steps` finds training steps, `anatomy` divides them, `throughput`, `memory`, `traffic` and `origins` say the rest,
`text` and `document` write it down, `kineto` and `cluster_trace` draw it for Perfetto and HTA.
"""

from __future__ import annotations

from maya.results.classes import CLASSES, TITLES, TimeClass
from maya.results.result import Options, Result, conclude

__all__ = ["CLASSES", "TITLES", "Options", "Result", "TimeClass", "conclude"]
