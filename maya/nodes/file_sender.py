"""Sends the files of a node's folder to the launcher while they are written.

In: the folder, whose subfolders 0, 1, ... stand for folders of the launcher. Out: `FilePart`s (file_parts.py), as many
as there is room for. Regular files are sent; links, sockets and empty folders are not.

The sender looks at the files from time to time (a pass), which takes a small share of the time. A file that has grown
is assumed to be otherwise unchanged while the job runs; at the end everything is read again, and what differs is sent.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from maya.nodes.content_cuts import cut
from maya.nodes.file_parts import (
    BLOCK_BYTES,
    REMEMBERED_BYTES,
    SMALLEST_REMEMBERED,
    FilePart,
    PartKind,
    PartsDigest,
    RecentContents,
    Segment,
    compressed,
    digest_of,
)

_SHORTEST_PAUSE = 0.1  # seconds between two passes
_PAUSE = 19  # the same as a multiple of the time in which a pass looks for changes
_LONGEST_POLL = 0.05  # seconds in which a poll collects parts, about
_TURN_BYTES = 1 << 22  # of a file before it is another's turn
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)  # the file is no more, or no longer a regular one

_Steps = Generator[FilePart | None, None, None]  # None: a moment to stop at
_StepsOfFile = Generator[FilePart | None, None, bool]  # returns whether there is more to send


def _block_digest(content: bytes = b"") -> blake2b:
    return blake2b(content, digest_size=16)


_NO_CONTENT = _block_digest(bytes(BLOCK_BYTES)).digest()  # of a block that is a hole, or zeros


@dataclass(slots=True)
class _SentFile:
    """A file as the launcher knows it."""

    inode: tuple[int, int]  # device and number
    size: int = 0  # what has been read
    sent_size: int = 0  # the size at the launcher: smaller while the last bytes are a hole
    modified_ns: int = -1  # when all had been read
    suspect: bool = False  # to be read again
    blocks: list[bytes] = field(default_factory=list)  # digests of the whole blocks that have been read
    last_block: blake2b = field(default_factory=_block_digest)  # of what has been read of the next one
    parts: PartsDigest = field(default_factory=PartsDigest)

    def has_changed(self, status: os.stat_result) -> bool:
        as_read = (self.inode, self.size, self.modified_ns)
        return self.suspect or as_read != (_inode(status), status.st_size, status.st_mtime_ns)

    def note_block(self, number: int, content: bytes) -> None:
        """Content of a block that was read before is now this."""
        if number < len(self.blocks):
            self.blocks[number] = _block_digest(content).digest()
        else:
            self.last_block = _block_digest(content)

    def block_digest(self, number: int) -> bytes:
        return self.blocks[number] if number < len(self.blocks) else self.last_block.digest()


class FileSender:
    """Finds and sends what is new in a folder."""

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.monotonic, remembered_bytes: int = REMEMBERED_BYTES
    ) -> None:
        """`remembered_bytes`: the same as at the receiver."""
        self._folder = os.fsencode(folder)
        self._clock = clock
        self._files: dict[bytes, _SentFile] = {}
        self._recent: RecentContents[bool] = RecentContents(remembered_bytes)
        self._unread: dict[bytes, str] = {}  # why files cannot be read
        self._number = 0
        self._steps: _Steps | None = None
        self._due = clock()
        self._looking_seconds = 0.0  # in which the current pass has looked for changes
        self._saw_all = True  # in the last scan
        self._finishing = False
        self.is_finished = False  # the last part has been returned

    def seconds_until_due(self) -> float:
        """How long a poll would find nothing to do."""
        if self.is_finished:
            return math.inf
        return 0.0 if self._steps is not None or self._finishing else max(0.0, self._due - self._clock())

    def finish(self, room: int) -> list[FilePart]:
        """The next parts, when the last process that writes has ended. Call it until `is_finished`."""
        self._finishing = True
        return self.poll(room)

    def poll(self, room: int) -> list[FilePart]:
        """The next parts: of that many bytes and up to one part more."""
        parts: list[FilePart] = []
        began = self._clock()
        while room > 0 and not self.is_finished:
            if self._steps is None:
                if self.seconds_until_due() > 0:
                    break
                self._steps = self._final_pass() if self._finishing else self._pass()
            for part in self._steps:
                if part is not None:
                    parts.append(part)
                    room -= part.wire_bytes
                if room <= 0 or self._clock() - began > _LONGEST_POLL:
                    return parts
            self._steps = None
        return parts

    # ---- passes ----

    def _pass(self) -> _Steps:
        self._looking_seconds = 0.0
        found = self._scan()
        scanned = self._clock()
        due = scanned + self._pause()
        yield from self._moves(found)
        files = self._files
        waiting = [path for path, status in found.items() if path not in files or files[path].has_changed(status)]
        while waiting and not self._finishing and self._clock() <= due:
            behind = []
            for path in waiting:
                if (yield from self._turn(path)):
                    behind.append(path)
            waiting = behind
        self._due = scanned + self._pause()

    def _pause(self) -> float:
        return max(_SHORTEST_PAUSE, _PAUSE * self._looking_seconds)

    def _final_pass(self) -> _Steps:
        self._unread.clear()
        found = self._scan()
        yield from self._moves(found)
        for path in found:
            if path in self._files:
                self._files[path].suspect = True
            while (yield from self._turn(path)):
                continue
        for path, file in self._files.items():
            yield self._part(PartKind.COMPLETE, path, file.sent_size, data=file.parts.value())
        for path, reason in self._unread.items():
            yield self._part(PartKind.UNREAD, path, data=reason.encode())
        self.is_finished = True
        yield self._part(PartKind.END, b"", len(self._files))

    def _scan(self) -> dict[bytes, os.stat_result]:
        """All regular files, by their path in the folder."""
        began = self._clock()
        self._saw_all = True
        found = {}
        folders = [b""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(self._folder + b"/" + folder) as entries:
                    for entry in entries:
                        path = folder + entry.name
                        if not folder and not entry.name.isdigit():
                            continue  # a file of the agent itself
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(path + b"/")
                        elif folder and entry.is_file(follow_symlinks=False):
                            with suppress(FileNotFoundError):
                                found[path] = entry.stat(follow_symlinks=False)
            except OSError as error:
                self._note_error(folder.rstrip(b"/"), error)
                self._saw_all = False
        self._looking_seconds += self._clock() - began
        return found

    def _moves(self, found: dict[bytes, os.stat_result]) -> _Steps:
        """Removed files, then renamed ones: content that the launcher has need not be sent again. The number of an
        inode may have been used again, so a renamed file is suspect."""
        gone = [path for path in self._files if path not in found]
        if not gone or not self._saw_all:
            return
        new = {_inode(status): path for path, status in found.items()}
        for path, file in self._files.items():
            if path in found and _inode(found[path]) == file.inode:
                new.pop(file.inode, None)  # it has kept its place; another path of it is sent as a new file
        folders = {folder for path in self._files for folder in _folders_of(path)}
        renamed = {}
        for path in gone:
            target = new.pop(self._files[path].inode, None)
            # The launcher renames in an order of its own, so a file must not take the place of a folder or vice versa.
            if target is not None and target not in folders and not any(map(self._files.get, _folders_of(target))):
                renamed[path] = target
            else:
                del self._files[path]
                yield self._part(PartKind.REMOVED, path)
        for path, target in renamed.items():
            file = self._files.pop(path)
            file.suspect = True
            self._files[target] = file
            yield self._part(PartKind.RENAMED, target, data=path)

    # ---- one file ----

    def _turn(self, path: bytes) -> _StepsOfFile:
        """Send what is new in a file, up to a limit."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._folder + b"/" + path, flags)
        except OSError as error:
            self._note_error(path, error)
            return False
        try:
            return (yield from self._send_new(path, descriptor))
        except OSError as error:
            self._note_error(path, error)
            return False
        finally:
            os.close(descriptor)

    def _note_error(self, path: bytes, error: OSError) -> None:
        if error.errno not in _GONE:
            self._unread[path] = error.strerror or str(error)

    def _send_new(self, path: bytes, descriptor: int) -> _StepsOfFile:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return False
        self._unread.pop(path, None)
        file = self._files.get(path)
        if file is None or file.inode != _inode(status) or status.st_size < file.size:
            file = self._files[path] = _SentFile(_inode(status))
            yield self._part(PartKind.BEGUN, path)
        elif file.suspect or (status.st_size == file.size and file.has_changed(status)):
            yield from self._send_changed(path, file, descriptor)
        yield from self._send_grown(path, file, descriptor, status.st_size)
        if file.size < status.st_size:
            return not file.suspect
        if file.sent_size < file.size:
            file.sent_size = file.size
            yield self._part(PartKind.SIZED, path, file.size)
        file.modified_ns = status.st_mtime_ns
        return False

    def _send_changed(self, path: bytes, file: _SentFile, descriptor: int) -> _Steps:
        """Read again what was read before, and send the blocks that differ."""
        file.suspect = False
        for number, start in enumerate(range(0, file.size, BLOCK_BYTES)):
            began = self._clock()
            known, length = file.block_digest(number), min(BLOCK_BYTES, file.size - start)
            is_same = known == _NO_CONTENT and _next_data(descriptor, start, start + length) >= start + length
            content = b"" if is_same else os.pread(descriptor, length, start)
            is_same = is_same or _block_digest(content).digest() == known
            self._looking_seconds += self._clock() - began
            if is_same:
                yield None
                continue
            if len(content) < length:  # it has become shorter: begin again in the next pass
                return
            file.note_block(number, content)
            file.sent_size = max(file.sent_size, start + length)
            yield self._content(path, file, start, content)

    def _send_grown(self, path: bytes, file: _SentFile, descriptor: int, size: int) -> _Steps:
        """Read on, up to this size or the end of the file's turn."""
        end_of_turn = file.size + _TURN_BYTES
        while file.size < min(size, end_of_turn):
            start = file.size
            if start % BLOCK_BYTES == 0:
                holes = (_next_data(descriptor, start, size) - start) // BLOCK_BYTES
                if holes > 0:
                    file.blocks += [_NO_CONTENT] * holes
                    file.size += holes * BLOCK_BYTES
                    end_of_turn += holes * BLOCK_BYTES
                    continue
            length = min(size, start - start % BLOCK_BYTES + BLOCK_BYTES) - start
            content = os.pread(descriptor, length, start)
            if len(content) < length:
                file.suspect = True  # it has become shorter
                return
            file.size += length
            file.last_block.update(content)
            if file.size % BLOCK_BYTES == 0:
                file.blocks.append(file.last_block.digest())
                file.last_block = _block_digest()
            if not content.strip(b"\0"):
                yield None  # the launcher makes a hole of zeros
                continue
            file.sent_size = file.size
            yield self._content(path, file, start, content)

    def _content(self, path: bytes, file: _SentFile, start: int, content: bytes) -> FilePart:
        segments: list[Segment] = []
        new: list[memoryview] = []
        for each in cut(content):
            if len(each) < SMALLEST_REMEMBERED:
                file.parts.add(each)
            else:
                digest = digest_of(each)
                file.parts.add(digest)
                if self._recent.find(digest):
                    segments.append(digest)
                    continue
                self._recent.add(digest, len(each), True)
            segments.append(len(each))
            new.append(each)
        kind, data = compressed(b"".join(new))
        return self._part(kind, path, start, tuple(segments), data)

    def _part(
        self, kind: PartKind, path: bytes, offset: int = 0, segments: tuple[Segment, ...] = (), data: bytes = b""
    ) -> FilePart:
        self._number += 1
        return FilePart(self._number, kind, path, offset, segments, data)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _folders_of(path: bytes) -> Iterator[bytes]:
    """The paths of the folders that a file is in."""
    at = path.rfind(b"/")
    while at > 0:
        yield path[:at]
        at = path.rfind(b"/", 0, at)


def _next_data(descriptor: int, start: int, size: int) -> int:
    """Where the next bytes are that are no hole; `size` if there are none."""
    try:
        return min(os.lseek(descriptor, start, os.SEEK_DATA), size)
    except OSError as error:
        return size if error.errno == errno.ENXIO else start  # else: a file system that does not say
