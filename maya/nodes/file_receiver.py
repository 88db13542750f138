"""Writes the files that a node's ranks write into the launcher's folders.

In: the `FilePart`s of one node, in order. Out: the files, below the roots: the first component of a path is the number
of one. Parts that are damaged, out of order, or lead elsewhere are refused with a `TransferError`: the node cannot be
believed. A file that cannot be written here is given up, and the others go on.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from maya.nodes.file_parts import (
    BLOCK_BYTES,
    CONTENT,
    REMEMBERED_BYTES,
    SMALLEST_REMEMBERED,
    FilePart,
    PartKind,
    PartsDigest,
    RecentContents,
    TransferError,
    decompressed,
    digest_of,
)

_FULL = {
    errno.ENOSPC: "free space, and run the job again",
    errno.EDQUOT: "free space, and run the job again",
    errno.EFBIG: "raise the limit (ulimit -f), and run the job again",
}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SHOWN = 3  # files that a text names


@dataclass(slots=True)
class _ReceivedFile:
    """A file that this node writes."""

    size: int = 0
    parts: PartsDigest = field(default_factory=PartsDigest)
    exists: bool = False
    is_complete: bool = False
    problem: str = ""  # why it was given up


class FileReceiver:
    """The files of one node."""

    def __init__(
        self, roots: Sequence[Path], say: Callable[[str], None], remembered_bytes: int = REMEMBERED_BYTES
    ) -> None:
        """`say`: tells the user at once that files cannot be written."""
        self._roots = tuple(roots)
        self._say = say
        self._said: set[int | None] = set()  # errors
        self._files: dict[bytes, _ReceivedFile] = {}
        self._folders: set[bytes] = set()  # that were made here
        self._recent: RecentContents[bytes] = RecentContents(remembered_bytes)
        self._unread: dict[bytes, str] = {}
        self._number = 0
        self._has_ended = False

    def write(self, part: FilePart) -> None:
        """Write the next part. Raises TransferError."""
        self._number += 1
        if part.number != self._number or self._has_ended:
            raise TransferError(f"part {part.number} of its files came instead of part {self._number}")
        if part.kind == PartKind.END:
            self._end(part)
            return
        if part.kind == PartKind.UNREAD:
            self._unread[part.path] = part.data.decode(errors="replace")
            return
        _check_path(part.path, len(self._roots))
        file = self._files.get(part.path)
        if file is None and part.kind not in (PartKind.BEGUN, PartKind.RENAMED):
            raise TransferError(f"a part of {self._name(part.path)} came before the file")
        if file is not None and part.kind in CONTENT:
            self._write_content(part, file)
        elif file is not None and part.kind == PartKind.SIZED:
            self._resize(part, file)
        elif file is not None and part.kind == PartKind.COMPLETE:
            self._complete(part, file)
        elif part.kind == PartKind.BEGUN:
            self._begin(part.path)
        elif part.kind == PartKind.RENAMED:
            self._rename(part.data, part.path)
        else:
            self._remove(part.path)

    def missing(self) -> list[str]:
        """What is not as on the node, and why; for users."""
        reasons: dict[str, list[bytes]] = defaultdict(list)
        for path, file in self._files.items():
            reason = file.problem or ("" if file.is_complete else "its last part did not arrive") or self._lack(path)
            if reason:
                reasons[f"incomplete: {reason}"].append(path)
        for path, reason in self._unread.items():
            reasons[f"not readable on the node: {reason}"].append(path)
        return [f"{self._names(paths)}: {reason}" for reason, paths in reasons.items()]

    # ---- parts ----

    def _begin(self, path: bytes) -> None:
        file = _ReceivedFile(exists=self._is_ours(path))
        flags = _FILE | os.O_CREAT | (os.O_TRUNC if file.exists else os.O_EXCL)
        with self._giving_up(path, file), self._opened(path, flags, make_folders=True):
            file.exists = True
        self._files[path] = file

    def _is_ours(self, path: bytes) -> bool:
        return path in self._files and self._files[path].exists

    def _write_content(self, part: FilePart, file: _ReceivedFile) -> None:
        content = self._content_of(part, file)
        file.size = max(file.size, part.offset + len(content))
        if file.problem:
            return
        with self._giving_up(part.path, file), self._opened(part.path, _FILE) as descriptor:
            written = 0
            while written < len(content):
                written += os.pwrite(descriptor, memoryview(content)[written:], part.offset + written)

    def _content_of(self, part: FilePart, file: _ReceivedFile) -> bytes:
        """All content of a part. Remembers it even if the file has been given up, because the node does."""
        length = sum(each for each in part.segments if isinstance(each, int))
        if length > BLOCK_BYTES:
            raise TransferError(f"part {part.number} of {self._name(part.path)} is too long")
        new = memoryview(decompressed(part, length))
        segments: list[bytes | memoryview] = []
        for each in part.segments:
            if isinstance(each, bytes):
                known = self._recent.find(each)
                if known is None:
                    raise TransferError(f"part {part.number} of {self._name(part.path)} refers to unknown content")
                file.parts.add(each)
                segments.append(known)
                length += len(known)
                continue
            segment, new = new[:each], new[each:]
            if each < SMALLEST_REMEMBERED:
                file.parts.add(segment)
            else:
                digest = digest_of(segment)
                file.parts.add(digest)
                if self._recent.find(digest) is None:
                    self._recent.add(digest, each, bytes(segment))
            segments.append(segment)
        if length > BLOCK_BYTES:
            raise TransferError(f"part {part.number} of {self._name(part.path)} is too long")
        return b"".join(segments)

    def _resize(self, part: FilePart, file: _ReceivedFile) -> None:
        if part.offset < file.size:
            raise TransferError(f"{self._name(part.path)} cannot shrink from {file.size} to {part.offset} bytes")
        file.size = part.offset
        if not file.problem:
            with self._giving_up(part.path, file), self._opened(part.path, _FILE) as descriptor:
                os.ftruncate(descriptor, part.offset)

    def _rename(self, old: bytes, new: bytes) -> None:
        _check_path(old, len(self._roots))
        file = self._files.get(old)
        if file is None:
            raise TransferError(f"{self._name(new)} cannot be the former {self._name(old)}, which did not arrive")
        with (
            self._giving_up(new, file),
            self._folder_of(old) as (old_folder, old_name),
            self._folder_of(new, make=True) as (new_folder, new_name),
        ):
            if not self._is_ours(new) and _exists(new_name, new_folder):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            os.rename(old_name, new_name, src_dir_fd=old_folder, dst_dir_fd=new_folder)
        del self._files[old]
        self._files[new] = file
        self._remove_empty_folders(old)

    def _remove(self, path: bytes) -> None:
        del self._files[path]
        with (
            self._giving_up(path, _ReceivedFile()),
            suppress(FileNotFoundError),
            self._folder_of(path) as (folder, name),
        ):
            os.unlink(name, dir_fd=folder)
        self._remove_empty_folders(path)

    def _remove_empty_folders(self, path: bytes) -> None:
        """Empty folders do not travel."""
        at = path.rfind(b"/")
        while at > 0 and path[:at] in self._folders:
            try:
                with self._folder_of(path[:at]) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
            except OSError:
                return
            self._folders.remove(path[:at])
            at = path.rfind(b"/", 0, at)

    def _complete(self, part: FilePart, file: _ReceivedFile) -> None:
        if part.offset != file.size or part.data != file.parts.value():
            raise TransferError(f"{self._name(part.path)} is not what was sent")
        file.is_complete = True

    def _end(self, part: FilePart) -> None:
        complete = sum(file.is_complete for file in self._files.values())
        if complete != part.offset or complete != len(self._files):
            raise TransferError(f"{complete} of its {part.offset} files are complete")
        self._has_ended = True

    # ---- files ----

    @contextmanager
    def _giving_up(self, path: bytes, file: _ReceivedFile) -> Iterator[None]:
        """Errors of the file system cost this file; other files may lie elsewhere, or be shorter."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise TransferError(f"{self._name(path)} leads through a link or a file") from error
            if error.errno in (errno.EEXIST, errno.EISDIR):
                raise TransferError(f"{self._name(path)} exists, and is not a file of this node") from error
            file.problem = error.strerror or str(error)
            if error.errno not in self._said:
                self._said.add(error.errno)
                advice = f"; {_FULL[error.errno]}" if error.errno in _FULL else ""
                what = f"cannot write {self._name(path)}: {file.problem}"
                self._say(f"{what}. The file stays incomplete; the job goes on{advice}")

    @contextmanager
    def _opened(self, path: bytes, flags: int, *, make_folders: bool = False) -> Iterator[int]:
        with self._folder_of(path, make=make_folders) as (folder, name):
            descriptor = os.open(name, flags, 0o666, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _folder_of(self, path: bytes, *, make: bool = False) -> Iterator[tuple[int, bytes]]:
        """A descriptor of the folder that a path is in, and the last component. No link on the way is followed, so the
        folder is below the root."""
        number, *folders, name = path.split(b"/")
        descriptor = os.open(self._roots[int(number)], _FOLDER)
        so_far = number
        try:
            for folder in folders:
                so_far += b"/" + folder
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=descriptor)
                        self._folders.add(so_far)
                inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _lack(self, path: bytes) -> str:
        """How a complete file differs from what was written; it may have been removed since."""
        try:
            with self._folder_of(path) as (folder, name):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        except OSError as error:
            return error.strerror or str(error)
        size = self._files[path].size
        return "" if found == size else f"it has {found} of {size} bytes"

    def _name(self, path: bytes) -> str:
        number, _, rest = path.partition(b"/")
        try:
            return str(self._roots[int(number)] / os.fsdecode(rest))
        except (IndexError, ValueError):
            return repr(path)

    def _names(self, paths: Sequence[bytes]) -> str:
        shown = [self._name(path) for path in paths[:_SHOWN]]
        more = len(paths) - len(shown)
        return ", ".join(shown) + (f" and {more} more files" if more else "")


def _check_path(path: bytes, roots: int) -> None:
    number, *others = path.split(b"/")
    if not (number.isdigit() and len(number) < 9 and str(int(number)).encode() == number and int(number) < roots):
        raise TransferError(f"the path {path!r:.80} is in none of the launcher's {roots} folders")
    if not others or any(each in (b"", b".", b"..") or b"\0" in each for each in others):
        raise TransferError(f"the path {path!r:.80} leads out of the launcher's folder")


def _exists(name: bytes, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
