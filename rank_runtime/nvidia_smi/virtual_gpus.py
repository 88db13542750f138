"""NVML's answers as Python values. In: libnvidia-ml.so.1. Out: `System` and one `Gpu` for each device of the node.

A method returns None where NVML does not answer; the caller prints N/A.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void_p

_INSUFFICIENT_SIZE = 7
_MOST_PROCESSES = 1024
_MOST_LINKS = 18
MIB = 1 << 20


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("memory", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


class _Pci(ctypes.Structure):
    _fields_ = (
        ("legacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("device_id", c_uint),
        ("subsystem_id", c_uint),
        ("bus_id", c_char * 32),
    )


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", c_uint),
        ("scope", c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", c_uint),
        ("result", c_uint),
        ("value", c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class Process:
    """A process that holds memory of a GPU."""

    def __init__(self, pid: int, memory: int, name: str) -> None:
        self.pid = pid
        self.memory = memory  # bytes
        self.name = name


class System:
    """The node: its driver and its GPUs."""

    def __init__(self, library: str) -> None:
        """Raises OSError if the library cannot be loaded."""
        self.nvml = ctypes.CDLL(library)
        self.nvml.nvmlInit_v2()
        self.driver_version = self._text("nvmlSystemGetDriverVersion") or "N/A"
        self.nvml_version = self._text("nvmlSystemGetNVMLVersion") or "N/A"
        cuda = c_int()
        self.nvml.nvmlSystemGetCudaDriverVersion_v2(byref(cuda))
        self.cuda_version = f"{cuda.value // 1000}.{cuda.value % 1000 // 10}"
        count = c_uint()
        self.nvml.nvmlDeviceGetCount_v2(byref(count))
        self.gpus = [Gpu(self, index) for index in range(count.value)]

    def _text(self, function: str) -> str | None:
        buffer = ctypes.create_string_buffer(96)
        return None if getattr(self.nvml, function)(buffer, len(buffer)) else buffer.value.decode()

    def process_name(self, pid: int) -> str:
        """The command of a process as the tool shows it: without arguments."""
        buffer = ctypes.create_string_buffer(1024)
        failed = self.nvml.nvmlSystemGetProcessName(pid, buffer, len(buffer))
        return "[Not Found]" if failed else buffer.value.decode(errors="replace")


class Gpu:
    """One device."""

    def __init__(self, system: System, index: int) -> None:
        self.system = system
        self.index = index
        self.handle = c_void_p()
        system.nvml.nvmlDeviceGetHandleByIndex_v2(index, byref(self.handle))
        self.name = self.text("Name") or "N/A"
        self.uuid = self.text("UUID") or "N/A"
        self.serial = self.text("Serial")
        self.pci = _Pci()
        system.nvml.nvmlDeviceGetPciInfo_v3(self.handle, byref(self.pci))
        self.bus_id: str = self.pci.bus_id.decode()

    def ask(self, question: str, *arguments: object) -> bool:
        """Call nvmlDeviceGet<question>; False: not supported, or NVML has no such function."""
        function = getattr(self.system.nvml, f"nvmlDeviceGet{question}", None)
        return function is not None and function(self.handle, *arguments) == 0

    def text(self, question: str) -> str | None:
        buffer = ctypes.create_string_buffer(96)
        return buffer.value.decode() if self.ask(question, buffer, c_uint(len(buffer))) else None

    def number(self, question: str, *arguments: int) -> int | None:
        answer = c_uint()
        return answer.value if self.ask(question, *arguments, byref(answer)) else None

    def long(self, question: str, *arguments: int) -> int | None:
        answer = c_ulonglong()
        return answer.value if self.ask(question, *arguments, byref(answer)) else None

    def pair(self, question: str) -> tuple[int, int] | None:
        """Two numbers: current and pending, or lowest and highest."""
        first, second = c_uint(), c_uint()
        return (first.value, second.value) if self.ask(question, byref(first), byref(second)) else None

    def field(self, number: int) -> int | None:
        """One of nvmlDeviceGetFieldValues."""
        value = _FieldValue(field=number)
        return value.value if self.ask("FieldValues", c_int(1), byref(value)) and value.result == 0 else None

    def memory(self, which: str = "MemoryInfo") -> tuple[int, int, int] | None:
        """Total, used and free bytes."""
        memory = _Memory()
        return (memory.total, memory.used, memory.free) if self.ask(which, byref(memory)) else None

    def utilization(self) -> tuple[int, int] | None:
        """Percent of the time in kernels, and in memory accesses."""
        rates = _Utilization()
        return (rates.gpu, rates.memory) if self.ask("UtilizationRates", byref(rates)) else None

    def capability(self) -> str | None:
        major, minor = c_int(), c_int()
        known = self.ask("CudaComputeCapability", byref(major), byref(minor))
        return f"{major.value}.{minor.value}" if known else None

    def processes(self) -> list[Process]:
        count, found = c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        if not self.ask("ComputeRunningProcesses_v3", byref(count), found):
            return []
        name = self.system.process_name
        return [Process(found[i].pid, found[i].memory, name(found[i].pid)) for i in range(count.value)]

    def links(self) -> int:
        """Active NVLinks."""
        return sum(self.number("NvLinkState", link) == 1 for link in range(_MOST_LINKS))

    def link_speed(self) -> int | None:
        """Of one link, MB/s."""
        return self.field(90)

    def common_ancestor(self, other: Gpu) -> int | None:
        """NVML's level of the topology at which two devices meet."""
        level = c_uint()
        return level.value if self.ask("TopologyCommonAncestor", other.handle, byref(level)) else None

    def processors(self) -> list[int]:
        """The CPUs near this device."""
        words = (c_ulong * 16)()
        if not self.ask("CpuAffinity", c_uint(16), words):
            return []
        return [64 * word + bit for word in range(16) for bit in range(64) if words[word] >> bit & 1]

    def supported_clocks(self) -> list[tuple[int, int]]:
        """Pairs of a memory and a graphics clock, MHz."""
        pairs = []
        for memory in self._clocks("SupportedMemoryClocks"):
            pairs += [(memory, graphics) for graphics in self._clocks("SupportedGraphicsClocks", memory)]
        return pairs

    def _clocks(self, question: str, *arguments: int) -> list[int]:
        count, clocks = c_uint(1024), (c_uint * 1024)()
        return list(clocks[: count.value]) if self.ask(question, *arguments, byref(count), clocks) else []
