"""The command line of maya-torchrun: words -> `LaunchOptions`.

In: the words after `maya-torchrun`, and PET_<OPTION> variables as defaults; option_parser.py defines the options. Out:
a `LaunchOptions`, or a usage error (exit 2). Options of torchrun's that ranks on virtual nodes do not need are read and
have no effect; options that would change what the user sees and are not supported are refused by name.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import string
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from maya.devices import Device, DeviceError, load_device
from maya.launcher import hang, injection_options
from maya.launcher.giving_up import GiveUpLimit
from maya.launcher.hang import Hangs
from maya.launcher.injection_options import Injection
from maya.launcher.option_parser import GPU, RECORDED_STEPS, make_parser
from maya.launcher.timing_options import Timing, TimingError, read_options
from maya.util.ranks import NoSuchRankError, parse_ranks, ranks_text
from netmodel.cluster import Cluster, ClusterError, load_cluster

GPUS_PER_NODE = 8
# The cluster that is assumed for a GPU file without `default_cluster`.
_CLUSTER_OF_ARCHITECTURE = {
    "Volta": "dgx-1v",
    "Ampere": "dgx-a100",
    "Hopper": "dgx-h100",
    "Blackwell": "dgx-b200",
}
_WITHOUT_NVSWITCH = "pcie-box"
_LAST_PORT = 65535
_NVSWITCH_RATE = 120 * 10**9  # bytes per second; a bridge between pairs has less, or joins only two


class UsageError(ValueError):
    """The command line is invalid or contradictory."""


@dataclass(frozen=True)
class StreamChoice:
    """Which of a rank's output streams something applies to."""

    stdout: bool
    stderr: bool


@dataclass(frozen=True)
class StreamCodes:
    """A choice for every local rank: those in `named`, and one for all others."""

    named: Mapping[int, StreamChoice]
    others: StreamChoice

    def of(self, local_rank: int) -> StreamChoice:
        return self.named.get(local_rank, self.others)


_MOST_WITH_CONTENTS = 32  # present ranks that share the memory for contents, in a job with absent ones


@dataclass(frozen=True)
class LaunchOptions:
    """The job to run, and its options."""

    command: tuple[str, ...]  # of one worker
    script: str
    module: bool  # the script is the name of a module
    own_python: bool  # the command is a script or module for the Python that runs this launcher
    nodes: int
    ranks_per_node: int
    role: str
    run_id: str
    master_address: str
    master_port: int | None  # None: a free one
    max_restarts: int
    virtual_local_rank: bool
    signals: tuple[signal.Signals, ...]  # forwarded to the worker
    shutdown_seconds: float
    log_folder: Path | None  # None: in the run's folder
    redirects: StreamCodes
    tee: StreamCodes
    local_ranks: frozenset[int] | None  # show the output of these; None: of all
    shown_ranks: frozenset[int] | None  # of these, show that of these ranks of the job; None: of all
    cluster: str | None  # its name
    cluster_file: str | None  # as the user wrote it: a name in the catalogue, or a path
    gpu: str
    out: Path | None  # None: a new folder under maya-runs
    trace: bool
    preload: tuple[str, ...] | None  # more modules to import before the ranks are forked; None: import none before
    variables: Mapping[str, str]  # MAYA_* chosen on the command line
    timing: Timing
    hangs: Hangs
    injection: Injection
    present: tuple[int, ...] | None = None  # the ranks that are processes; None: all
    stop_after: int | None = None  # optimizer steps; None: the script ends by itself
    record_steps: int = RECORDED_STEPS  # optimizer steps; 0: all
    give_up: GiveUpLimit | None = None  # None: never
    finds_representatives: bool = False  # --represent auto: a survey finds the ranks that are to be present
    ray: str | None = None  # the address of the Ray cluster whose nodes run the ranks; None: this machine does
    ray_resources: Mapping[str, float] = field(default_factory=dict)  # to reserve on every node
    may_find_representatives: bool = False  # no --represent: a survey finds them if this machine has no room for all

    def with_present(self, ranks: Sequence[int]) -> LaunchOptions:
        """The same job with these ranks present, and those with an injected fault, which must be processes."""
        present = tuple(sorted({*ranks, *self.injection.ranks}))
        return replace(self, present=present if len(present) < self.world_size else None)

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def shares_modules(self) -> bool:
        """Whether the ranks can be forked from a Python process that has imported their modules."""
        return self.own_python and not _has_macro(self.command) and self.preload is not None

    @property
    def processes(self) -> Sequence[int]:
        """The ranks that are processes."""
        return range(self.world_size) if self.present is None else self.present

    @property
    def ranks_with_contents(self) -> int:
        """The number of ranks that share the memory for contents of tensors. It does not depend on how many are
        present, so that a rank keeps as much in every round of a survey as in the job."""
        return self.world_size if self.present is None else min(self.world_size, _MOST_WITH_CONTENTS)


def _has_macro(command: tuple[str, ...]) -> bool:
    """Whether the command contains ${local_rank}, which torchrun replaces: every rank then has its own command."""
    return any(string.Template(word).safe_substitute(local_rank="0") != word for word in command)


def parse(words: Sequence[str], environment: Mapping[str, str]) -> LaunchOptions:
    """Read the command line; an error exits with code 2."""
    parser = make_parser(environment)
    options = parser.parse_args(words)
    try:
        return _launch(options, environment)
    except UsageError as error:
        parser.error(str(error))


def check(words: Sequence[str], environment: Mapping[str, str]) -> LaunchOptions:
    """Read the command line; an error is a `UsageError`."""
    parser = make_parser(environment)

    def refuse(message: str) -> NoReturn:
        raise UsageError(message)

    parser.error = refuse  # type: ignore[method-assign]
    launch = _launch(parser.parse_args(words), environment)
    try:
        load_device(launch.gpu, launch.timing.of_gpu())
    except DeviceError as error:
        raise UsageError(str(error)) from error
    return launch


def _launch(options: argparse.Namespace, environment: Mapping[str, str]) -> LaunchOptions:
    _refuse_unsupported(options)
    try:
        timing = read_options(options)
    except TimingError as error:
        raise UsageError(str(error)) from error
    cluster = _cluster(options.cluster, timing.of_cluster())
    gpu = options.gpu or (cluster.gpu if cluster else GPU)
    gpus_per_node = cluster.gpus_per_node if cluster else _gpus_per_node(gpu, environment)
    nodes, ranks_per_node = _world(options, gpus_per_node)
    run_id, address, port = _rendezvous(options, nodes)
    hangs = hang.read_options(options)
    problem = hang.check(hangs, nodes * ranks_per_node)
    if problem is not None:
        raise UsageError(problem)
    timeout = options.shutdown_timeout
    if timeout is None:
        timeout = _whole_variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", environment, 30)
    world_size = nodes * ranks_per_node
    _check_trace_ranks(options.trace_ranks, world_size)
    injection = _injection(options, world_size)
    present = _present(options, world_size)
    if options.give_up_above is not None and (options.represent != "auto" or not timing.timeline):
        raise UsageError("--give-up-above needs --represent auto and a timeline")
    launch = LaunchOptions(
        command=_command(options, environment),
        script=options.training_script,
        module=options.module,
        own_python=_python(environment) == sys.executable and (options.run_path or not options.no_python),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        role=options.role,
        run_id=run_id,
        master_address=address,
        master_port=port,
        max_restarts=options.max_restarts,
        virtual_local_rank=options.virtual_local_rank,
        signals=_signals(options.signals_to_handle),
        shutdown_seconds=timeout,
        log_folder=Path(options.log_dir) if options.log_dir else None,
        redirects=_streams("--redirects", options.redirects),
        tee=_streams("--tee", options.tee),
        local_ranks=_local_ranks(options.local_ranks_filter),
        shown_ranks=_shown_ranks(options.ranks_filter, world_size),
        cluster=cluster.name if cluster else None,
        cluster_file=options.cluster,
        gpu=gpu,
        out=options.out,
        trace=not options.no_trace,
        preload=None if options.no_preload else tuple(filter(None, map(str.strip, options.preload.split(",")))),
        variables=_variables(options, gpus_per_node if cluster or gpus_per_node != GPUS_PER_NODE else None),
        timing=timing,
        hangs=hangs,
        injection=injection,
        stop_after=options.stop_after,
        record_steps=options.record_steps,
        ray=options.ray,
        ray_resources=options.ray_resources or {},
        give_up=options.give_up_above,
        finds_representatives=options.represent == "auto" and world_size > 1,
        may_find_representatives=options.represent is None and options.max_restarts == 0,
    )
    if present is None:
        return launch
    if set(present) <= set(injection.ranks):
        raise UsageError(
            f"--represent {options.represent}: a fault is injected into {ranks_text(present)}, so no present rank "
            "shows what absent ranks do; add a rank without a fault"
        )
    return launch.with_present(present)


def _present(options: argparse.Namespace, world_size: int) -> tuple[int, ...] | None:
    """The ranks of --represent; None: all, or not known yet."""
    text: str | None = options.represent
    if text is None or text == "all":
        return None
    if options.max_restarts:
        raise UsageError("--represent and --max-restarts exclude each other: a job with absent ranks is not restarted")
    if text == "auto":
        return None
    is_file = Path(text).is_file()
    try:
        listed = Path(text).read_text(encoding="utf-8") if is_file else text
        ranks = parse_ranks(",".join(re.split(r"[\s,]+", listed.strip())), repeated=True, world_size=world_size)
    except NoSuchRankError as error:
        raise UsageError(f"--represent {text}: {error}") from error
    except (OSError, ValueError) as error:
        where, others = (f"--represent {text}", "") if is_file else ("--represent", "; or write auto, all or a file")
        raise UsageError(f"{where}: {error}{others}") from error
    if ranks[0] != 0:
        raise UsageError(f"--represent {text}: rank 0 has to be among them: it hosts, logs and broadcasts in most jobs")
    return None if len(ranks) == world_size else ranks


def _check_trace_ranks(text: str | None, world_size: int) -> None:
    if text is None or text in ("all", "none"):
        return
    try:
        parse_ranks(text, repeated=True, world_size=world_size)
    except NoSuchRankError as error:
        raise UsageError(f"--trace-ranks {text}: {error}") from error
    except ValueError as error:
        raise UsageError(f"--trace-ranks {text}: expected ranks, e.g. 0,8-15, or all, or none") from error


def _injection(options: argparse.Namespace, world_size: int) -> Injection:
    chosen = injection_options.read_options(options)
    try:
        chosen.check(world_size, 1 + options.max_restarts, trace=not options.no_trace)
    except injection_options.FaultError as error:
        raise UsageError(f"--inject {error}") from error
    return chosen


def _refuse_unsupported(options: argparse.Namespace) -> None:
    for name, neutral in (
        ("event_log_handler", "null"),
        ("logs_specs", None),
        ("numa_binding", None),
        ("duplicate_stdout_filters", ""),
        ("duplicate_stderr_filters", ""),
    ):
        if getattr(options, name) != neutral:
            raise UsageError(f"--{name.replace('_', '-')} is not supported yet; leave it out")
    if options.rdzv_backend not in ("static", "c10d"):
        raise UsageError(f"--rdzv-backend {options.rdzv_backend} is not supported yet; use static or c10d")
    if options.ray == "":
        raise UsageError("--ray: expected the address of a Ray cluster, <host>:<port>, or auto")
    if options.ray_resources and options.ray is None:
        raise UsageError("--ray-resources needs --ray: without it, all ranks run on this machine")
    if options.node_rank != 0:
        raise UsageError(f"--node-rank {options.node_rank}: all nodes are virtual and run here; leave it out")


def _cluster(name_or_path: str | None, changes: Mapping[str, str]) -> Cluster | None:
    try:
        return None if name_or_path is None else load_cluster(name_or_path, changes)
    except ClusterError as error:
        raise UsageError(f"--cluster: {error}") from error


def fitting_cluster(device: Device) -> str:
    """The cluster of the catalogue to assume for a GPU."""
    if device.default_cluster is not None:
        return device.default_cluster
    if (device.nvlink_bandwidth or 0) >= _NVSWITCH_RATE:
        return _CLUSTER_OF_ARCHITECTURE.get(device.architecture, _WITHOUT_NVSWITCH)
    return _WITHOUT_NVSWITCH


def _gpus_per_node(gpu: str, environment: Mapping[str, str]) -> int:
    """Without a cluster: the number that the user sets, or that of the GPU's default cluster."""
    usual = GPUS_PER_NODE
    with suppress(DeviceError):  # the launcher loads the GPU again, and reports the error
        name = load_device(gpu).default_cluster
        if name is not None:
            try:
                usual = load_cluster(name).gpus_per_node
            except ClusterError as error:
                raise UsageError(f"--gpu {gpu}: default_cluster: {error}") from error
    return _whole_variable("MAYA_GPUS", environment, usual)


def _world(options: argparse.Namespace, gpus_per_node: int) -> tuple[int, int]:
    """Nodes and ranks per node, from --nproc, --nnodes and --nproc-per-node."""
    nodes = None if options.nnodes is None else _nodes(options.nnodes)
    per_node = None if options.nproc_per_node is None else _ranks_per_node(options.nproc_per_node, gpus_per_node)
    total = options.nproc
    if total is None:
        return nodes or 1, per_node or 1
    if nodes is not None and per_node is not None and nodes * per_node != total:
        raise UsageError(
            f"--nproc {total} contradicts --nnodes {nodes} x --nproc-per-node {per_node} = {nodes * per_node} ranks; "
            "give one of the two"
        )
    if per_node is None:
        per_node = min(total, gpus_per_node) if nodes is None else total // nodes
    nodes = nodes or -(-total // per_node)
    if nodes * per_node != total:
        raise UsageError(
            f"--nproc {total} does not fill {nodes} nodes evenly; change --nproc, --nnodes or --nproc-per-node "
            f"({gpus_per_node} GPUs per node unless said otherwise)"
        )
    return nodes, per_node


def _nodes(text: str) -> int:
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if match is None or int(match[1]) == 0:
        raise UsageError(f"--nnodes {text}: expected a number of nodes")
    if match[2] is not None and match[1] != match[2]:
        raise UsageError(f"--nnodes {text}: a varying number of nodes is not supported; give one number")
    return int(match[1])


def _ranks_per_node(text: str, gpus_per_node: int) -> int:
    if text in ("gpu", "auto"):
        return gpus_per_node
    if text == "cpu":
        return os.cpu_count() or 1
    if not re.fullmatch(r"[1-9]\d*", text):
        raise UsageError(f"--nproc-per-node {text}: expected a number, gpu, auto or cpu")
    return int(text)


def _rendezvous(options: argparse.Namespace, nodes: int) -> tuple[str, str, int | None]:
    """Run id, and the address of rank 0's store. torchrun invents an id where it chooses the address itself."""
    chooses = options.rdzv_backend == "static" and not options.rdzv_endpoint and options.master_port is None
    if options.standalone or (chooses and nodes == 1):
        return str(uuid.uuid4()), "127.0.0.1", None
    if options.rdzv_backend == "c10d":
        return options.rdzv_id, "127.0.0.1", None
    if not options.rdzv_endpoint:
        # torchrun's nodes must agree on a port, by default 29500; ours get theirs from this launcher.
        return options.rdzv_id, options.master_addr, _port("--master-port", options.master_port or 0) or None
    address, _, port = options.rdzv_endpoint.rpartition(":")
    if not address or not re.fullmatch(r"[0-9]+", port):
        raise UsageError(f"--rdzv-endpoint {options.rdzv_endpoint}: expected <host>:<port>")
    return options.rdzv_id, address, _port(f"--rdzv-endpoint {options.rdzv_endpoint}", int(port))


def _port(option: str, number: int) -> int:
    if not 0 <= number <= _LAST_PORT:
        raise UsageError(f"{option}: there is no port {number}; ports are 1 to {_LAST_PORT}, and 0 means any free one")
    return number


def _command(options: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, ...]:
    script, arguments = options.training_script, options.training_script_args
    if options.no_python and options.module:
        raise UsageError("--no-python and --module exclude each other")
    if options.no_python and not options.run_path:
        return (script, *arguments)
    return (_python(environment), "-u", *(["-m"] if options.module else []), script, *arguments)


def _python(environment: Mapping[str, str]) -> str:
    return environment.get("PYTHON_EXEC", sys.executable)


def _streams(option: str, text: str) -> StreamCodes:
    """A stream code for all local ranks ("3"), or by local rank ("0:3,1:2"; the others have none)."""

    def streams(code: str) -> StreamChoice:
        return StreamChoice(stdout=bool(int(code) & 1), stderr=bool(int(code) & 2))

    if re.fullmatch(r"[0-3]", text):
        return StreamCodes({}, streams(text))
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        pairs = [part.split(":") for part in text.split(",")]
        return StreamCodes({int(local_rank): streams(code) for local_rank, code in pairs}, streams("0"))
    raise UsageError(f"{option} {text}: expected 0, 1, 2 or 3, or one for each local rank, e.g. 0:3,1:2")


def _local_ranks(text: str) -> frozenset[int] | None:
    if text and not re.fullmatch(r"\d+(,\d+)*", text):
        raise UsageError(f"--local-ranks-filter {text}: expected local ranks with commas, e.g. 0,1")
    return frozenset(map(int, text.split(","))) if text else None


def _shown_ranks(text: str, world_size: int) -> frozenset[int] | None:
    try:
        return frozenset(parse_ranks(text, repeated=True, world_size=world_size)) if text else None
    except NoSuchRankError as error:
        raise UsageError(f"--ranks-filter {text}: {error}") from error
    except ValueError as error:
        raise UsageError(f"--ranks-filter: {error}") from error


def _signals(text: str) -> tuple[signal.Signals, ...]:
    chosen = []
    for name in filter(None, map(str.strip, text.split(","))):
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise UsageError(f"--signals-to-handle {text}: {name} is not a signal that can be handled")
        chosen.append(signal.Signals[name])
    return tuple(chosen)


def _whole_variable(name: str, environment: Mapping[str, str], otherwise: int) -> int:
    text = environment.get(name, str(otherwise))
    if not text.isdigit():
        raise UsageError(f"{name}={text}: expected a whole number")
    return int(text)


def _variables(options: argparse.Namespace, gpus_per_node: int | None) -> dict[str, str]:
    variables = {
        "MAYA_GPUS": gpus_per_node,
        "MAYA_COMPUTE": options.compute,
        "MAYA_COMPUTE_BYTES": options.compute_bytes,
        "MAYA_COPY_BYTES": options.copy_bytes,
        "MAYA_HOST_TENSORS": options.host_tensors,
        "MAYA_COLLECTIVE_BYTES": options.collective_bytes,
        "MAYA_STRICT_VALUES": "1" if options.strict_values else None,
        "MAYA_MOE_SKEW": None if options.moe_skew is None else round(options.moe_skew * 1000),
        "MAYA_MOE_SEED": options.moe_seed,
    }
    return {name: str(value) for name, value in variables.items() if value is not None}
