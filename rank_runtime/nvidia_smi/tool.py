"""One call of the tool. In: the path of NVML, the arguments. Out: text on stdout or in a file, and the exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from rank_runtime.nvidia_smi import device_report, gpu_fields, links, summary_table
from rank_runtime.nvidia_smi.command_line import NO_LIBRARY, NOT_FOUND, Refusal, Request, parse
from rank_runtime.nvidia_smi.virtual_gpus import Gpu, System

_HELP = """\
NVIDIA System Management Interface of Maya: it shows the virtual GPUs of this node.

  nvidia-smi                                 a table of all GPUs and the processes that hold memory
  nvidia-smi -L                              names and UUIDs
  nvidia-smi -q [-d SECTIONS] [-x]           everything about each GPU; as XML
  nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]
                                             fields as CSV; --help-query-gpu lists them
  nvidia-smi --query-compute-apps=FIELDS --format=...
  nvidia-smi --query-supported-clocks=FIELDS --format=...
  nvidia-smi topo -m                         connections between the GPUs
  nvidia-smi nvlink --status                 NVLinks of each GPU
  nvidia-smi --version

  -i, --id=IDS           only these GPUs: indices, UUIDs or bus ids, separated by commas
  -f, --filename=FILE    write to a file
  -l, --loop=SECONDS     repeat (-lms, --loop-ms=MILLISECONDS)
"""


def run(library: str, arguments: list[str]) -> int:
    """Returns the exit code."""
    try:
        request = parse(arguments)
        if "help" in request.options:
            return _print(_HELP)
        if "help-gpu" in request.options:
            return _print(gpu_fields.help_gpu_fields())
        for option in ("help-apps", "help-clocks"):
            if option in request.options:
                return _print(gpu_fields.help_row_fields(option))
        if path := request.options.get("file"):
            with Path(path).open("w", encoding="utf-8") as file:
                _show(request, library, file.write, file.flush)
        else:
            _show(request, library, sys.stdout.write, sys.stdout.flush)
        return 0
    except Refusal as refusal:
        print(refusal)
        return refusal.exit_code
    except OSError as error:
        print(f"maya: nvidia-smi: {error}", file=sys.stderr)
        return NO_LIBRARY
    except KeyboardInterrupt:
        return 0


def _show(request: Request, library: str, write: Callable[[str], object], flush: Callable[[], object]) -> None:
    seconds = request.seconds
    while True:
        write(_answer(request, System(library)))
        flush()
        if seconds is None:
            return
        time.sleep(seconds)
        if "format" in request.options:  # one header is enough
            request.options["format"] += ",noheader"


def _print(text: str) -> int:
    sys.stdout.write(text)
    return 0


def _answer(request: Request, system: System) -> str:
    options = request.options
    gpus = _chosen(request, system)
    if "version" in options:
        return summary_table.version(system)
    if "list" in options:
        return summary_table.names(gpus)
    if "topo" in options:
        return links.matrix(gpus)
    if "nvlink" in options:
        return links.status(gpus)
    if "query-gpu" in options:
        return gpu_fields.query_gpus(request, gpus)
    if "query-apps" in options:
        return gpu_fields.query_processes(request, gpus)
    if "query-clocks" in options:
        return gpu_fields.query_clocks(request, gpus)
    if "query" in options:
        return device_report.report(system, gpus, request.items("display"), "xml" in options)
    return summary_table.table(system, gpus)


def _chosen(request: Request, system: System) -> list[Gpu]:
    if "id" not in request.options:
        return system.gpus
    chosen = [gpu for name in request.items("id") for gpu in system.gpus if _is_called(gpu, name)]
    if not chosen:
        raise Refusal("No devices were found", NOT_FOUND)
    return sorted(chosen, key=lambda gpu: gpu.index)


def _is_called(gpu: Gpu, name: str) -> bool:
    short = gpu.bus_id.lower().removeprefix("0000")
    return name in (str(gpu.index), gpu.uuid, gpu.serial) or name.lower() in (gpu.bus_id.lower(), short, short[5:])
