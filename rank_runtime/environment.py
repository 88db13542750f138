"""How a process is started so that it sees virtual GPUs: the one table of MAYA_* variables, and what sets them.

In: a build of the fake libraries, the properties of the GPU, and what the user chose. Out: the environment variables of
one rank. The C side reads the same variables in shim/device/settings.c and has the same defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class VariableError(ValueError):
    """A MAYA_* variable has a value that cannot be meant."""


class Libraries(Protocol):
    """What this module needs of a `rank_runtime.build.Build`."""

    @property
    def folder(self) -> Path: ...
    @property
    def libraries(self) -> tuple[Path, ...]: ...
    @property
    def observer(self) -> Path | None: ...


@dataclass(frozen=True)
class Variable:
    """One variable: its meaning, its default as text, and which values it takes (any text, if nothing is said)."""

    name: str
    meaning: str
    default: str = ""
    choices: tuple[str, ...] = ()
    is_number: bool = False

    def check(self, value: str) -> None:
        """Refuse a value that the C side would refuse later, in every rank at once."""
        if self.choices and value not in self.choices:
            raise VariableError(f"{self.name}={value}: expected {', '.join(self.choices[:-1])} or {self.choices[-1]}")
        if self.is_number and not (value.isascii() and value.isdigit()):
            raise VariableError(f"{self.name}={value}: expected a whole number, e.g. {self.default}")


_MOST_KEPT_BYTES = 256 << 20
_KEPT_BYTES_IN_ALL = 2 << 30
_MOST_OBJECT_BYTES = 1 << 30
_OBJECT_BYTES_IN_ALL = 4 << 30
_LEAST_OBJECT_BYTES = 16 << 20

RANK_VARIABLES = (
    Variable("MAYA_GPU_PROPERTIES", 'the GPU, as "key=value;..."; set by maya-torchrun from --gpu (default: an H100)'),
    Variable("MAYA_GPUS", "GPUs of a node, before CUDA_VISIBLE_DEVICES; at most 64", "8", is_number=True),
    Variable(
        "MAYA_COMPUTE",
        "which ops are really computed: none, small (those on small tensors with known inputs) or all",
        "small",
        choices=("none", "small", "all"),
    ),
    Variable("MAYA_COMPUTE_BYTES", "largest size of a small op's tensors together, in bytes", "65536", is_number=True),
    Variable(
        "MAYA_COPY_BYTES",
        "copies up to this many bytes keep their contents (small ones, of up to 64 KiB or MAYA_COMPUTE_BYTES: always)",
        "16777216",
        is_number=True,
    ),
    Variable(
        "MAYA_KEPT_BYTES",
        "most bytes of the contents of large copies that a rank keeps at once (2 GiB shared by all ranks, but at most "
        "this); small ones are kept besides",
        str(_MOST_KEPT_BYTES),
        is_number=True,
    ),
    Variable(
        "MAYA_OBSERVE",
        "ops that torch announces to observers: launching (those that may launch kernels; cheaper) or all (so that "
        "torch.profiler lists every op)",
        "launching",
        choices=("launching", "all"),
    ),
    Variable("MAYA_STRICT_VALUES", "1: reading a value that was not computed is an error", "0", choices=("0", "1")),
    Variable(
        "MAYA_COLLECTIVE_BYTES",
        "collectives on buffers up to this size carry contents (small ones always, integers up to MAYA_KEPT_BYTES)",
        "1048576",
        is_number=True,
    ),
    Variable(
        "MAYA_OBJECT_BYTES",
        "largest uint8 tensor (pickled object) whose contents are kept and carried, and most bytes of them that a rank "
        "keeps at once, besides MAYA_KEPT_BYTES (4 GiB shared by all ranks, 16 MiB at least and at most this)",
        str(_MOST_OBJECT_BYTES),
        is_number=True,
    ),
    Variable(
        "MAYA_COORDINATOR",
        "where the ranks meet, a ZeroMQ endpoint; set by maya-torchrun; empty: only communicators of one rank",
    ),
    Variable("MAYA_COORDINATOR_SECRET", "by which the coordinator knows the ranks of its run; set by maya-torchrun"),
    Variable(
        "MAYA_CLOCK",
        "virtual: the program is shown the time its cluster would have, which needs a coordinator; wall: real time",
        "wall",
        choices=("virtual", "wall"),
    ),
    Variable(
        "MAYA_CLOCK_COSTS",
        'what the host of the virtual clock takes, in ns, as "op=4000;latency=3000;kernel=5000;..."; set by '
        "maya-torchrun",
    ),
    Variable("MAYA_CLOCK_START", "where the virtual time.time() begins, in ns since 1970; set by maya-torchrun"),
    Variable(
        "MAYA_FAULTS", 'what goes wrong in this rank, as "kill:rank=3,call=10;..."; set by maya-torchrun from --inject'
    ),
    Variable(
        "MAYA_SCHEDULE_SEED",
        "a whole number by which calls and streams are held up; set by maya-torchrun from --schedule-seed; empty: none",
    ),
    Variable(
        "MAYA_MEASURE_HOST",
        "1: the trace says what the program took on the processor; set by maya-torchrun --host-time measured",
        "0",
        choices=("0", "1"),
    ),
    Variable("MAYA_ZMQ", "the ZeroMQ library to load; set by maya-torchrun"),
    Variable("MAYA_TRACE", "file to record into; %r is the rank, %p the process id; empty: nothing is recorded"),
    Variable(
        "MAYA_OBSERVER", "the op observer to load; set by maya-torchrun; empty: ops are neither named nor computed"
    ),
    Variable(
        "MAYA_DEBUG",
        "1: say which ops could not be computed, and why, and what announcing an op costs",
        "0",
        is_number=True,
    ),
    Variable(
        "MAYA_BARE", "1: every call succeeds and does nothing; the baseline of benchmarks", "0", choices=("0", "1")
    ),
)
SETUP_VARIABLES = (
    Variable("MAYA_CACHE", "folder for the built libraries (default: $XDG_CACHE_HOME/maya or ~/.cache/maya)"),
    Variable("MAYA_PYTHON", "scripts/setup: the interpreter to use (default: the newest python3, 3.10 or later)"),
    Variable("MAYA_TORCH_VERSION", "scripts/setup: the torch to install", "2.12.1"),
)


def kept_bytes(world_size: int) -> int:
    """What a rank may keep of the contents of large copies by default: all ranks are on one machine."""
    return min(_MOST_KEPT_BYTES, _KEPT_BYTES_IN_ALL // world_size)


def object_bytes(world_size: int) -> int:
    """The same for uint8 tensors. Few jobs have any, and those that do cannot go on without their contents."""
    return max(_LEAST_OBJECT_BYTES, min(_MOST_OBJECT_BYTES, _OBJECT_BYTES_IN_ALL // world_size))


def rank_environment(
    build: Libraries, properties: Mapping[str, str | int], chosen: Mapping[str, str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Variables to add to `inherited` for one rank: what was chosen, else what the user had set, else the default.

    `properties` are the GPU's, under the names of `maya_device_properties` in device.h.
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
    variables["TRITON_LIBCUDA_PATH"] = str(build.folder)  # Triton would ask ldconfig for the driver, which is not there
    # What is compiled or tuned on the virtual GPU must not be found by a job on a real one that shares the home folder.
    variables["USE_PYTORCH_KERNEL_CACHE"] = "0"
    for name, folder in (("TRITON_CACHE_DIR", "triton"), ("TORCHINDUCTOR_CACHE_DIR", "inductor")):
        variables[name] = inherited.get(name) or str(build.folder / folder)
    return variables


def _preload(libraries: tuple[Path, ...], already: str) -> str:
    """Ours first, so that nothing of the user's brings in an NVIDIA library before them."""
    return ":".join([*map(str, libraries), *([already] if already else [])])
