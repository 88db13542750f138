"""A network link with a delay: `python slow_link.py HUB PORT MACHINE MILLISECONDS`.

In: process ids of two network namespaces; frames from a new device PORT in the first, and a new eth0 in the second.
Out: each frame at the other end, MILLISECONDS later; "ready" on standard output. It ends with its standard input. (tc's
netem does the same, where the kernel has it.)
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_LARGEST = 1 << 16


def open_device(pid: int, name: str) -> int:
    """A TAP device in the network namespace of a process."""
    own, other = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        assert libc.setns(other, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
        assert libc.setns(own, _CLONE_NEWNET) == 0
    finally:
        os.close(own)
        os.close(other)
    return device


def forward(one: int, two: int, seconds: float) -> None:
    """Until the end of standard input."""
    other = {one: two, two: one}
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready = select.select([0, one, two], [], [], left)[0]
        if 0 in ready and not os.read(0, 1):
            return
        for device in (one, two):
            if device in ready:
                waiting.append((time.monotonic() + seconds, other[device], os.read(device, _LARGEST)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, device, frame = waiting.popleft()
            with suppress(OSError):  # the device is down, or its queue is full: a network loses frames
                os.write(device, frame)


if __name__ == "__main__":
    hub, port, machine, milliseconds = sys.argv[1:]
    ends = open_device(int(hub), port), open_device(int(machine), "eth0")
    print("ready", flush=True)
    forward(*ends, float(milliseconds) / 1000)
