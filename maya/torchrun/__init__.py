"""maya-torchrun: torchrun, on virtual GPUs. Reads the command line, starts the script, says how it ended.

One rank for now. What a launcher of many ranks replaces is `_run_worker`; arguments, environment, log files, the
failure block and the summary are written for any number of ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from maya.devices import Device, DeviceError, load_device
from maya.torchrun.arguments import Launch, UsageError, parse
from maya.torchrun.environment import free_port, worker_variables
from maya.torchrun.failure import failure_block, failure_of, pass_on_error_file
from maya.torchrun.logs import line_prefix, make_log_folder, make_run_folder, make_worker_files
from maya.torchrun.worker import StartError, Worker
from rank_runtime.build import Build, BuildError, ensure_built
from rank_runtime.environment import VariableError, rank_environment

SUCCESS, FAILED, USAGE = 0, 1, 2
_RANK = 0


def main(words: Sequence[str] | None = None) -> int:
    """Exit code as torchrun's: 0 success, 1 a worker failed, 2 the job could not be started."""
    launch = parse(sys.argv[1:] if words is None else words, os.environ)
    try:
        _refuse_many_ranks(launch)
        device = load_device(launch.gpu)
        build = ensure_built(_say)
        if build.observer is None:
            _say(f"no op observer, so ops are neither named nor computed: {build.observer_problem}")
        run_folder = make_run_folder(launch)
        return _run(launch, device, build, run_folder)
    except (UsageError, DeviceError, BuildError, VariableError, StartError) as error:
        _say(str(error))
        return USAGE


def _say(line: str) -> None:
    print(f"maya-torchrun: {line}", file=sys.stderr, flush=True)


def _refuse_many_ranks(launch: Launch) -> None:
    if launch.world_size > 1:
        raise UsageError(
            f"{launch.world_size} ranks ({launch.nodes} x {launch.ranks_per_node}): "
            "more than one rank is not there yet; use --nproc 1"
        )


def _run(launch: Launch, device: Device, build: Build, run_folder: Path) -> int:
    """Attempts until one succeeds, the restarts are used up, or somebody stops it."""
    log_folder = make_log_folder(launch, run_folder)
    for attempt in range(launch.max_restarts + 1):
        last = attempt == launch.max_restarts
        trace_file = run_folder / (f"rank{_RANK}.trace" if attempt == 0 else f"rank{_RANK}-attempt{attempt}.trace")
        exit_code = _run_worker(launch, device, build, log_folder, attempt, trace_file, last=last)
        if launch.trace:
            _summarise(trace_file, device)
        if exit_code is not None:
            return exit_code
        _say(f"restarting the worker: {attempt + 1} of {launch.max_restarts} restarts")
    raise AssertionError("the last attempt has an exit code")


def _run_worker(
    launch: Launch, device: Device, build: Build, log_folder: Path, attempt: int, trace_file: Path, *, last: bool
) -> int | None:
    """One attempt: the launcher's exit code, or None if the worker is to be restarted."""
    inherited = dict(os.environ)
    files = make_worker_files(launch, log_folder, _RANK, attempt)
    port = free_port() if launch.master_port is None else launch.master_port
    chosen = {**launch.variables, "MAYA_TRACE": str(trace_file) if launch.trace else ""}
    environment = {
        **inherited,
        **worker_variables(launch, _RANK, port, attempt, files.error_file, inherited),
        **rank_environment(build, device.cuda_properties(), chosen, inherited),
    }
    worker = Worker(launch.signals, launch.shutdown_seconds)
    outcome = worker.run(launch.command, environment, files, line_prefix(launch, _RANK, inherited))
    if outcome.exit_code == 0 and outcome.stopped_by is None:
        return SUCCESS
    if outcome.exit_code != 0:
        failure = failure_of(outcome, _RANK, _RANK % launch.ranks_per_node, files.error_file)
        print(failure_block(launch.script, [failure]), file=sys.stderr, flush=True)
        pass_on_error_file(failure, inherited.get("TORCHELASTIC_ERROR_FILE"))
    return FAILED if last or outcome.stopped_by is not None else None


def _summarise(trace_file: Path, device: Device) -> None:
    from maya.torchrun.summary import summary  # brings numpy, which the launcher does not need to start a script

    for line in summary(trace_file, device.name):
        _say(line)
