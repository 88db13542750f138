"""`nvidia-smi topo -m` and `nvidia-smi nvlink --status`. In: the GPUs of the node. Out: text."""

from __future__ import annotations

from rank_runtime.nvidia_smi.virtual_gpus import Gpu

_LEVELS = {0: "X", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection over PCIe and the link between the node's CPUs
  NODE = Connection over PCIe and the host bridges of one CPU
  PHB  = Connection over PCIe and one host bridge
  PXB  = Connection over several PCIe switches
  PIX  = Connection over one PCIe switch
  NV#  = Connection over # NVLinks
"""


def matrix(gpus: list[Gpu]) -> str:
    names = [f"GPU{gpu.index}" for gpu in gpus]
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for gpu in gpus:
        cells = [_connection(gpu, other) for other in gpus]
        lines.append("\t".join([f"GPU{gpu.index}", *cells, _ranges(gpu.processors()), "N/A", "\tN/A"]))
    return "\n".join(lines) + "\n" + _LEGEND


def _connection(gpu: Gpu, other: Gpu) -> str:
    if gpu is other:
        return " X "
    links = gpu.links()
    level = gpu.common_ancestor(other)
    return f"NV{links}" if links else _LEVELS.get(level if level is not None else -1, "N/A")


def _ranges(numbers: list[int]) -> str:
    """0-3,8 for 0, 1, 2, 3, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs) or "N/A"


def status(gpus: list[Gpu]) -> str:
    lines = []
    for gpu in gpus:
        lines.append(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})")
        speed = gpu.link_speed()
        lines += [f"\t Link {link}: {(speed or 0) / 1000:.3f} GB/s" for link in range(gpu.links())]
    return "".join(f"{line}\n" for line in lines)
