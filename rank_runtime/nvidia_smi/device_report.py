"""`nvidia-smi -q`: everything about each GPU, as text or, with -x, as XML. In: GPUs, wanted sections. Out: text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rank_runtime.nvidia_smi.command_line import INVALID_ARGUMENT, Refusal
from rank_runtime.nvidia_smi.gpu_fields import CLOCKS, compute_mode, ecc_errors, enabled, performance_state, watts
from rank_runtime.nvidia_smi.virtual_gpus import MIB, Gpu, System

_COLUMN = 42  # of the colon


class ReportEntry:
    """A line, or a heading with lines below it. `tag` names it in XML."""

    def __init__(self, label: str, tag: str, value: str | None = None, below: Iterable[ReportEntry] = ()) -> None:
        self.label = label
        self.tag = tag
        self.value = value
        self.below = tuple(below)

    def lines(self, depth: int) -> list[str]:
        begin = " " * 4 * depth + self.label
        if not self.below:
            return [f"{begin:<{_COLUMN}}: {self.value if self.value is not None else 'N/A'}"]
        return [begin, *(line for entry in self.below for line in entry.lines(depth + 1))]

    def xml(self, depth: int) -> list[str]:
        space = "\t" * depth
        if not self.below:
            value = self.value if self.value is not None else "N/A"
            return [f"{space}<{self.tag}>{_escaped(value)}</{self.tag}>"]
        inside = (line for entry in self.below for line in entry.xml(depth + 1))
        return [f"{space}<{self.tag}>", *inside, f"{space}</{self.tag}>"]


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _with_unit(value: int | str | None, unit: str) -> str | None:
    return None if value is None else f"{value} {unit}"


def _identity(gpu: Gpu) -> list[ReportEntry]:
    brand, mig, ecc = gpu.number("Brand"), gpu.pair("MigMode"), gpu.pair("EccMode")
    architecture = gpu.number("Architecture")
    pair = ("current_mig", "pending_mig")
    architectures = {5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell"}
    return [
        ReportEntry("Product Name", "product_name", gpu.name),
        ReportEntry(
            "Product Brand", "product_brand", {2: "Tesla", 14: "NVIDIA"}.get(brand if brand is not None else -1)
        ),
        ReportEntry("Product Architecture", "product_architecture", architectures.get(architecture or 0)),
        ReportEntry("Display Mode", "display_mode", enabled(gpu.number("DisplayMode"))),
        ReportEntry("Display Active", "display_active", enabled(gpu.number("DisplayActive"))),
        ReportEntry("Persistence Mode", "persistence_mode", enabled(gpu.number("PersistenceMode"))),
        _current_and_pending("MIG Mode", "mig_mode", mig, pair),
        ReportEntry("Serial Number", "serial", gpu.serial),
        ReportEntry("GPU UUID", "uuid", gpu.uuid),
        ReportEntry("Minor Number", "minor_number", str(gpu.number("MinorNumber"))),
        ReportEntry("VBIOS Version", "vbios_version"),
        ReportEntry("MultiGPU Board", "multigpu_board", "Yes" if gpu.number("MultiGpuBoard") else "No"),
        ReportEntry(
            "ECC Mode", "ecc_mode", below=_current_and_pending("", "", ecc, ("current_ecc", "pending_ecc")).below
        ),
        ReportEntry("PCI", "pci", below=_pci(gpu)),
        ReportEntry("Fan Speed", "fan_speed", _with_unit(gpu.number("FanSpeed"), "%")),
        ReportEntry("Performance State", "performance_state", performance_state(gpu)),
    ]


def _current_and_pending(label: str, tag: str, pair: tuple[int, int] | None, tags: tuple[str, str]) -> ReportEntry:
    current, pending = (None, None) if pair is None else (enabled(pair[0]), enabled(pair[1]))
    return ReportEntry(
        label, tag, below=(ReportEntry("Current", tags[0], current), ReportEntry("Pending", tags[1], pending))
    )


def _pci(gpu: Gpu) -> list[ReportEntry]:
    def link(label: str, tag: str, question: str, unit: str) -> ReportEntry:
        values = [gpu.number(f"{which}PcieLink{question}") for which in ("Max", "Curr")]
        texts = [None if value is None else f"{value}{unit}" for value in values]
        below = (ReportEntry("Max", f"max_{tag}", texts[0]), ReportEntry("Current", f"current_{tag}", texts[1]))
        return ReportEntry(label, f"pcie_{tag}", below=below)

    return [
        ReportEntry("Bus", "pci_bus", f"0x{gpu.pci.bus:02X}"),
        ReportEntry("Device", "pci_device", f"0x{gpu.pci.device:02X}"),
        ReportEntry("Domain", "pci_domain", f"0x{gpu.pci.domain:04X}"),
        ReportEntry("Bus Id", "pci_bus_id", gpu.bus_id),
        ReportEntry(
            "GPU Link Info",
            "pci_gpu_link_info",
            below=(
                link("PCIe Generation", "link_gen", "Generation", ""),
                link("Link Width", "link_width", "Width", "x"),
            ),
        ),
    ]


def _memory(gpu: Gpu) -> list[ReportEntry]:
    entries = []
    for label, tag, question in (
        ("FB Memory Usage", "fb_memory_usage", "MemoryInfo"),
        ("BAR1 Memory Usage", "bar1_memory_usage", "BAR1MemoryInfo"),
    ):
        total, used, free = ([_with_unit(size // MIB, "MiB") for size in gpu.memory(question) or ()] or [None] * 3)[:3]
        below = [
            ReportEntry("Total", "total", total),
            ReportEntry("Used", "used", used),
            ReportEntry("Free", "free", free),
        ]
        if question == "MemoryInfo":
            below.insert(1, ReportEntry("Reserved", "reserved", "0 MiB"))
        entries.append(ReportEntry(label, tag, below=below))
    return entries


def _utilization(gpu: Gpu) -> list[ReportEntry]:
    rates = gpu.utilization() or (None, None)
    encoder, decoder = gpu.pair("EncoderUtilization"), gpu.pair("DecoderUtilization")
    below = (
        ReportEntry("GPU", "gpu_util", _with_unit(rates[0], "%")),
        ReportEntry("Memory", "memory_util", _with_unit(rates[1], "%")),
        ReportEntry("Encoder", "encoder_util", _with_unit(encoder and encoder[0], "%")),
        ReportEntry("Decoder", "decoder_util", _with_unit(decoder and decoder[0], "%")),
    )
    return [ReportEntry("Utilization", "utilization", below=below)]


def _ecc(gpu: Gpu) -> list[ReportEntry]:
    parts = []
    for counter, (label, tag) in enumerate((("Volatile", "volatile"), ("Aggregate", "aggregate"))):
        below = (
            ReportEntry("Total Correctable", "total_correctable", ecc_errors(gpu, 0, counter)),
            ReportEntry("Total Uncorrectable", "total_uncorrectable", ecc_errors(gpu, 1, counter)),
        )
        parts.append(ReportEntry(label, tag, below=below))
    return [ReportEntry("ECC Errors", "ecc_errors", below=parts)]


def _temperature(gpu: Gpu) -> list[ReportEntry]:
    def threshold(number: int) -> str | None:
        return _with_unit(gpu.number("TemperatureThreshold", number), "C")

    below = (
        ReportEntry("GPU Current Temp", "gpu_temp", _with_unit(gpu.number("Temperature", 0), "C")),
        ReportEntry("GPU Shutdown Temp", "gpu_temp_max_threshold", threshold(0)),
        ReportEntry("GPU Slowdown Temp", "gpu_temp_slow_threshold", threshold(1)),
        ReportEntry("GPU Max Operating Temp", "gpu_temp_max_gpu_threshold", threshold(3)),
        ReportEntry("Memory Current Temp", "memory_temp", _with_unit(gpu.field(82), "C")),
        ReportEntry("Memory Max Operating Temp", "gpu_temp_max_mem_threshold", threshold(2)),
    )
    return [ReportEntry("Temperature", "temperature", below=below)]


def _power(gpu: Gpu) -> list[ReportEntry]:
    def limit(question: str) -> str | None:
        return _with_unit(watts(gpu.number(question)), "W")

    lowest, highest = gpu.pair("PowerManagementLimitConstraints") or (None, None)
    below = (
        ReportEntry("Average Power Draw", "average_power_draw", _with_unit(watts(gpu.field(185)), "W")),
        ReportEntry("Instantaneous Power Draw", "instant_power_draw", _with_unit(watts(gpu.field(186)), "W")),
        ReportEntry("Current Power Limit", "current_power_limit", limit("EnforcedPowerLimit")),
        ReportEntry("Requested Power Limit", "requested_power_limit", limit("PowerManagementLimit")),
        ReportEntry("Default Power Limit", "default_power_limit", limit("PowerManagementDefaultLimit")),
        ReportEntry("Min Power Limit", "min_power_limit", _with_unit(watts(lowest), "W")),
        ReportEntry("Max Power Limit", "max_power_limit", _with_unit(watts(highest), "W")),
    )
    return [ReportEntry("GPU Power Readings", "gpu_power_readings", below=below)]


def _clocks(gpu: Gpu) -> list[ReportEntry]:
    def group(label: str, tag: str, question: str, names: Iterable[str]) -> ReportEntry:
        below = []
        for name in names:
            short = {"memory": "mem"}.get(name, name)
            text = _with_unit(gpu.number(question, CLOCKS[name]), "MHz")
            below.append(ReportEntry(name.upper() if name == "sm" else name.title(), f"{short}_clock", text))
        return ReportEntry(label, tag, below=below)

    two = ("graphics", "memory")
    return [
        group("Clocks", "clocks", "ClockInfo", CLOCKS),
        group("Applications Clocks", "applications_clocks", "ApplicationsClock", two),
        group("Default Applications Clocks", "default_applications_clocks", "DefaultApplicationsClock", two),
        group("Max Clocks", "max_clocks", "MaxClockInfo", CLOCKS),
    ]


def _compute(gpu: Gpu) -> list[ReportEntry]:
    return [ReportEntry("Compute Mode", "compute_mode", compute_mode(gpu))]


def _performance(gpu: Gpu) -> list[ReportEntry]:
    return [ReportEntry("Performance State", "performance_state", performance_state(gpu))]


def _processes(gpu: Gpu) -> list[ReportEntry]:
    entries = []
    for process in gpu.processes():
        below = (
            ReportEntry("GPU instance ID", "gpu_instance_id"),
            ReportEntry("Compute instance ID", "compute_instance_id"),
            ReportEntry("Process ID", "pid", str(process.pid)),
            ReportEntry("Type", "type", "C"),
            ReportEntry("Name", "process_name", process.name),
            ReportEntry("Used GPU Memory", "used_memory", f"{process.memory // MIB} MiB"),
        )
        entries.append(ReportEntry("Process", "process_info", below=below))
    return [ReportEntry("Processes", "processes", None if entries else "None", entries)]


# Names of -d, in the order of the report. PERFORMANCE is part of the identity in the whole report.
_SECTIONS: dict[str, Callable[[Gpu], list[ReportEntry]]] = {
    "PERFORMANCE": _performance,
    "MEMORY": _memory,
    "UTILIZATION": _utilization,
    "ECC": _ecc,
    "TEMPERATURE": _temperature,
    "POWER": _power,
    "CLOCK": _clocks,
    "COMPUTE": _compute,
    "PIDS": _processes,
}


def _entries(gpu: Gpu, wanted: list[str]) -> list[ReportEntry]:
    if wanted:
        return [entry for name, section in _SECTIONS.items() if name in wanted for entry in section(gpu)]
    sections = [section(gpu) for name, section in _SECTIONS.items() if name != "PERFORMANCE"]
    return [*_identity(gpu), *(entry for section in sections for entry in section)]


def report(system: System, gpus: list[Gpu], wanted: list[str], as_xml: bool) -> str:
    """`wanted`: names of sections; empty: the whole report."""
    sections = [name.upper() for name in wanted]
    for name in sections:
        if name not in _SECTIONS:
            raise Refusal(f'"{name}" is not a valid section of -d. Here: {", ".join(_SECTIONS)}', INVALID_ARGUMENT)
    head = (
        ReportEntry("Timestamp", "timestamp", time.strftime("%a %b %d %H:%M:%S %Y")),
        ReportEntry("Driver Version", "driver_version", system.driver_version),
        ReportEntry("CUDA Version", "cuda_version", system.cuda_version),
    )
    count = ReportEntry("Attached GPUs", "attached_gpus", str(len(system.gpus)))
    return (_xml if as_xml else _text)(head, count, [(gpu, _entries(gpu, sections)) for gpu in gpus])


def _text(head: Iterable[ReportEntry], count: ReportEntry, gpus: list[tuple[Gpu, list[ReportEntry]]]) -> str:
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [line for entry in head for line in entry.lines(0)]
    lines += ["", *count.lines(0)]
    for gpu, entries in gpus:
        lines += [f"GPU {gpu.bus_id}", *(line for entry in entries for line in entry.lines(1)), ""]
    return "\n".join(lines) + "\n"


def _xml(head: Iterable[ReportEntry], count: ReportEntry, gpus: list[tuple[Gpu, list[ReportEntry]]]) -> str:
    lines = ['<?xml version="1.0" ?>', "<nvidia_smi_log>"]
    lines += [line for entry in (*head, count) for line in entry.xml(1)]
    for gpu, entries in gpus:
        lines.append(f'\t<gpu id="{gpu.bus_id}">')
        lines += [line for entry in entries for line in entry.xml(2)]
        lines.append("\t</gpu>")
    return "\n".join([*lines, "</nvidia_smi_log>"]) + "\n"
