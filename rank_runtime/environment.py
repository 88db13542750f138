"""The environment of a rank: what makes a process load the fake libraries and see virtual GPUs.

In: a build of the fake libraries, the properties of the GPU, and the user's choices. Out: the environment variables of
one rank. `variables` declares them; the C side reads them in shim/device/settings.c.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rank_runtime.build.commands import FOLDER as COMMANDS
from rank_runtime.variables import MOST_KEPT_BYTES, MOST_OBJECT_BYTES, RANK_VARIABLES


class Libraries(Protocol):
    """The part of a `rank_runtime.build.Build` that this module needs."""

    @property
    def folder(self) -> Path: ...
    @property
    def libraries(self) -> tuple[Path, ...]: ...
    @property
    def observer(self) -> Path | None: ...


_KEPT_BYTES_OF_ALL_RANKS = 2 << 30
_OBJECT_BYTES_OF_ALL_RANKS = 4 << 30
_LEAST_OBJECT_BYTES = 16 << 20
_PRECOMPILATION, _DAY = "TORCHINDUCTOR_PRECOMPILATION_TIMEOUT_SECONDS", 24 * 60 * 60


def kept_bytes(world_size: int) -> int:
    """Default of MAYA_KEPT_BYTES: all ranks share one machine."""
    return min(MOST_KEPT_BYTES, _KEPT_BYTES_OF_ALL_RANKS // world_size)


def object_bytes(world_size: int) -> int:
    """Default of MAYA_OBJECT_BYTES. Few jobs have such tensors, and those that do need their contents to continue."""
    return max(_LEAST_OBJECT_BYTES, min(MOST_OBJECT_BYTES, _OBJECT_BYTES_OF_ALL_RANKS // world_size))


def rank_environment(
    build: Libraries, properties: Mapping[str, str | int], chosen: Mapping[str, str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Variables to add to `inherited` for one rank: the chosen value, else the user's own, else the default.

    `properties` are the GPU's, under the names in `device_properties`.
    """
    fixed = {
        "MAYA_GPU_PROPERTIES": ";".join(f"{key}={value}" for key, value in properties.items()),
        "MAYA_OBSERVER": str(build.observer or ""),
    }
    unknown = set(chosen) - {variable.name for variable in RANK_VARIABLES} | set(chosen) & set(fixed)
    assert not unknown, f"not for the caller to choose: {unknown}"
    variables = dict(fixed)
    for variable in RANK_VARIABLES:
        if variable.name not in fixed:
            value = inherited.get(variable.name) or variable.default
            variables[variable.name] = chosen.get(variable.name, value)
            variable.check(variables[variable.name])
    variables["LD_PRELOAD"] = _preload(build.libraries, inherited.get("LD_PRELOAD", ""))
    commands = str(build.folder / COMMANDS)  # nvidia-smi, before one of this machine
    variables["PATH"] = os.pathsep.join([commands, inherited.get("PATH") or os.defpath])
    variables["TRITON_LIBCUDA_PATH"] = str(build.folder)  # otherwise Triton asks ldconfig, which knows no driver
    # A job on a real GPU that shares the home folder must not find kernels compiled or tuned on the virtual one.
    variables["USE_PYTORCH_KERNEL_CACHE"] = "0"
    for name, folder in (("TRITON_CACHE_DIR", "triton"), ("TORCHINDUCTOR_CACHE_DIR", "inductor")):
        variables[name] = inherited.get(name) or str(build.folder / folder)
    # Inductor drops candidates that are not compiled in time, and so would depend on the speed of this machine.
    variables[_PRECOMPILATION] = inherited.get(_PRECOMPILATION) or str(_DAY)
    return variables


def _preload(libraries: tuple[Path, ...], already: str) -> str:
    """Our libraries first, before any library of the user's can load one of NVIDIA's."""
    return ":".join([*map(str, libraries), *([already] if already else [])])
