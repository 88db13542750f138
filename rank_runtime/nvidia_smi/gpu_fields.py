"""The fields of --query-gpu, --query-compute-apps and --query-supported-clocks, and their CSV.

In: names of fields. Out: lines of text; a name that NVIDIA's tool does not have is refused with its message. Fields
that the tool has and NVML does not answer are [N/A].
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rank_runtime.nvidia_smi.command_line import INVALID_ARGUMENT, Refusal, Request
from rank_runtime.nvidia_smi.virtual_gpus import MIB, Gpu, Process

UNKNOWN = "[N/A]"
CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}  # as NVML numbers them
_CURRENT_LINK_WIDTH, _HIGHEST_LINK_WIDTH = "CurrPcieLinkWidth", "MaxPcieLinkWidth"
_EVENTS = {  # bits of nvmlDeviceGetCurrentClocksEventReasons
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "sw_thermal_slowdown": 0x20,
    "sync_boost": 0x10,
}


def enabled(value: int | None) -> str | None:
    return None if value is None else "Enabled" if value else "Disabled"


def watts(milliwatts: int | None) -> str | None:
    return None if milliwatts is None else f"{milliwatts / 1000:.2f}"


def mebibytes(size: int | None) -> str | None:
    return None if size is None else str(size // MIB)


def as_text(value: int | None) -> str | None:
    return None if value is None else str(value)


class Field:
    """One column."""

    def __init__(self, name: str, unit: str, read: Callable[[Gpu], str | None], aliases: tuple[str, ...]) -> None:
        self.name = name
        self.unit = unit
        self.read = read
        self.aliases = aliases

    @property
    def title(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def cell(self, value: str | None, with_unit: bool) -> str:
        if value is None:
            return UNKNOWN
        return f"{value} {self.unit}" if self.unit and with_unit else value


def _number(question: str, *arguments: int) -> Callable[[Gpu], str | None]:
    return lambda gpu: as_text(gpu.number(question, *arguments))


def _switch(question: str) -> Callable[[Gpu], str | None]:
    return lambda gpu: enabled(gpu.number(question))


def _of_pair(question: str, place: int, form: Callable[[int | None], str | None]) -> Callable[[Gpu], str | None]:
    def read(gpu: Gpu) -> str | None:
        pair = gpu.pair(question)
        return form(None if pair is None else pair[place])

    return read


def _memory(place: int) -> Callable[[Gpu], str | None]:
    def read(gpu: Gpu) -> str | None:
        memory = gpu.memory()
        return None if memory is None else mebibytes(memory[place])

    return read


def _utilization(place: int) -> Callable[[Gpu], str | None]:
    def read(gpu: Gpu) -> str | None:
        rates = gpu.utilization()
        return None if rates is None else str(rates[place])

    return read


def _power(question: str) -> Callable[[Gpu], str | None]:
    return lambda gpu: watts(gpu.number(question))


def _power_field(number: int) -> Callable[[Gpu], str | None]:
    return lambda gpu: watts(gpu.field(number))


def _event(bit: int) -> Callable[[Gpu], str | None]:
    def read(gpu: Gpu) -> str | None:
        reasons = gpu.long("CurrentClocksEventReasons")
        return None if reasons is None else "Active" if reasons & bit else "Not Active"

    return read


def _active_events(gpu: Gpu) -> str | None:
    reasons = gpu.long("CurrentClocksEventReasons")
    return None if reasons is None else f"0x{reasons:016X}"


def ecc_errors(gpu: Gpu, kind: int, counter: int) -> str | None:
    """Kind 0: corrected, 1: uncorrected. Counter 0: since the driver was loaded, 1: ever."""
    return as_text(gpu.long("TotalEccErrors", kind, counter))


def performance_state(gpu: Gpu) -> str | None:
    state = gpu.number("PerformanceState")
    return None if state is None else f"P{state}"


def compute_mode(gpu: Gpu) -> str | None:
    mode = gpu.number("ComputeMode")
    return None if mode is None else ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")[mode]


def timestamp() -> str:
    now = time.time()
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"


def _not_answered(gpu: Gpu) -> str | None:
    return None


def _gpu_fields() -> Iterable[Field]:
    def field(name: str, read: Callable[[Gpu], str | None], unit: str = "", *aliases: str) -> Field:
        return Field(name, unit, read, aliases)

    yield field("timestamp", lambda gpu: timestamp())
    yield field("driver_version", lambda gpu: gpu.system.driver_version)
    yield field("count", lambda gpu: str(len(gpu.system.gpus)))
    yield field("name", lambda gpu: gpu.name, "", "gpu_name")
    yield field("serial", lambda gpu: gpu.serial, "", "gpu_serial")
    yield field("uuid", lambda gpu: gpu.uuid, "", "gpu_uuid")
    yield field("pci.bus_id", lambda gpu: gpu.bus_id, "", "gpu_bus_id")
    yield field("pci.domain", lambda gpu: f"0x{gpu.pci.domain:04X}")
    yield field("pci.bus", lambda gpu: f"0x{gpu.pci.bus:02X}")
    yield field("pci.device", lambda gpu: f"0x{gpu.pci.device:02X}")
    yield field("pci.device_id", lambda gpu: f"0x{gpu.pci.device_id:08X}")
    yield field("pci.sub_device_id", lambda gpu: f"0x{gpu.pci.subsystem_id:08X}")
    for name, question in (("current", "Curr"), ("gpucurrent", "Curr"), ("max", "Max"), ("gpumax", "GpuMax")):
        yield field(f"pcie.link.gen.{name}", _number(f"{question}PcieLinkGeneration"))
    yield field("pcie.link.width.current", _number(_CURRENT_LINK_WIDTH))
    yield field("pcie.link.width.max", _number(_HIGHEST_LINK_WIDTH))
    yield field("index", lambda gpu: str(gpu.index))
    yield field("display_mode", _switch("DisplayMode"), "", "display_attached")
    yield field("display_active", _switch("DisplayActive"))
    yield field("persistence_mode", _switch("PersistenceMode"))
    yield field("pstate", performance_state)
    yield field("clocks_event_reasons.active", _active_events, "", "clocks_throttle_reasons.active")
    for name, bit in _EVENTS.items():
        yield field(f"clocks_event_reasons.{name}", _event(bit), "", f"clocks_throttle_reasons.{name}")
    yield field("memory.total", _memory(0), "MiB")
    yield field("memory.reserved", lambda gpu: "0", "MiB")  # NVML's second memory structure says so, too
    yield field("memory.used", _memory(1), "MiB")
    yield field("memory.free", _memory(2), "MiB")
    yield field("compute_mode", compute_mode)
    yield field("compute_cap", Gpu.capability)
    yield field("utilization.gpu", _utilization(0), "%")
    yield field("utilization.memory", _utilization(1), "%")
    yield field("utilization.encoder", _of_pair("EncoderUtilization", 0, as_text), "%")
    yield field("utilization.decoder", _of_pair("DecoderUtilization", 0, as_text), "%")
    yield field("ecc.mode.current", _of_pair("EccMode", 0, enabled))
    yield field("ecc.mode.pending", _of_pair("EccMode", 1, enabled))
    for kind, kind_name in enumerate(("corrected", "uncorrected")):
        for counter, counter_name in enumerate(("volatile", "aggregate")):
            yield field(
                f"ecc.errors.{kind_name}.{counter_name}.total",
                lambda gpu, kind=kind, counter=counter: ecc_errors(gpu, kind, counter),  # type: ignore[misc]
            )
    yield field("temperature.gpu", _number("Temperature", 0))
    yield field("temperature.memory", lambda gpu: as_text(gpu.field(82)))
    yield field("power.management", _switch("PowerManagementMode"))
    yield field("power.draw", _power("PowerUsage"), "W")
    yield field("power.draw.average", _power_field(185), "W")
    yield field("power.draw.instant", _power_field(186), "W")
    yield field("power.limit", _power("PowerManagementLimit"), "W")
    yield field("enforced.power.limit", _power("EnforcedPowerLimit"), "W")
    yield field("power.default_limit", _power("PowerManagementDefaultLimit"), "W")
    yield field("power.min_limit", _of_pair("PowerManagementLimitConstraints", 0, watts), "W")
    yield field("power.max_limit", _of_pair("PowerManagementLimitConstraints", 1, watts), "W")
    short = {"graphics": "gr", "sm": "sm", "memory": "mem", "video": "video"}
    for name, number in CLOCKS.items():
        aliases = {f"clocks.{short[name]}", f"clocks.{name}"}
        yield field(f"clocks.current.{name}", _number("ClockInfo", number), "MHz", *aliases)
    for name in ("graphics", "memory"):
        alias = f"clocks.applications.{short[name]}"
        yield field(f"clocks.applications.{name}", _number("ApplicationsClock", CLOCKS[name]), "MHz", alias)
        alias = f"clocks.default_applications.{short[name]}"
        question = "DefaultApplicationsClock"
        yield field(f"clocks.default_applications.{name}", _number(question, CLOCKS[name]), "MHz", alias)
    for name in ("graphics", "sm", "memory"):
        aliases = {f"clocks.max.{short[name]}"} - {f"clocks.max.{name}"}
        yield field(f"clocks.max.{name}", _number("MaxClockInfo", CLOCKS[name]), "MHz", *aliases)
    yield field("mig.mode.current", _of_pair("MigMode", 0, enabled))
    yield field("mig.mode.pending", _of_pair("MigMode", 1, enabled))
    for name in _NEVER_ANSWERED.split():
        yield field(name, _not_answered, "%" if name == "fan.speed" else "")


# Fields of NVIDIA's tool without an answer here.
_NEVER_ANSWERED = """
    vgpu_driver_capability.heterogenous_multivGPU vgpu_device_capability.fractional_multiVgpu pcie.link.gen.hostmax
    addressing_mode accounting.mode accounting.buffer_size driver_model.current driver_model.pending vbios_version
    inforom.img inforom.oem inforom.ecc inforom.pwr inforom.power inforom.checksum_validation inforom.image
    gpu_recovery_action gom.current gom.pending fan.speed clocks_event_reasons.supported
    clocks_throttle_reasons.supported
    utilization.jpeg utilization.ofa encoder.stats.sessionCount encoder.stats.averageFps encoder.stats.averageLatency
    retired_pages.single_bit_ecc.count retired_pages.sbe retired_pages.double_bit.count retired_pages.dbe
    retired_pages.pending temperature.gpu.tlimit gsp.mode.current gsp.mode.default c2c.mode
    module.power.draw.average module.power.draw.instant module.power.limit module.enforced.power.limit
    module.power.default_limit module.power.min_limit module.power.max_limit fabric.state fabric.status platform.chassis
    platform.slot_number platform.tray_index platform.host_id platform.peer_type platform.module_id
    platform.gpu_fabric_guid
    protected_memory.total protected_memory.used protected_memory.free reset_status.reset_required
    reset_status.drain_and_reset_recommended
"""


def gpu_fields() -> list[Field]:
    return list(_gpu_fields())


_PROCESS_FIELDS = {  # name -> (unit, its value)
    "timestamp": ("", lambda gpu, process: timestamp()),
    "gpu_name": ("", lambda gpu, process: gpu.name),
    "gpu_bus_id": ("", lambda gpu, process: gpu.bus_id),
    "gpu_serial": ("", lambda gpu, process: gpu.serial),
    "gpu_uuid": ("", lambda gpu, process: gpu.uuid),
    "pid": ("", lambda gpu, process: str(process.pid)),
    "process_name": ("", lambda gpu, process: process.name),
    "used_gpu_memory": ("MiB", lambda gpu, process: mebibytes(process.memory)),
}
_PROCESS_ALIASES = {"name": "process_name", "used_memory": "used_gpu_memory"}
_CLOCK_FIELDS = {
    **{name: _PROCESS_FIELDS[name] for name in ("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid")},
    "memory": ("MHz", lambda gpu, clocks: str(clocks[0])),
    "graphics": ("MHz", lambda gpu, clocks: str(clocks[1])),
}
_CLOCK_ALIASES = {"mem": "memory", "gr": "graphics"}


# ---- the lines ----


def query_gpus(request: Request, gpus: list[Gpu]) -> str:
    known = {name: field for field in gpu_fields() for name in (field.name, *field.aliases)}
    fields = _chosen(request.items("query-gpu"), known)
    return _csv(request, fields, [[field.read(gpu) for field in fields] for gpu in gpus])


def query_processes(request: Request, gpus: list[Gpu]) -> str:
    rows: list[tuple[Gpu, Process]] = [(gpu, process) for gpu in gpus for process in gpu.processes()]
    return _query_rows(request, "query-apps", _PROCESS_FIELDS, _PROCESS_ALIASES, rows)


def query_clocks(request: Request, gpus: list[Gpu]) -> str:
    rows = [(gpu, pair) for gpu in gpus for pair in gpu.supported_clocks()]
    return _query_rows(request, "query-clocks", _CLOCK_FIELDS, _CLOCK_ALIASES, rows)


def _query_rows(request: Request, option: str, table: dict, aliases: dict[str, str], rows: list) -> str:  # type: ignore[type-arg]
    known = {name: Field(name, unit, _not_answered, ()) for name, (unit, _) in table.items()}
    fields = _chosen(request.items(option), known | {alias: known[name] for alias, name in aliases.items()})
    return _csv(request, fields, [[table[field.name][1](gpu, row) for field in fields] for gpu, row in rows])


def _chosen(names: list[str], known: dict[str, Field]) -> list[Field]:
    for name in names:
        if name not in known:
            raise Refusal(f'Field "{name}" is not a valid field to query.\n', INVALID_ARGUMENT)
    return [known[name] for name in names]


def _csv(request: Request, fields: list[Field], rows: list[list[str | None]]) -> str:
    formats = request.items("format")
    with_unit = "nounits" not in formats
    lines = [] if "noheader" in formats else [", ".join(field.title for field in fields)]
    for row in rows:
        lines.append(", ".join(field.cell(value, with_unit) for field, value in zip(fields, row, strict=True)))
    return "".join(f"{line}\n" for line in lines)


def help_gpu_fields() -> str:
    lines = ["Fields of --query-gpu, separated by commas; N/A: virtual GPUs have no such figure.", ""]
    for field in gpu_fields():
        names = " or ".join(f'"{name}"' for name in (field.name, *sorted(field.aliases)))
        lines.append(
            names + (f" [{field.unit}]" if field.unit else "") + (" N/A" if field.read is _not_answered else "")
        )
    return "".join(f"{line}\n" for line in lines)


def help_row_fields(option: str) -> str:
    table, aliases = (_PROCESS_FIELDS, _PROCESS_ALIASES) if option == "help-apps" else (_CLOCK_FIELDS, _CLOCK_ALIASES)
    other = {name: alias for alias, name in aliases.items()}
    lines = []
    for name, (unit, _) in table.items():
        names = f'"{name}"' + (f' or "{other[name]}"' if name in other else "")
        lines.append(names + (f" [{unit}]" if unit else ""))
    return "".join(f"{line}\n" for line in lines)
