"""`Device`: the properties of one GPU model, and the keys of a device file.

In: the keys of a TOML file (see device_files.py). Out: a `Device` in base units: bytes, hertz, watts, FLOPS. Every
field declares its key in the file and the parser of its value; a field without a default must be in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from maya.util.units import BITS, BYTES, BYTES_PER_SECOND, FLOPS, HERTZ, WATTS

_LARGEST_COUNT = 2**31 - 1  # CUDA reports counts as C ints


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or ";" in value or len(value.encode()) > 127:
        raise ValueError(f'{value!r} is not a name; write text of at most 127 bytes without ";"')
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST_COUNT:
        raise ValueError(f"{value!r} is not a count; write a whole number without a unit, e.g. 132")
    return value


def _capability(value: object) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'{value!r} is not a compute capability; write it as text, e.g. "9.0"')
    return int(match[1]), int(match[2])


def _key(name: str, read: Callable[[object], object], **options: Any) -> Any:
    return field(metadata={"key": name, "read": read}, **options)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU model. An optional value is None if the device lacks the feature or the value is not published."""

    key: str  # the user's name for it: a name in the catalogue, or the stem of a file

    # Reported by CUDA to programs.
    name: str = _key("name", _text)  # as torch.cuda.get_device_name() shows it
    compute_capability: tuple[int, int] = _key("compute_capability", _capability)
    sm_count: int = _key("sm_count", _count)
    clock_hz: int = _key("clock", HERTZ.parse)  # the highest
    memory_clock_hz: int = _key("memory_clock", HERTZ.parse)
    memory_bus_bits: int = _key("memory_bus", BITS.parse)
    max_threads_per_sm: int = _key("max_threads_per_sm", _count)
    max_blocks_per_sm: int = _key("max_blocks_per_sm", _count)
    registers_per_sm: int = _key("registers_per_sm", _count)
    shared_per_block_bytes: int = _key("shared_per_block", BYTES.parse)
    shared_per_block_optin_bytes: int = _key("shared_per_block_optin", BYTES.parse)
    shared_per_sm_bytes: int = _key("shared_per_sm", BYTES.parse)
    reserved_shared_per_block_bytes: int = _key("reserved_shared_per_block", BYTES.parse)
    l2_bytes: int = _key("l2", BYTES.parse)
    memory_bytes: int = _key("memory", BYTES.parse)  # visible to programs; less than the nominal size
    context_bytes: int = _key("context", BYTES.parse)  # taken by the CUDA context of a process
    power_watts: int = _key("power", WATTS.parse)  # the limit

    # Used by the models of kernel durations.
    architecture: str = _key("architecture", _text)
    memory_bandwidth: int = _key("memory_bandwidth", BYTES_PER_SECOND.parse)
    tensor_clock_hz: int | None = _key("tensor_clock", HERTZ.parse, default=None)  # the clock of the tensor peaks
    # The clock that the power limit allows while all tensor cores are busy for long, as in training.
    sustained_clock_hz: int | None = _key("sustained_clock", HERTZ.parse, default=None)
    fp64_flops: int | None = _key("fp64", FLOPS.parse, default=None)
    fp32_flops: int = _key("fp32", FLOPS.parse)
    tf32_flops: int | None = _key("tf32", FLOPS.parse, default=None)
    fp16_flops: int = _key("fp16", FLOPS.parse)
    bf16_flops: int | None = _key("bf16", FLOPS.parse, default=None)
    fp8_flops: int | None = _key("fp8", FLOPS.parse, default=None)
    bf16_typical_flops: int | None = _key("bf16_typical", FLOPS.parse, default=None)  # median of large GEMMs
    bf16_best_flops: int | None = _key("bf16_best", FLOPS.parse, default=None)  # best published measurement
    fp8_best_flops: int | None = _key("fp8_best", FLOPS.parse, default=None)
    nvlink_bandwidth: int | None = _key("nvlink", BYTES_PER_SECOND.parse, default=None)  # one direction, all links
    host_bandwidth: int = _key("host_link", BYTES_PER_SECOND.parse)  # PCIe or C2C, one direction

    # The default cluster for this GPU: a name in the cluster catalogue.
    default_cluster: str | None = _key("default_cluster", _text, default=None)

    @property
    def in_bursts(self) -> Device:
        """The device in benchmarks of single kernels, which are too short to reach the power limit."""
        return replace(self, sustained_clock_hz=None)

    def cuda_properties(self) -> dict[str, str | int]:
        """The properties that the virtual device reports, by their names in `rank_runtime.device_properties`."""
        return {
            "name": self.name,
            "compute_major": self.compute_capability[0],
            "compute_minor": self.compute_capability[1],
            "sm_count": self.sm_count,
            "clock_khz": self.clock_hz // 1000,
            "memory_clock_khz": self.memory_clock_hz // 1000,
            "memory_bus_bits": self.memory_bus_bits,
            "max_threads_per_sm": self.max_threads_per_sm,
            "max_blocks_per_sm": self.max_blocks_per_sm,
            "registers_per_sm": self.registers_per_sm,
            "shared_per_block": self.shared_per_block_bytes,
            "shared_per_block_optin": self.shared_per_block_optin_bytes,
            "shared_per_sm": self.shared_per_sm_bytes,
            "reserved_shared_per_block": self.reserved_shared_per_block_bytes,
            "l2_bytes": self.l2_bytes,
            "memory_bytes": self.memory_bytes,
            "context_bytes": self.context_bytes,
            "power_watts": self.power_watts,
        }
