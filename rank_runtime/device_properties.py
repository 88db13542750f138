"""Properties of a virtual GPU that a rank reports to its program.

Declared here once: the build generates `device_properties.h` from this module (build/declared_headers.py), and
`maya.devices.Device.cuda_properties` fills them in. A rank gets them in MAYA_GPU_PROPERTIES; a program that is started
with LD_PRELOAD alone sees the defaults, an H100 SXM.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Property:
    """One property: its C type, the default and, where the name does not tell, its meaning."""

    name: str
    c_type: str  # int, int64_t or char[N]
    default: int | str
    meaning: str = ""


PROPERTIES = (
    Property("name", "char[128]", "NVIDIA H100 80GB HBM3", "as torch.cuda.get_device_name() shows it"),
    Property("compute_major", "int", 9),
    Property("compute_minor", "int", 0),
    Property("sm_count", "int", 132),
    Property("clock_khz", "int", 1980000),
    Property("memory_clock_khz", "int", 2619000),
    Property("memory_bus_bits", "int", 5120),
    Property("max_threads_per_sm", "int", 2048),
    Property("max_blocks_per_sm", "int", 32),
    Property("registers_per_sm", "int", 65536),
    Property("shared_per_block", "int64_t", 49152),
    Property("shared_per_block_optin", "int64_t", 232448),
    Property("shared_per_sm", "int64_t", 233472),
    Property("reserved_shared_per_block", "int64_t", 1024),
    Property("l2_bytes", "int64_t", 52428800),
    Property("memory_bytes", "int64_t", 84942979072, "the total that cudaGetDeviceProperties reports"),
    Property("context_bytes", "int64_t", 545259520, "what a process pays for its CUDA context, outside any allocator"),
    Property("power_watts", "int", 700),
)
