"""Memory that ranks share stays shared: before the fork, the holes that imports left in it are filled.

A forked rank shares every page with the zygote until it writes to it. What it allocates would go into the holes first,
which lie all over the heap, and cost it a copy of as many pages. So the zygote takes all of them itself, once: of the C
library's heap and of Python's pools of small objects. From then on ranks allocate from fresh pages, close together; and
all their threads from the same heap, because each would otherwise begin one of its own. Large blocks that a rank has
freed go back to the operating system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys

_kept: list[object] = []  # what fills the holes, for as long as the process lives

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of malloc.h
_LARGE_BLOCK = 128 << 10  # bytes; the C library's own threshold, which rises with use unless it is set
_BYTES_OVERHEAD = sys.getsizeof(b"")
_POOL_LINE = re.compile(rb"^\s*\d+\s+(\d+)\s+\d+\s+\d+\s+(\d+)\s*$", re.MULTILINE)  # class, size, pools, blocks, free


class _HeapInfo(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks"),
            "keepcost",
        )
    )


def fill_holes() -> None:
    """Take what is free between things in use, so that whoever is forked from here does not."""
    libc = ctypes.CDLL(None)
    _fill_pools()
    with contextlib.suppress(AttributeError):  # a C library other than glibc, or one before 2.33
        _fill_heap(libc)
        libc.mallopt(_M_ARENA_MAX, 1)


def give_back_large_blocks() -> None:
    """A rank builds its model in host memory, usually, and moves it to the GPU. Left to itself, the C library would
    then keep the room for another one."""
    if not any(name in os.environ for name in ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


def _fill_heap(libc: ctypes.CDLL) -> None:
    libc.mallinfo2.restype = _HeapInfo
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = (ctypes.c_size_t,)

    def holes() -> int:
        info: _HeapInfo = libc.mallinfo2()
        return int(info.fordblks - info.keepcost)

    size = 1 << 16
    while size >= 16:
        before = holes()
        for _ in range(max(1, before // size // 4)):
            libc.malloc(size)
        if before - holes() < size * 4:  # hardly any of this size is left
            size = size * 3 // 4


def _fill_pools() -> None:
    """Python says how many blocks of each size are free in pools in use."""
    for size, free in _free_blocks():
        if size > _BYTES_OVERHEAD:
            _kept.append([bytes(size - _BYTES_OVERHEAD) for _ in range(free)])


def _free_blocks() -> list[tuple[int, int]]:
    report = os.memfd_create("pools")
    stderr = os.dup(2)
    try:
        os.dup2(report, 2)
        sys._debugmallocstats()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    text = os.pread(report, 1 << 20, 0)
    os.close(report)
    return [(int(size), int(free)) for size, free in _POOL_LINE.findall(text)]
