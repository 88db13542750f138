"""Decode the columns of record blocks: the inverse of recorder_column.h, without a Python step per value.

In: the bytes of the columns of several blocks. Out: arrays with one value per record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Unsigned = npt.NDArray[np.uint64]
Index = npt.NDArray[np.intp]

_LONGEST_VARINT = 10  # seven bits a byte


def decode_varints(data: npt.NDArray[np.uint8]) -> tuple[Unsigned, Index]:
    """All variable-length integers in `data`, which ends with the last byte of one, and the positions of their last
    bytes."""
    last = np.flatnonzero(data < 0x80)
    if len(last) == len(data):
        return data.astype(np.uint64), last
    if not len(last) or last[-1] != len(data) - 1:
        raise ValueError("a variable-length integer is cut short")
    first = np.empty_like(last)
    first[0] = 0
    first[1:] = last[:-1] + 1
    longer = np.flatnonzero(last > first)
    values = (data[first] & 0x7F).astype(np.uint64)
    for byte in range(1, _LONGEST_VARINT):
        values[longer] |= (data[first[longer] + byte] & 0x7F).astype(np.uint64) << np.uint64(7 * byte)
        longer = longer[last[longer] - first[longer] > byte]
        if not len(longer):
            return values, last
    raise ValueError("a variable-length integer is longer than 64 bits")


def unfold(folded: Unsigned) -> Unsigned:
    """Signed differences, modulo 2**64, from their zigzag form: 0, -1, 1, -2, ... are stored as 0, 1, 2, 3, ..."""
    differences: Unsigned = (folded >> np.uint64(1)) ^ (np.uint64(0) - (folded & np.uint64(1)))
    return differences


class BlockRun:
    """Decodes the columns of at most 256 consecutive blocks; `counts` has the number of records of each."""

    def __init__(self, counts: Sequence[int]) -> None:
        assert len(counts) <= 256
        self._counts = np.array(counts, dtype=np.intp)
        self.records = int(self._counts.sum())
        self._begins = np.cumsum(self._counts) - self._counts
        # The order of records grouped by kind within a block; see group_by_kind.
        self._order: Index | None = None
        self._group_begins: Index | None = None

    def group_by_kind(self, kinds: npt.NDArray[np.uint8]) -> None:
        """Set the kind of every record; required before `values_by_kind`."""
        blocks = np.repeat(np.arange(len(self._counts), dtype=np.uint16), self._counts)
        groups = blocks << np.uint16(8) | kinds
        self._order = np.argsort(groups, kind="stable")
        self._group_begins = np.flatnonzero(np.diff(groups[self._order].astype(np.int32), prepend=-1))

    def values(self, pieces: Sequence[npt.NDArray[np.uint8]], *, in_runs: bool = False) -> Unsigned:
        """A column whose predecessors are the previous records; `pieces` are its bytes in each block."""
        return _running_sums(self._differences(pieces, in_runs=in_runs), self._begins)

    def values_by_kind(self, pieces: Sequence[npt.NDArray[np.uint8]]) -> Unsigned:
        """A column whose predecessors are the previous records of the same kind."""
        assert self._order is not None
        assert self._group_begins is not None
        values = np.empty(self.records, dtype=np.uint64)
        values[self._order] = _running_sums(self._differences(pieces)[self._order], self._group_begins)
        return values

    def _differences(self, pieces: Sequence[npt.NDArray[np.uint8]], *, in_runs: bool = False) -> Unsigned:
        folded, last = decode_varints(np.concatenate(pieces))
        if len(folded) == self.records and not in_runs:
            return unfold(folded)
        # The file leaves out the zeros at the end of a block's column.
        written_so_far = np.searchsorted(last, np.cumsum([len(piece) for piece in pieces]))
        if in_runs:
            repeats = _run_lengths(folded)
            written_so_far = np.concatenate(([0], np.cumsum(repeats)))[written_so_far]
            if len(repeats) and int(repeats.max()) > self.records:
                raise ValueError("a run is longer than its block")
            folded = np.repeat(folded, repeats)
        written = np.diff(written_so_far, prepend=0)
        if (written > self._counts).any():
            raise ValueError("a column has more values than its block has records")
        differences = np.zeros(self.records, dtype=np.uint64)
        values = unfold(folded)
        for begin, count, end in zip(self._begins.tolist(), written.tolist(), written_so_far.tolist(), strict=True):
            differences[begin : begin + count] = values[end - count : end]
        return differences


def _run_lengths(folded: Unsigned) -> Index:
    """The repetitions of each integer in a run-length-coded column: the integer after a zero is a count, not a
    value."""
    repeats = np.ones(len(folded), dtype=np.intp)
    zeros = np.flatnonzero(folded == 0)
    if len(zeros) and zeros[-1] == len(folded) - 1:
        raise ValueError("a run is cut short")
    repeats[zeros] = np.minimum(folded[zeros + 1], np.uint64(1 << 32)).astype(np.intp)
    repeats[zeros + 1] = 0
    return repeats


def _running_sums(differences: Unsigned, begins: Index) -> Unsigned:
    """Running sums of the differences, modulo 2**64, restarted at every index in `begins`, the first of which is 0."""
    sums = np.cumsum(differences, dtype=np.uint64)
    if len(begins) > 1:
        before = sums[begins] - differences[begins]
        sums -= np.repeat(before, np.diff(begins, append=len(differences)))
    return sums
