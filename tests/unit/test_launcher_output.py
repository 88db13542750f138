"""The output of maya-torchrun while a job runs: the ranks' logs, line by line, and its progress."""

from __future__ import annotations

import io
from pathlib import Path

from maya.launcher.logs import Followed
from maya.launcher.progress import Progress

# ---- parts ----


def test_files_are_followed_line_by_line(tmp_path: Path) -> None:
    console = io.StringIO()
    file = tmp_path / "stdout.log"
    followed = Followed(file, "[default0]:", console)
    assert not followed.show(complete=False)  # not there yet
    with file.open("wb") as growing:
        for piece in (b"one\ntw", b"o\n\xff\n", b"", b"three"):
            growing.write(piece)
            growing.flush()
            assert followed.show(complete=False) == bool(piece)
    followed.show(complete=True)
    assert console.getvalue() == "[default0]:one\n[default0]:two\n[default0]:\ufffd\n[default0]:three\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_names_the_phase_of_the_job() -> None:
    progress = Progress(8, Terminal())
    seen = [progress.text()]
    for name, value in (("started", 3), ("started", 8), ("joined", 5), ("joined", 8), ("steps", 2), ("finished", 1)):
        setattr(progress, name, value)
        seen.append(progress.text())
    assert [text.removeprefix("maya-torchrun: ") for text in seen] == [
        "importing modules",
        "3 of 8 ranks started",
        "0 of 8 ranks initialised",
        "5 of 8 ranks initialised",
        "8 of 8 ranks initialised",
        "optimizer step 2",
        "1 of 8 ranks finished",
    ]
    assert Progress(1, Terminal()).seconds() is None
