"""The files of a node and those of the launcher are equal at the end, whatever happens to them on the way."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest
from helpers.mutations import STRANGE, damaged_bytes
from helpers.trace_writer import TraceWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.nodes.content_cuts import cut
from maya.nodes.file_parts import BLOCK_BYTES, CONTENT, FilePart, PartKind, RecentContents, TransferError
from maya.nodes.file_receiver import FileReceiver
from maya.nodes.file_sender import FileSender
from maya.trace import RecordKind

WIDE = 1 << 30  # room for everything


def refuse_to_say(text: str) -> None:
    raise AssertionError(text)


class Transfer:
    """A node's folder, the launcher's two folders, and what connects them."""

    def __init__(
        self, folder: Path, step: float = 1e-6, say: Callable[[str], None] = refuse_to_say, roots: int = 2
    ) -> None:
        """`step`: seconds that pass whenever the sender looks at its clock."""
        self._now, self._step = 0.0, step
        self.node = folder / "node"
        self.roots = [folder / "launcher" / str(number) for number in range(roots)]
        for number, root in enumerate(self.roots):
            (self.node / str(number)).mkdir(parents=True)
            root.mkdir(parents=True)
        self.sender = FileSender(self.node, self._clock)
        self.receiver = FileReceiver(self.roots, say)
        self.parts: list[FilePart] = []

    def pass_on(self, parts: list[FilePart]) -> None:
        for part in parts:
            self.parts.append(part)
            self.receiver.write(FilePart.from_fields(msgpack.unpackb(msgpack.packb(part.as_fields()))))

    def _clock(self) -> float:
        self._now += self._step
        return self._now

    def poll(self, room: int = WIDE, times: int = 100) -> None:
        """Polls after a pause."""
        self._now += 1000.0
        for _ in range(times):
            self.pass_on(self.sender.poll(room))

    def finish(self, room: int = WIDE) -> None:
        while not self.sender.is_finished:
            self.pass_on(self.sender.finish(room))

    def content_bytes(self) -> int:
        return sum(len(part.data) for part in self.parts if part.kind in (PartKind.COMPRESSED, PartKind.STORED))


@pytest.fixture
def transfer(tmp_path: Path) -> Transfer:
    return Transfer(tmp_path)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_equal(transfer: Transfer) -> None:
    assert transfer.receiver.missing() == []
    assert tree(transfer.roots[0].parent) == tree(transfer.node)


# ---- any changes ----

NAMES = ("0/a", "0/d", "0/d/a", "1/a\udcff")
LENGTHS = st.sampled_from([0, 1, 300, 5000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 700_000])
CHANGES = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(NAMES), LENGTHS, st.integers(0, 3)),
    st.tuples(st.just("rewrite"), st.sampled_from(NAMES), LENGTHS, st.integers(0, 3)),
    st.tuples(st.just("overwrite"), st.sampled_from(NAMES), LENGTHS, st.integers(0, 3)),
    st.tuples(st.just("seek"), st.sampled_from(NAMES), LENGTHS, st.integers(0, 3)),
    st.tuples(st.just("truncate"), st.sampled_from(NAMES), LENGTHS, st.just(0)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.just(0), st.just(0)),
    st.tuples(st.just("rename"), st.sampled_from(NAMES), st.just(0), st.integers(0, len(NAMES) - 1)),
    st.tuples(st.just("link"), st.sampled_from(NAMES), st.just(0), st.integers(0, len(NAMES) - 1)),
    st.tuples(st.just("poll"), st.just(""), st.sampled_from([1, 1000, WIDE]), st.sampled_from([1, 2, 5, 100])),
)


def content(length: int, seed: int) -> bytes:
    """Content that repeats itself for some seeds, does not for others, and is zero for one."""
    return bytes(length) if seed == 0 else Random(seed).randbytes(min(length, 4096 * seed * seed)).ljust(length, b"x")


def change(transfer: Transfer, kind: str, name: str, length: int, other: int) -> None:
    path = transfer.node / name
    if kind == "poll":
        transfer.poll(length, other)
        return
    with suppress(OSError):  # the folder is a file, or the file does not exist
        if kind in ("append", "rewrite"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab" if kind == "append" else "wb") as file:
                file.write(content(length, other))
        elif kind in ("overwrite", "seek"):
            with path.open("r+b") as file:
                file.seek(length if kind == "overwrite" else 3 * length)
                file.write(content(1000, other))
        elif kind == "truncate":
            os.truncate(path, length)
        elif kind == "remove":
            path.unlink()
        else:
            target = transfer.node / NAMES[other]
            for folder in (path, target):  # a folder is in the way
                if folder.is_dir():
                    folder.rmdir()
            target.parent.mkdir(parents=True, exist_ok=True)
            if kind == "rename":
                path.rename(target)
            else:
                os.link(path, target)


@given(
    st.lists(CHANGES, min_size=5, max_size=30), st.sampled_from([1e-6, 1e-6, 0.03]), st.sampled_from([1, 70_000, WIDE])
)
@settings(max_examples=150, deadline=None)
def test_folders_are_equal_after_any_changes(changes: list[tuple[str, str, int, int]], step: float, room: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        transfer = Transfer(Path(folder), step)
        for each in changes:
            change(transfer, *each)
        transfer.finish(room)
        check_equal(transfer)


# ---- what is sent ----


def trace_of(rank: int) -> bytes:
    """The trace of a rank that does the same as the others, at other times and with other addresses."""
    draw = Random(rank)
    writer = TraceWriter(rank, per_block=4000)
    for number in range(8000):
        fields = {"host_ns": 1000 * number + draw.randrange(1000), "value": draw.randrange(1 << 24)}
        writer.add(Random(number).choice(list(RecordKind)), f"signature {number * number % 97}", **fields)
    with tempfile.TemporaryDirectory() as folder:
        return writer.save(Path(folder)).read_bytes()


def test_a_file_arrives_while_it_grows(transfer: Transfer) -> None:
    for line in ("one\n", "two\n"):
        with (transfer.node / "0/log").open("a") as file:
            file.write(line)
        transfer.poll()
        assert tree(transfer.roots[0]) == tree(transfer.node / "0")
    assert [part.offset for part in transfer.parts if part.kind in CONTENT] == [0, 4]
    transfer.finish()
    check_equal(transfer)


def test_equal_columns_of_traces_are_sent_once(transfer: Transfer) -> None:
    """Those of kinds, ops and signatures; times and addresses differ."""
    (transfer.node / "0/rank0.trace").write_bytes(trace_of(0))
    transfer.poll()
    first = transfer.content_bytes()
    for rank in range(1, 8):
        (transfer.node / f"0/rank{rank}.trace").write_bytes(trace_of(rank))
    transfer.poll()
    references = sum(isinstance(each, bytes) for part in transfer.parts for each in part.segments)
    assert references >= 7 * 4
    assert first < transfer.content_bytes() < 8 * first * 0.85
    transfer.finish()
    check_equal(transfer)


@pytest.mark.parametrize("begin", [0, 1, 5000, 70_000])
def test_cuts_do_not_depend_on_where_a_piece_begins(begin: int) -> None:
    trace = trace_of(3)
    whole, piece = ([bytes(each) for each in cut(content)] for content in (trace, trace[begin:]))
    assert b"".join(whole) == trace
    assert set(piece[len(piece) // 2 :]) <= set(whole)
    assert len(whole) > 10


def test_a_renamed_file_is_not_sent_again(transfer: Transfer) -> None:
    """torch and Maya write a temporary file and rename it."""
    temporary = transfer.node / "0/checkpoint.tmp"
    temporary.write_bytes(Random(1).randbytes(3_000_000))
    transfer.poll()
    temporary.rename(transfer.node / "0/checkpoint")
    transfer.finish()
    check_equal(transfer)
    assert transfer.content_bytes() == 3_000_000


def test_files_of_a_renamed_folder_are_not_sent_again(transfer: Transfer) -> None:
    folder = transfer.node / "0/step_10.tmp"
    folder.mkdir()
    for number in range(3):
        (folder / str(number)).write_bytes(Random(number).randbytes(100_000))
    transfer.poll()
    folder.rename(transfer.node / "0/step_10")
    transfer.finish()
    check_equal(transfer)
    assert transfer.content_bytes() == 300_000
    assert [path.name for path in transfer.roots[0].iterdir()] == ["step_10"]


def test_two_files_that_trade_places_arrive(transfer: Transfer) -> None:
    one, other, third = (transfer.node / "0" / name for name in ("one", "other", "third"))
    one.write_text("one")
    other.write_text("other")
    transfer.poll()
    one.rename(third)
    other.rename(one)
    third.rename(other)
    transfer.poll()
    assert tree(transfer.roots[0]) == {"one": b"other", "other": b"one"}
    transfer.finish()
    check_equal(transfer)


def test_a_change_inside_a_file_that_also_grows_is_found_at_the_end(transfer: Transfer) -> None:
    """As zipfile writes archives. Only the block with the change is sent again."""
    with (transfer.node / "0/archive").open("wb") as file:
        file.write(Random(1).randbytes(10 * BLOCK_BYTES))
        file.flush()
        transfer.poll()
        file.write(b"more")
        file.seek(5)
        file.write(b"the checksum")
    transfer.poll()
    transfer.finish()
    check_equal(transfer)
    assert transfer.content_bytes() == 11 * BLOCK_BYTES + 4


def test_changes_of_equal_size_arrive_while_the_job_runs(transfer: Transfer) -> None:
    path = transfer.node / "0/state"
    path.write_bytes(b"before")
    transfer.poll()
    path.write_bytes(b"after ")
    os.utime(path, ns=(0, 0))
    transfer.poll()
    assert tree(transfer.roots[0]) == {"state": b"after "}


def test_sparse_files_stay_sparse(transfer: Transfer) -> None:
    path = transfer.node / "0/checkpoint"
    with path.open("wb") as file:
        for position in (0, 1 << 30, 3 << 30):
            file.seek(position)
            file.write(b"content")
        file.truncate(5 << 30)
    transfer.finish()
    assert transfer.receiver.missing() == []
    received = (transfer.roots[0] / "checkpoint").stat()
    assert received.st_size == 5 << 30
    assert received.st_blocks * 512 <= 3 * BLOCK_BYTES
    with (transfer.roots[0] / "checkpoint").open("rb") as file:
        file.seek(3 << 30)
        assert file.read(8) == b"content\0"


def test_forgotten_content_is_sent_again(transfer: Transfer) -> None:
    """Both ends remember a limited amount."""
    first = Random(0).randbytes(BLOCK_BYTES)
    (transfer.node / "0/a").write_bytes(first)
    transfer.poll()
    (transfer.node / "0/b").write_bytes(first + Random(1).randbytes(20 << 20))
    transfer.poll(times=1000)
    (transfer.node / "0/c").write_bytes(first)
    transfer.finish()
    check_equal(transfer)
    assert transfer.content_bytes() == 2 * len(first) + (20 << 20)


def test_what_is_remembered_depends_on_calls_alone() -> None:
    recent: RecentContents[int] = RecentContents(limit=100)
    for number in range(4):
        recent.add(bytes([number]), 30, number)
        recent.find(b"\1")
    assert [recent.find(bytes([number])) for number in range(4)] == [None, 1, 2, 3]


def test_parts_fit_into_the_room(transfer: Transfer) -> None:
    (transfer.node / "0/a").write_bytes(Random(1).randbytes(1 << 20))
    assert transfer.sender.finish(0) == []
    while not transfer.sender.is_finished:
        parts = transfer.sender.finish(300_000)
        assert sum(part.wire_bytes for part in parts[:-1]) < 300_000
        transfer.pass_on(parts)
    check_equal(transfer)


def test_looking_for_changes_takes_a_twentieth_of_the_time(tmp_path: Path) -> None:
    transfer = Transfer(tmp_path, step=1.0)
    transfer.poll()
    assert transfer.sender.seconds_until_due() >= 15


def test_links_and_files_of_the_agent_are_not_sent(transfer: Transfer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (transfer.node / "0/link").symlink_to(tmp_path / "secret")
    (transfer.node / "0/folder").symlink_to(tmp_path)
    (transfer.node / "settings").write_text("the agent's")
    os.mkfifo(transfer.node / "0/pipe")
    transfer.finish()
    assert transfer.receiver.missing() == []
    assert tree(transfer.roots[0].parent) == {}


def test_a_lost_node_folder_removes_nothing_at_the_launcher(transfer: Transfer) -> None:
    """Something cleans up /tmp."""
    (transfer.node / "0/a").write_text("content")
    transfer.poll()
    shutil.rmtree(transfer.node)
    transfer.finish()
    assert tree(transfer.roots[0]) == {"a": b"content"}


# ---- what cannot be written ----


@contextmanager
def limited(kind: int, limit: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_a_full_disk_is_said_once_and_costs_the_files_that_do_not_fit(tmp_path: Path) -> None:
    said: list[str] = []
    transfer = Transfer(tmp_path, say=said.append)
    for name, size in (("a", 900_000), ("b", 900_000), ("small", 1000)):
        (transfer.node / "0" / name).write_bytes(Random(1).randbytes(size))
    with limited(resource.RLIMIT_FSIZE, 300_000):  # a full disk
        transfer.finish()
    [text] = said
    assert "File too large. The file stays incomplete; the job goes on; raise the limit" in text
    [text] = transfer.receiver.missing()
    assert text.endswith("incomplete: File too large")
    assert {str(transfer.roots[0] / name) in text for name in "ab"} == {True}
    small = tree(transfer.roots[0])["small"]
    assert small == tree(transfer.node)["0/small"]


def test_files_that_the_node_cannot_read_are_said(transfer: Transfer) -> None:
    (transfer.node / "0/a").write_text("content")
    with limited(resource.RLIMIT_NOFILE, 3):
        parts = transfer.sender.finish(WIDE)
    transfer.pass_on(parts)
    assert transfer.sender.is_finished
    [text] = transfer.receiver.missing()
    assert text.endswith("not readable on the node: Too many open files")


def test_a_run_folder_removed_during_the_job_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    transfer = Transfer(tmp_path, say=said.append)
    (transfer.node / "0/a").write_text("content")
    transfer.poll()
    shutil.rmtree(transfer.roots[0])
    (transfer.node / "0/b").write_text("content")
    transfer.finish()
    assert [text.partition(". ")[0] for text in said] == [
        f"cannot write {transfer.roots[0]}/b: No such file or directory"
    ]
    [text] = transfer.receiver.missing()
    assert text.endswith("a, " + f"{transfer.roots[0]}/b: incomplete: No such file or directory")
    assert not transfer.roots[0].exists()


def test_files_of_a_node_that_was_lost_are_incomplete(transfer: Transfer) -> None:
    for number in range(5):
        (transfer.node / f"0/rank{number}.trace").write_text("content")
    transfer.poll()
    [text] = transfer.receiver.missing()
    assert text.endswith("and 2 more files: incomplete: its last part did not arrive")


# ---- what is refused ----


def begun(path: bytes, number: int = 1) -> FilePart:
    return FilePart(number, PartKind.BEGUN, path)


@pytest.mark.parametrize(
    "path", [b"", b"0", b"/etc/passwd", b"0/../a", b"0/./a", b"0//a", b"2/a", b"-1/a", b"00/a", b"x/a", b"0/a\0", b"0/"]
)
def test_paths_out_of_the_roots_are_refused(transfer: Transfer, path: bytes) -> None:
    with pytest.raises(TransferError, match="path"):
        transfer.receiver.write(begun(path))
    assert tree(transfer.roots[0].parent) == {}


def test_files_of_others_are_not_touched(transfer: Transfer) -> None:
    """Those of the launcher, and those of other nodes."""
    (transfer.roots[0] / "run.json").write_text("the launcher's")
    with pytest.raises(TransferError, match=r"run\.json exists, and is not a file of this node"):
        transfer.receiver.write(begun(b"0/run.json"))
    transfer.receiver.write(begun(b"0/a", 2))
    with pytest.raises(TransferError, match=r"run\.json exists"):
        transfer.receiver.write(FilePart(3, PartKind.RENAMED, b"0/run.json", data=b"0/a"))
    with pytest.raises(TransferError, match="came before the file"):
        transfer.receiver.write(FilePart(4, PartKind.REMOVED, b"0/run.json"))
    assert (transfer.roots[0] / "run.json").read_text() == "the launcher's"
    with pytest.raises(TransferError, match="a exists"):
        FileReceiver(transfer.roots, refuse_to_say).write(begun(b"0/a"))


@pytest.mark.parametrize("path", [b"0/link/a", b"0/link", b"0/file/a"])
def test_links_are_not_followed(transfer: Transfer, tmp_path: Path, path: bytes) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (transfer.roots[0] / "link").symlink_to(outside)
    (transfer.roots[0] / "file").touch()
    with pytest.raises(TransferError, match="link"):
        transfer.receiver.write(begun(path))
    assert tree(outside) == {}


def test_a_file_that_became_a_link_is_not_followed(transfer: Transfer, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("outside")
    transfer.receiver.write(begun(b"0/a"))
    (transfer.roots[0] / "a").unlink()
    (transfer.roots[0] / "a").symlink_to(tmp_path / "outside")
    with pytest.raises(TransferError, match="leads through a link"):
        transfer.receiver.write(FilePart(2, PartKind.STORED, b"0/a", 0, (3,), b"new"))
    assert (tmp_path / "outside").read_text() == "outside"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"data": zlib.compress(bytes(10_000_000))}, "has not 1000 bytes"),
        ({"data": b"no zlib"}, "damaged"),
        ({"segments": (999,)}, "has not 999 bytes"),
        ({"segments": (1000, bytes(16))}, "unknown content"),
        ({"segments": (BLOCK_BYTES, 1)}, "too long"),
        ({"number": 4}, "part 4 of its files came instead of part 2"),
        ({"path": b"0/b"}, "came before the file"),
        ({"kind": PartKind.SIZED, "offset": 1}, None),
    ],
)
def test_damaged_parts_are_refused(transfer: Transfer, changed: dict[str, Any], reason: str | None) -> None:
    part = FilePart(2, PartKind.COMPRESSED, b"0/a", 0, (1000,), zlib.compress(b"abcde" * 200))
    transfer.receiver.write(begun(b"0/a"))
    if reason is not None:
        with pytest.raises(TransferError, match=reason):
            transfer.receiver.write(replace(part, **changed))
        return
    transfer.receiver.write(part)
    with pytest.raises(TransferError, match="cannot shrink"):
        transfer.receiver.write(replace(part, number=3, **changed))


def test_a_file_that_is_not_what_was_sent_is_refused(transfer: Transfer) -> None:
    (transfer.node / "0/a").write_text("content")
    for part in transfer.sender.finish(WIDE):
        if part.kind == PartKind.COMPLETE:
            with pytest.raises(TransferError, match="is not what was sent"):
                transfer.receiver.write(replace(part, offset=6))
            return
        transfer.receiver.write(part)


def test_mutants_of_parts_write_nothing_outside_the_roots(tmp_path: Path) -> None:
    transfer = Transfer(tmp_path)
    (transfer.node / "0/rank0.trace").write_bytes(trace_of(0)[:20_000])
    (transfer.node / "1/logs").mkdir()
    (transfer.node / "1/logs/a.tmp").write_text("content")
    transfer.poll()
    (transfer.node / "1/logs/a.tmp").rename(transfer.node / "1/logs/a")
    transfer.finish()
    draw = Random(0)
    refused = 0
    for number in range(500):
        roots = tuple(tmp_path / str(number) / "inside" / each for each in "01")
        for root in roots:
            root.mkdir(parents=True)
        receiver = FileReceiver(roots, lambda _: None)
        damaged = draw.randrange(len(transfer.parts))
        try:
            for place, part in enumerate(transfer.parts):
                fields = part.as_fields()
                if place == damaged:
                    fields = damaged_fields(draw, fields)
                receiver.write(FilePart.from_fields(fields))
        except TransferError:
            refused += 1
        assert [path.name for path in (tmp_path / str(number)).iterdir()] == ["inside"]
        assert {path.name for path in (tmp_path / str(number) / "inside").iterdir()} == {"0", "1"}
        shutil.rmtree(tmp_path / str(number))
    assert refused > 400


def damaged_fields(draw: Random, fields: list[object]) -> list[object]:
    at = draw.randrange(len(fields))
    value = fields[at]
    if isinstance(value, bytes) and draw.random() < 0.7:
        value = draw.choice([damaged_bytes(draw, value), b"../" + value, b"/" + value, value.replace(b"/", b"/../")])
    else:
        value = draw.choice(STRANGE)
    return [*fields[:at], value, *fields[at + 1 :]]
