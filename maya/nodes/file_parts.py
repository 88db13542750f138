"""The parts in which the files of a node's folder travel to the launcher, and what both ends of a transfer agree on.

In, at the node: files as they grow (file_sender.py). Out, at the launcher: the same files (file_receiver.py). The parts
of a node form one sequence, in which each depends on those before it: content that an earlier part had is sent as its
digest. Both ends keep the digests of recent content by the same rule (`RecentContents`), so they always remember the
same, without asking each other.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Generic, TypeVar

BLOCK_BYTES = 1 << 18  # a part has content of one block of its file at most
REMEMBERED_BYTES = 16 << 20  # recent content that can be sent as a digest; the launcher holds it for each node
SMALLEST_REMEMBERED = 256  # bytes of a segment; for shorter ones a digest does not pay
DIGEST_BYTES = 16
_FIELD_BYTES = 24  # of a part on the wire, about, besides its path, segments and data
_LENGTH_BYTES = 3  # of the length of a segment
_LONGEST_PATH = 4096
_LARGEST = 1 << 62

Segment = int | bytes  # the length of new content, or the digest of known content
T = TypeVar("T")


class TransferError(ValueError):
    """A part that is refused: it is damaged, in the wrong place, or parts before it are missing."""


class PartKind(IntEnum):
    """What a part says about the file at its path."""

    BEGUN = 0  # the file exists and is empty: it is new, or begins again
    COMPRESSED = 1  # content: `segments`, from `offset` on; `data` has the new ones, compressed by zlib
    STORED = 2  # the same, not compressed
    SIZED = 3  # the file has `offset` bytes; the last ones are a hole
    RENAMED = 4  # the file had the path in `data`
    REMOVED = 5
    COMPLETE = 6  # the file has `offset` bytes and came in parts with the digest in `data` (PartsDigest)
    UNREAD = 7  # the file could not be read, for the reason in `data`
    END = 8  # no more parts; `offset` files are complete


CONTENT = frozenset({PartKind.COMPRESSED, PartKind.STORED})


@dataclass(frozen=True, slots=True)
class FilePart:
    """A change to one file. Paths are bytes, relative to the node's folder."""

    number: int  # in the sequence of the node's parts
    kind: PartKind
    path: bytes
    offset: int = 0
    segments: tuple[Segment, ...] = ()
    data: bytes = b""

    @property
    def wire_bytes(self) -> int:
        """The bytes of the part on the wire, about; both ends get the same number."""
        segments = sum(len(each) if isinstance(each, bytes) else _LENGTH_BYTES for each in self.segments)
        return _FIELD_BYTES + len(self.path) + segments + len(self.data)

    def as_fields(self) -> list[object]:
        """Plain values, for msgpack."""
        return [self.number, int(self.kind), self.path, self.offset, list(self.segments), self.data]

    @staticmethod
    def from_fields(fields: object) -> FilePart:
        if not isinstance(fields, Sequence) or len(fields) != 6:
            raise TransferError(f"a part of a file has six fields, not {fields!r:.80}")
        number, kind, path, offset, segments, data = fields
        if not (_is_count(number) and _is_count(kind) and kind in list(PartKind)):
            raise TransferError(f"part {number!r:.40} of a file has the unknown kind {kind!r:.40}")
        if not (isinstance(path, bytes) and len(path) <= _LONGEST_PATH and isinstance(data, bytes)):
            raise TransferError(f"part {number} of a file has no valid path or data: {path!r:.80}")
        if not (_is_count(offset) and isinstance(segments, Sequence) and all(map(_is_segment, segments))):
            raise TransferError(f"part {number} has no valid place in the file {path!r:.80}: {offset!r:.40}")
        return FilePart(number, PartKind(kind), path, offset, tuple(segments), data)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_segment(value: object) -> bool:
    if isinstance(value, bytes):
        return len(value) == DIGEST_BYTES
    return type(value) is int and 0 < value <= BLOCK_BYTES


def digest_of(content: bytes | memoryview) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


class RecentContents(Generic[T]):
    """Digests of the content seen last, up to a number of bytes, each with a value. Two of them that are called alike
    in the same order hold the same digests."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._values: OrderedDict[bytes, tuple[int, T]] = OrderedDict()

    def find(self, digest: bytes) -> T | None:
        found = self._values.get(digest)
        if found is None:
            return None
        self._values.move_to_end(digest)
        return found[1]

    def add(self, digest: bytes, length: int, value: T) -> None:
        """Remember content that `find` did not find."""
        self._values[digest] = (length, value)
        self._bytes += length
        while self._bytes > self._limit:
            self._bytes -= self._values.popitem(last=False)[1][0]


class PartsDigest:
    """A digest of all content of a file, in the order in which it was sent."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=DIGEST_BYTES)

    def add(self, segment: bytes | memoryview) -> None:
        """`segment`: its digest if it is long enough to be remembered, or else its content."""
        self._digest.update(segment)

    def value(self) -> bytes:
        return self._digest.digest()


def compressed(content: bytes) -> tuple[PartKind, bytes]:
    """New content in the shorter form."""
    probe = content[len(content) // 2 :][:4096]
    if len(content) > 4 * len(probe) and _shrinks_little(zlib.compress(probe, 1), probe):
        return PartKind.STORED, content
    packed = zlib.compress(content, 1) if content else b""
    return (PartKind.STORED, content) if _shrinks_little(packed, content) else (PartKind.COMPRESSED, packed)


def _shrinks_little(packed: bytes, content: bytes) -> bool:
    return len(packed) > 0.97 * len(content)


def decompressed(part: FilePart, length: int) -> bytes:
    """The new content of a part, which must have this length."""
    if part.kind == PartKind.STORED or not length:
        content = part.data
    else:
        stream = zlib.decompressobj()
        try:
            content = stream.decompress(part.data, length + 1)
        except zlib.error as error:
            raise TransferError(f"part {part.number} of {part.path!r:.80} is damaged: {error}") from error
        if not stream.eof or stream.unused_data:
            content = b""
    if len(content) != length:
        raise TransferError(f"part {part.number} of {part.path!r:.80} is damaged: it has not {length} bytes of content")
    return content
