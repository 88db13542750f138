"""Equal lines that failed ranks write to standard error are shown once, different ones each time."""

from __future__ import annotations

import io
from pathlib import Path

from maya.launcher.folded_lines import FoldedLines


class Job:
    """The files of failed ranks, and what the console has shown of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "failed"
        self._console = io.StringIO()
        self.lines = FoldedLines(self.folder, self._console)

    def write(self, rank: int, text: str) -> None:
        with (self.folder / f"stderr-{rank}").open("a", encoding="utf-8") as file:
            file.write(text)

    def shown(self, *, complete: bool = False) -> list[str]:
        before = len(self._console.getvalue())
        self.lines.show(complete=complete)
        return self._console.getvalue()[before:].splitlines()


def test_lines_that_differ_in_rank_and_time_are_shown_once_and_at_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in (2, 0, 1):
        job.write(
            rank, f"[rank{rank}]:[W1119 21:41:27.49691464{rank} Group.cpp:16] rank {rank} of 3 was not destroyed\n"
        )
        assert len(job.shown()) == (rank == 2)
    job.write(0, "half a line")
    assert job.shown() == []
    assert job.shown(complete=True) == ["[rank0]: half a line"]
    assert job.lines.close() == ["2 more lines on standard error were equal to those of other ranks"]
    assert not job.folder.exists()


def test_different_lines_are_all_shown_with_their_rank(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.write(0, "the batch is empty\nagain\nagain\n")
    job.write(1, "the batch is empty\nagain\n\nthe file is empty\n")
    assert job.shown() == [
        "[rank0]: the batch is empty",
        "[rank0]: again",
        "[rank0]: again",
        "",
        "[rank1]: the file is empty",
    ]
    assert job.lines.close() == ["2 more lines on standard error were equal to those of other ranks"]


def test_of_lines_that_differ_in_numbers_the_first_are_shown_and_the_files_kept(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(8):
        job.write(rank, f"rank {rank} has {100 + rank} rows\n")
    assert job.shown(complete=True) == [f"[rank{rank}]: rank {rank} has {100 + rank} rows" for rank in range(2)]
    assert str(job.folder) in job.lines.close()[0]
    assert (job.folder / "stderr-7").read_text(encoding="utf-8") == "rank 7 has 107 rows\n"


def test_nothing_is_said_where_no_rank_fails(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.shown(complete=True) == job.lines.close() == []
    assert not job.folder.exists()
