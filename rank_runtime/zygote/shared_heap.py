"""Keeps the heap's pages shared: before the fork, fills the holes that imports left in it.

A forked rank shares every page with the zygote until it writes to it. Its allocations would first go into holes all
over the heap, and copy as many pages. So the zygote allocates all the holes, once: those of the C library's heap and of
Python's pools for small objects. From then on ranks allocate from new pages, close together. All threads use one malloc
arena, because each would otherwise begin one of its own. Large blocks that a rank frees return to the operating system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys

_fillers: list[object] = []  # the objects that fill the holes; never released

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # from malloc.h
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
    """Allocate the free blocks between blocks in use, so that forked processes do not write to these pages."""
    libc = ctypes.CDLL(None)
    _fill_pools()
    with contextlib.suppress(AttributeError):  # a C library other than glibc, or one before 2.33
        _fill_heap(libc)
        libc.mallopt(_M_ARENA_MAX, 1)


def give_back_large_blocks() -> None:
    """Return freed large blocks to the operating system. Most ranks build their model in host memory and move it to the
    GPU; by default the C library would then keep the freed memory."""
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
    """Fill Python's pools. Python reports how many blocks of each size are free in pools that are in use."""
    for size, free in _free_blocks():
        if size > _BYTES_OVERHEAD:
            _fillers.append([bytes(size - _BYTES_OVERHEAD) for _ in range(free)])


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
