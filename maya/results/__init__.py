"""The results of a run: a timeline -> step time, where it goes, tokens per second, memory, traffic, traces.

    result = conclude(simulate(run_folder))
    result.step_ns, result.breakdown.of_rank(0), result.throughput.mfu

steps                    finds training steps and their lengths, by steps_from_annotations (torch.optim, or annotations
                         that the user names; optimizer_turns), steps_from_backward or steps_from_repetition
time_breakdown           where the time of all steps goes, by step_breakdown and time_classes
throughput, memory, traffic, origins, kernels_without_model, routed_time, tokens_per_step,
trace_assumptions
                         the other results
result                   all of them together
terminal_text, prediction_json
                         a result as lines for the terminal and as `prediction` in summary.json
rank_trace, cluster_trace
                         a result as trace files for Perfetto and HTA, by the kineto_… modules, host_spans, trace_events
predict                  a run's folder -> result and trace files
"""

from __future__ import annotations

from maya.results.result import Options, Result, conclude
from maya.results.time_classes import CLASSES, TITLES, TimeClass

__all__ = ["CLASSES", "TITLES", "Options", "Result", "TimeClass", "conclude"]
