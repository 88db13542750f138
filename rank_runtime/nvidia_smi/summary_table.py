"""The table that nvidia-smi prints without options, the list of -L, and --version. In: GPUs. Out: text."""

from __future__ import annotations

import time

from rank_runtime.nvidia_smi.gpu_fields import compute_mode, ecc_errors, enabled, performance_state
from rank_runtime.nvidia_smi.virtual_gpus import MIB, Gpu, System

_WIDTHS = (41, 24, 22)
_INSIDE = sum(_WIDTHS) + len(_WIDTHS) - 1


def _rule(mark: str = "-") -> str:
    return "+" + "+".join(mark * width for width in _WIDTHS) + "+"


def _box(mark: str = "-") -> str:
    return "+" + mark * _INSIDE + "+"


def _line(*cells: str) -> str:
    return "|" + "|".join(f"{cell:<{width}}"[:width] for cell, width in zip(cells, _WIDTHS, strict=True)) + "|"


def _wide(text: str) -> str:
    return f"|{text:<{_INSIDE}}|"


def table(system: System, gpus: list[Gpu]) -> str:
    title = f" NVIDIA-SMI {system.driver_version:<22} Driver Version: {system.driver_version:<14} "
    title += f"CUDA Version: {system.cuda_version:<9}"
    lines = [f"{time.strftime('%a %b %d %H:%M:%S %Y')}       ", _box(), _wide(title), _rule()]
    lines += [
        _line(" GPU  Name                 Persistence-M ", " Bus-Id          Disp.A ", " Volatile Uncorr. ECC "),
        _line(" Fan  Temp   Perf          Pwr:Usage/Cap ", "           Memory-Usage ", " GPU-Util  Compute M. "),
        _line("", "", f"{'MIG M. ':>22}"),
        "|" + "+".join("=" * width for width in _WIDTHS) + "|",
    ]
    for gpu in gpus:
        lines += [*_gpu_lines(gpu), _rule()]
    return "\n".join([*lines, *_process_lines(gpus)]) + "\n"


def _on(value: int | None) -> str:
    return "N/A" if value is None else "On" if value else "Off"


def _watts(milliwatts: int | None) -> str:
    return "N/A" if milliwatts is None else f"{milliwatts / 1000:.0f}W"


def _gpu_lines(gpu: Gpu) -> list[str]:
    memory, rates, mig = gpu.memory(), gpu.utilization(), gpu.pair("MigMode")
    celsius = gpu.number("Temperature", 0)
    usage = f"{memory[1] // MIB}MiB / {memory[0] // MIB:>6}MiB" if memory else "N/A"
    power = f"{_watts(gpu.number('PowerUsage')):>7} / {_watts(gpu.number('EnforcedPowerLimit')):>5}"
    temperature = "N/A" if celsius is None else f"{celsius}C"
    utilization = f"{rates[0]}%" if rates else "N/A"
    return [
        _line(
            f" {gpu.index:>3}  {gpu.name[:27]:<27}{_on(gpu.number('PersistenceMode')):>6}",
            f" {gpu.bus_id:>18} {_on(gpu.number('DisplayActive')):<4}",
            f" {ecc_errors(gpu, 1, 0) or 'N/A':>20} ",
        ),
        _line(
            f" N/A  {temperature:>4}    {performance_state(gpu) or 'N/A':<4}       {power:>14} ",
            f" {usage:>22} ",
            f" {utilization:>7} {compute_mode(gpu) or 'N/A':>12} ",
        ),
        _line("", "", f" {(enabled(mig[0]) if mig else None) or 'N/A':>20} "),
    ]


def _process_lines(gpus: list[Gpu]) -> list[str]:
    lines = [
        " " * (_INSIDE + 2),
        _box(),
        _wide(" Processes:"),
        _wide("  GPU   GI   CI              PID   Type   Process name                        GPU Memory "),
        _wide("        ID   ID                                                               Usage      "),
        "|" + "=" * _INSIDE + "|",
    ]
    found = [(gpu, process) for gpu in gpus for process in gpu.processes()]
    for gpu, process in found:
        name = process.name if len(process.name) <= 30 else "..." + process.name[-27:]
        row = f" {gpu.index:>4}   N/A  N/A {process.pid:>15}      C   {name:<30} "
        lines.append(_wide(row + f"{f'{process.memory // MIB}MiB':>{_INSIDE - len(row) - 1}} "))
    if not found:
        lines.append(_wide("  No running processes found"))
    return [*lines, _box()]


def names(gpus: list[Gpu]) -> str:
    return "".join(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})\n" for gpu in gpus)


def version(system: System) -> str:
    return (
        f"NVIDIA-SMI version  : {system.driver_version}\nNVML version        : {system.nvml_version}\n"
        f"DRIVER version      : {system.driver_version}\nCUDA Version        : {system.cuda_version}\n"
    )
