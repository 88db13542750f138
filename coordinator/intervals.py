"""Which bytes of a buffer are known: intervals as in messages, [start, end, start, end, ...].

Intervals are in order, do not overlap and are not empty. Messages carry only the known bytes of a buffer, one interval
after the other: `packed` extracts them from a buffer, `unpacked` puts them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.arithmetic import Buffer

Intervals = Sequence[int]

NONE: Intervals = ()


def packed(intervals: Intervals, buffer: Buffer) -> Buffer:
    """The known bytes of a buffer; the buffer itself if all are known."""
    if len(intervals) == 2 and intervals[1] - intervals[0] == len(buffer):
        return buffer
    view = memoryview(buffer)
    return b"".join([view[start:end] for start, end in _pairs(intervals)])


def unpacked(intervals: Intervals, payload: Buffer, size: int) -> Buffer:
    """A buffer of `size` bytes, zero where bytes are not known."""
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
    """The bytes in both."""
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
    """Only the elements of which every byte is known."""
    found: list[int] = []
    joined = concatenation((intervals,), 0)
    for start, end in _pairs(joined):
        start += -start % item_bytes
        end -= end % item_bytes
        if start < end:
            found += (start, end)
    return found


def part(intervals: Intervals, first: int, last: int) -> Intervals:
    """The intervals between `first` and `last`, relative to `first`."""
    found: list[int] = []
    for start, end in _pairs(intervals):
        start, end = max(start, first), min(end, last)
        if start < end:
            found += (start - first, end - first)
    return found


def concatenation(parts: Iterable[Intervals], part_bytes: int) -> Intervals:
    """The intervals of parts of `part_bytes` bytes each, laid one after the other."""
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
