"""The name of the socket at which a rank answers questions about itself (shim/device/stacks.c).

Declared here once: the build generates `stacks_socket.h` from this module (build/declared_headers.py).
"""

from __future__ import annotations

PREFIX = "maya-stacks"
# FNV-1a, 64 bits.
FNV_OFFSET = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3


def stacks_socket(process: int, endpoint: str) -> str:
    """The abstract Unix address. The coordinator's endpoint keeps runs apart that reuse a process id."""
    value = FNV_OFFSET
    for byte in endpoint.encode():
        value = ((value ^ byte) * FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return f"\0{PREFIX}-{process}-{value:016x}"
