"""Cuts content into segments that are likely to occur again.

In: a piece of a file. Out: where to cut it. Traces of ranks that do the same have equal columns (kinds, ops,
signatures) beside others (times, addresses), so a trace is cut at its blocks and at the columns in them. Wherever the
piece begins, the cuts depend only on the content around them.
"""

from __future__ import annotations

import struct
from itertools import pairwise

from rank_runtime.trace_format import BLOCK_HEADER_FIELDS, BLOCK_MAGIC, RECORD_COLUMNS, BlockKind, layout

_HEADER = layout(BLOCK_HEADER_FIELDS)
_KIND_AT, _BYTES_AT = (
    [name for name, _ in BLOCK_HEADER_FIELDS].index(field) for field in ("kind", "bytes")
)  # among the header's fields
_COLUMN_LENGTHS = struct.Struct(f"<{len(RECORD_COLUMNS)}I")


def cut(content: bytes) -> list[memoryview]:
    """Segments, end to end. Content that is no part of a trace is one segment."""
    cuts = {0, len(content)}
    at = content.find(BLOCK_MAGIC)
    while 0 <= at <= len(content) - _HEADER.size:
        cuts.add(at)
        header = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        if header[_KIND_AT] == BlockKind.RECORDS and at + _COLUMN_LENGTHS.size <= len(content):
            column_at = at + _COLUMN_LENGTHS.size
            for length in _COLUMN_LENGTHS.unpack_from(content, at):
                cuts.add(column_at)
                column_at += length
        at = content.find(BLOCK_MAGIC, at + header[_BYTES_AT])
    view = memoryview(content)
    return [view[begin:end] for begin, end in pairwise(sorted(each for each in cuts if each <= len(content)))]
