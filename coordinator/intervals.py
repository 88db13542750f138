"""Which bytes of a buffer are known: intervals as the messages carry them, [start, end, start, end, ...].

They are in order, do not overlap, and none is empty. Of a buffer only the known bytes travel, one part after the other:
`packed` makes that of a buffer, and `unpacked` a buffer of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.arithmetic import Buffer

Intervals = Sequence[int]

NONE: Intervals = ()


def packed(intervals: Intervals, buffer: Buffer) -> Buffer:
    """The bytes of a buffer that are known; if these are all, the buffer itself."""
    if len(intervals) == 2 and intervals[1] - intervals[0] == len(buffer):
        return buffer
    view = memoryview(buffer)
    return b"".join([view[start:end] for start, end in _pairs(intervals)])


def unpacked(intervals: Intervals, payload: Buffer, size: int) -> Buffer:
    """A buffer of that size, with zeros where nothing is known."""
    if len(payload) == size:
        return payload
    buffer, view, taken = bytearray(size), memoryview(payload), 0
    for start, end in _pairs(intervals):
        buffer[start:end] = view[taken : taken + end - start]
        taken += end - start
    return buffer


def _pairs(intervals: Intervals) -> Iterable[tuple[int, int]]:
    return zip(intervals[::2], intervals[1::2], strict=True)


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """What is in both."""
    found: list[int] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i], right[j]), min(left[i + 1], right[j + 1])
        if start < end:
            found += (start, end)
        if left[i + 1] <= right[j + 1]:
            i += 2
        else:
            j += 2
    return found


def whole_elements(intervals: Intervals, item_bytes: int) -> Intervals:
    """Without elements of which not every byte is there."""
    found: list[int] = []
    joined = concatenation((intervals,), 0)
    for start, end in _pairs(joined):
        start += -start % item_bytes
        end -= end % item_bytes
        if start < end:
            found += (start, end)
    return found


def part(intervals: Intervals, first: int, last: int) -> Intervals:
    """What lies in the bytes from `first` up to `last`, counted from `first`."""
    found: list[int] = []
    for start, end in _pairs(intervals):
        start, end = max(start, first), min(end, last)
        if start < end:
            found += (start - first, end - first)
    return found


def concatenation(parts: Iterable[Intervals], part_bytes: int) -> Intervals:
    """Of parts of the same size, laid one after the other."""
    found: list[int] = []
    offset = 0
    for intervals in parts:
        for start, end in _pairs(intervals):
            if found and found[-1] == start + offset:
                found[-1] = end + offset
            else:
                found += (start + offset, end + offset)
        offset += part_bytes
    return found
