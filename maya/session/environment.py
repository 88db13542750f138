"""The environment of a session's command: every process below it has virtual GPUs, and may become a rank.

In: the session's options, a build of the fake libraries, and the coordinator's address. Out: environment variables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from maya.devices import Device
from maya.launcher.arguments import LaunchOptions
from maya.launcher.worker_environment import zmq_library
from maya.replay.run_settings import RunSettings
from rank_runtime.build import Build
from rank_runtime.environment import kept_bytes, object_bytes, rank_environment
from rank_runtime.zygote.protocol import ENTRY

TRACES = "process-{}.trace"


@dataclass(frozen=True)
class CoordinatorAddress:
    """Where ranks find the coordinator."""

    endpoint: str
    secret: str


def session_environment(
    launch: LaunchOptions,
    device: Device,
    build: Build,
    settings: RunSettings,
    folder: Path,
    coordinator: CoordinatorAddress,
    gpus_per_node: int,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """All variables of the command. `folder`: for traces."""
    is_virtual = settings.clock == "virtual"
    chosen = {
        **launch.variables,
        "MAYA_GPUS": str(gpus_per_node),
        "MAYA_LATE_RANKS": "1",
        "MAYA_TRACE": str(folder / TRACES.format("%p")),
        "MAYA_COORDINATOR": coordinator.endpoint,
        "MAYA_COORDINATOR_SECRET": coordinator.secret,
        "MAYA_ZMQ": zmq_library(),
        "MAYA_CLOCK": settings.clock,
        "MAYA_CLOCK_COSTS": settings.host.text() if is_virtual else "",
        "MAYA_CLOCK_START": "",
        "MAYA_MEASURE_HOST": "1" if settings.host_time == "measured" else "0",
        "MAYA_STOP_AFTER": str(launch.stop_after or 0),
        "MAYA_RECORD_STEPS": str(launch.record_steps),
        # Those of a rank that the session itself may be a part of:
        "MAYA_PRESENT_RANKS": "0",
        "MAYA_PRESENT_LIST": "",
        "MAYA_FAULTS": "",
        "MAYA_SCHEDULE_SEED": "",
    }
    if not inherited.get("MAYA_KEPT_BYTES"):
        chosen["MAYA_KEPT_BYTES"] = str(kept_bytes(gpus_per_node))
    if not inherited.get("MAYA_OBJECT_BYTES"):
        chosen["MAYA_OBJECT_BYTES"] = str(object_bytes(gpus_per_node))
    modules = inherited.get("PYTHONPATH")
    own = {**inherited, "PATH": search_path(inherited)}
    return {
        **own,
        **rank_environment(build, device.cuda_properties(), chosen, own),
        "PYTHONPATH": str(ENTRY) + (os.pathsep + modules if modules else ""),
    }


def search_path(inherited: Mapping[str, str]) -> str:
    """PATH, with the programs of this Python's virtual environment first: `python` and `torchrun` of a command are
    those for which the fake libraries are built."""
    path = inherited.get("PATH", os.defpath)
    if sys.prefix == sys.base_prefix:
        return path
    programs = str(Path(sys.prefix) / "bin")
    return os.pathsep.join([programs, *(folder for folder in path.split(os.pathsep) if folder != programs)])
