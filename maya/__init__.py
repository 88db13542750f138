"""Maya runs an unmodified CUDA PyTorch script on a machine without GPUs and predicts its time on a GPU cluster.

    import maya

    run = maya.load("maya-runs/train-1")        # the folder of a run of maya-torchrun
    run.step_time_ns
    print(run.compare(run.predict(gpu="b200")))

docs/python.md describes every name here. They are imported on first use, so `import maya` itself takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from maya.version import __version__

if TYPE_CHECKING:
    from maya import trace
    from maya.api.cluster_network import ClusterNetwork, CollectiveTime, network
    from maya.api.job_launch import LaunchError, launch
    from maya.api.op_estimate import OpEstimate, estimate
    from maya.api.run import Run, load
    from maya.api.run_comparison import RunComparison
    from maya.api.run_prediction import RunPrediction
    from maya.api.trace_estimate import TraceEstimate, estimate_trace
    from maya.config_search.search_study import ConfigurationSearch, search
    from maya.scaling.study import ScaleStudy, scale

__all__ = [
    "ClusterNetwork",
    "CollectiveTime",
    "ConfigurationSearch",
    "LaunchError",
    "OpEstimate",
    "Run",
    "RunComparison",
    "RunPrediction",
    "ScaleStudy",
    "TraceEstimate",
    "__version__",
    "estimate",
    "estimate_trace",
    "launch",
    "load",
    "network",
    "scale",
    "search",
    "trace",
]

_MODULES = {
    "ClusterNetwork": "maya.api.cluster_network",
    "CollectiveTime": "maya.api.cluster_network",
    "ConfigurationSearch": "maya.config_search.search_study",
    "LaunchError": "maya.api.job_launch",
    "OpEstimate": "maya.api.op_estimate",
    "Run": "maya.api.run",
    "RunComparison": "maya.api.run_comparison",
    "RunPrediction": "maya.api.run_prediction",
    "ScaleStudy": "maya.scaling.study",
    "TraceEstimate": "maya.api.trace_estimate",
    "estimate": "maya.api.op_estimate",
    "estimate_trace": "maya.api.trace_estimate",
    "launch": "maya.api.job_launch",
    "load": "maya.api.run",
    "network": "maya.api.cluster_network",
    "scale": "maya.scaling.study",
    "search": "maya.config_search.search_study",
}


if not TYPE_CHECKING:  # with it, type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name == "trace":
            return import_module("maya.trace")
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module 'maya' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
