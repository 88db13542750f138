"""All MAYA_* environment variables: meaning, default and allowed values.

Declared here once: the build generates `variables.h` from this module (build/declared_headers.py), `environment` sets
the variables of a rank, and `maya env` lists those for users.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_GPUS = 64  # of a node

MOST_KEPT_BYTES = 256 << 20
MOST_OBJECT_BYTES = 1 << 30


class VariableError(ValueError):
    """A MAYA_* variable has a value that is not allowed."""


@dataclass(frozen=True)
class Variable:
    """One variable. It takes any text unless `choices` or `is_number` says otherwise."""

    name: str
    meaning: str
    default: str = ""
    choices: tuple[str, ...] = ()
    is_number: bool = False
    internal: bool = False  # set by Maya itself or by its developers; not for users

    @property
    def is_flag(self) -> bool:
        """Whether it is 0 or 1."""
        return self.choices == ("0", "1")

    @property
    def expected(self) -> str:
        """The choices in words."""
        return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"

    def check(self, value: str) -> None:
        """Refuse a value that every rank would refuse later."""
        if self.choices and value not in self.choices:
            raise VariableError(f"{self.name}={value}: expected {self.expected}")
        if self.is_number and not (value.isascii() and value.isdigit()):
            raise VariableError(f"{self.name}={value}: expected a whole number, e.g. {self.default}")


# Every rank has all of these in its environment.
RANK_VARIABLES = (
    Variable(
        "MAYA_GPU_PROPERTIES",
        'properties of the GPU, as "key=value;..."; maya-torchrun sets it from --gpu (default: an H100)',
        internal=True,
    ),
    Variable(
        "MAYA_GPUS",
        f"number of GPUs in a node, before CUDA_VISIBLE_DEVICES; at most {MOST_GPUS}",
        "8",
        is_number=True,
    ),
    Variable(
        "MAYA_COMPUTE",
        "which ops are really computed: none, small (ops on small tensors with known inputs) or all",
        "small",
        choices=("none", "small", "all"),
    ),
    Variable(
        "MAYA_COMPUTE_BYTES",
        "an op is small if its tensors have at most this many bytes in total",
        "65536",
        is_number=True,
    ),
    Variable(
        "MAYA_COPY_BYTES",
        "largest copy whose contents are kept, in bytes; contents up to 64 KiB or MAYA_COMPUTE_BYTES are always kept",
        "16777216",
        is_number=True,
    ),
    Variable(
        "MAYA_HOST_TENSORS",
        "contents of large host tensors that need no input, such as random numbers: placeholder (no time, no memory) "
        "or real",
        "placeholder",
        choices=("placeholder", "real"),
    ),
    Variable(
        "MAYA_HOST_TENSOR_BYTES",
        "a host tensor is large if it has at least this many bytes",
        "1048576",
        is_number=True,
    ),
    Variable(
        "MAYA_KEPT_BYTES",
        "contents of large copies that a rank keeps at once, in bytes; small contents are kept in addition "
        "(default: 2 GiB divided by the number of ranks, of which 32 count if some are absent; at most this)",
        str(MOST_KEPT_BYTES),
        is_number=True,
    ),
    Variable(
        "MAYA_OBSERVE",
        "ops for which torch calls its observers: launching (only ops that may launch kernels; cheaper) or all (so "
        "that torch.profiler lists every op)",
        "launching",
        choices=("launching", "all"),
    ),
    Variable("MAYA_STRICT_VALUES", "1: reading a placeholder value is an error", "0", choices=("0", "1")),
    Variable(
        "MAYA_MOE_SKEW",
        "how often the most frequent choice among placeholder scores (an expert) is made, in thousandths of the mean; "
        "maya-torchrun sets it from --moe-skew",
        "1000",
        is_number=True,
        internal=True,
    ),
    Variable(
        "MAYA_MOE_SEED",
        "decides which expert is chosen most often; maya-torchrun sets it from --moe-seed",
        "0",
        is_number=True,
        internal=True,
    ),
    Variable(
        "MAYA_COLLECTIVE_BYTES",
        "largest buffer whose contents a collective carries, in bytes; small buffers are always carried, integers up "
        "to MAYA_KEPT_BYTES",
        "1048576",
        is_number=True,
    ),
    Variable(
        "MAYA_OBJECT_BYTES",
        "largest uint8 tensor (pickled object) whose contents are kept and carried, and the most that a rank keeps of "
        "them at once, in bytes; separate from MAYA_KEPT_BYTES (default: 4 GiB divided by the number of ranks, of "
        "which 32 count if some are absent; at least 16 MiB and at most this)",
        str(MOST_OBJECT_BYTES),
        is_number=True,
    ),
    Variable(
        "MAYA_COORDINATOR",
        "ZeroMQ endpoint of the coordinator; maya-torchrun sets it; empty: only communicators of one rank",
        internal=True,
    ),
    Variable(
        "MAYA_COORDINATOR_SECRET",
        "identifies the ranks of a run to its coordinator; maya-torchrun sets it",
        internal=True,
    ),
    Variable(
        "MAYA_COORDINATOR_KEYS",
        "CURVE keys, where the coordinator is on another machine: its public key, and the public and secret key of the "
        "ranks; maya-torchrun --ray sets it; empty: the connection stays on this machine and is not encrypted",
        internal=True,
    ),
    Variable(
        "MAYA_PRESENT_RANKS",
        "number of ranks that are processes, if the others are absent: ranks then announce their process groups; "
        "maya-torchrun sets it from --represent; 0: every rank is a process",
        "0",
        is_number=True,
        internal=True,
    ),
    Variable(
        "MAYA_PRESENT_LIST",
        "the ranks that are processes, e.g. 0-3,8, if the others are absent; maya-torchrun sets it from --represent",
        internal=True,
    ),
    Variable(
        "MAYA_CLOCK",
        "virtual: the program sees the time on its cluster, which needs a coordinator; wall: real time",
        "wall",
        choices=("virtual", "wall"),
        internal=True,
    ),
    Variable(
        "MAYA_CLOCK_COSTS",
        'host costs of the virtual clock in ns, as "op=4000;latency=3000;kernel=5000;..."; maya-torchrun sets it',
        internal=True,
    ),
    Variable(
        "MAYA_CLOCK_START",
        "the virtual time.time() at the start, in ns since 1970; maya-torchrun sets it",
        internal=True,
    ),
    Variable(
        "MAYA_FAULTS",
        'faults to inject into this rank, as "kill:rank=3,call=10;..."; maya-torchrun sets it from --inject',
        internal=True,
    ),
    Variable(
        "MAYA_TRACEBACKS",
        "file in which ranks note the tracebacks that they print; maya-torchrun sets it; empty: none",
        internal=True,
    ),
    Variable(
        "MAYA_STOP_AFTER",
        "number of optimizer steps after which the program ends; maya-torchrun sets it from --stop-after; 0: no limit",
        "0",
        is_number=True,
        internal=True,
    ),
    Variable(
        "MAYA_RECORD_STEPS",
        "number of optimizer steps after which the trace ends while the program goes on; maya-torchrun sets it from "
        "--record-steps; 0: no limit",
        "0",
        is_number=True,
        internal=True,
    ),
    Variable(
        "MAYA_RECORD_OPERATIONS",
        "with MAYA_RECORD_STEPS: number of kernels, copies and collectives without an optimizer step after which the "
        "trace ends",
        "5000000",
        is_number=True,
        internal=True,
    ),
    Variable(
        "MAYA_SCHEDULE_SEED",
        "seed of the random delays of calls and streams; maya-torchrun sets it from --schedule-seed; empty: no delays",
        internal=True,
    ),
    Variable(
        "MAYA_MEASURE_HOST",
        "1: the trace records the processor time of the program; maya-torchrun --host-time measured sets it",
        "0",
        choices=("0", "1"),
        internal=True,
    ),
    Variable(
        "MAYA_LATE_RANKS",
        "1: a process becomes a rank when it first uses a GPU, as below maya exec; 0: it is a rank from its start",
        "0",
        choices=("0", "1"),
        internal=True,
    ),
    Variable("MAYA_ZMQ", "path of the ZeroMQ library; maya-torchrun sets it", internal=True),
    Variable(
        "MAYA_TRACE",
        "trace file; %r stands for the rank, %p for the process id; empty: nothing is recorded",
        internal=True,
    ),
    Variable(
        "MAYA_OBSERVER",
        "path of the op observer; maya-torchrun sets it; empty: ops are neither named nor computed",
        internal=True,
    ),
    Variable(
        "MAYA_DEBUG",
        "1: report which ops could not be computed and why, and what observing an op costs",
        "0",
        is_number=True,
    ),
    Variable(
        "MAYA_BARE",
        "1: every call succeeds and does nothing; the baseline of benchmarks",
        "0",
        choices=("0", "1"),
        internal=True,
    ),
)
# Set inside the processes of a run, not by `environment`.
PROCESS_VARIABLES = (
    Variable("MAYA_ZYGOTE", "file descriptors of a new zygote's connection to the launcher", internal=True),
    Variable("MAYA_RANK_PROCESS", "process id of the rank, to tell it from the programs that it starts", internal=True),
)
SETUP_VARIABLES = (
    Variable("MAYA_CACHE", "folder for the built libraries (default: $XDG_CACHE_HOME/maya or ~/.cache/maya)"),
    Variable("MAYA_PYTHON", "scripts/setup: the interpreter to use (default: the newest python3, 3.10 or later)"),
    Variable("MAYA_TORCH_VERSION", "scripts/setup: the torch version to install", "2.12.1"),
)
