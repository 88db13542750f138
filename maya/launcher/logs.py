"""Creates the folders of a run, and routes the workers' output to files and the console.

Log files lie where torchrun puts them:
<log folder>/<run id>_<random>/attempt_<n>/<rank>/{stdout.log,stderr.log,error.json}.
"""

from __future__ import annotations

import os
import shutil
import string
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, TextIO

from maya.launcher.arguments import LaunchOptions, UsageError

RUNS = "maya-runs"  # folder of runs without --out
_TAIL_SECONDS = 0.05
_TAIL_PAUSE = 9  # pause between two passes over the files, as a multiple of the time of a pass


def make_run_folder(launch: LaunchOptions) -> Path:
    """The folder that the user named, which must be empty; otherwise a new one named after the script."""
    if launch.out is None:
        return new_run_folder(launch.script)
    try:
        launch.out.mkdir(parents=True, exist_ok=True)
        if any(launch.out.iterdir()):
            raise UsageError(f"--out {launch.out} is not empty; choose another folder, or remove it")
        with tempfile.TemporaryFile(dir=launch.out):
            return launch.out.absolute()  # it can be written
    except OSError as error:
        raise UsageError(f"--out {launch.out}: {error.strerror}; choose another folder") from error


def discard_run_folder(folder: Path) -> None:
    """Empty the folder of a job that was refused before any rank ran, so that it can be named again. It was empty or
    missing, so all that it has is ours."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        if folder.parent.name == RUNS:  # the user did not name it
            folder.rmdir()
            folder.parent.rmdir()  # unless it has other runs


def new_run_folder(script: str, under: Path | None = None) -> Path:
    """Create a folder maya-runs/<script>-<n>, `under` a given folder or the current one."""
    name = Path(script).stem or "run"
    number = 1
    while True:
        folder = (under or Path()).absolute() / RUNS / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UsageError(f"cannot create {folder}: {error.strerror}; choose another folder with --out") from error


def make_log_folder(launch: LaunchOptions, run_folder: Path) -> Path:
    base = launch.log_folder or run_folder / "logs"
    try:
        base.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{launch.run_id}_", dir=base)).absolute()
    except OSError as error:
        raise UsageError(
            f"cannot write logs to {base}: {error.strerror}; choose another folder with --log-dir"
        ) from error


@dataclass(frozen=True)
class Output:
    """The destination of one output stream of a worker: a file (None: the launcher's own stream), and whether the
    console follows the file."""

    file: Path | None
    follow: bool


@dataclass(frozen=True)
class WorkerFiles:
    """The files of one worker in one attempt."""

    stdout: Output
    stderr: Output
    error_file: Path


def make_worker_files(launch: LaunchOptions, log_folder: Path, rank: int, attempt: int) -> WorkerFiles:
    folder = log_folder / f"attempt_{attempt}" / str(rank)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot create {folder}: {error.strerror}") from error
    local_rank = rank % launch.ranks_per_node
    on_console = launch.local_ranks is None or local_rank in launch.local_ranks
    on_console = on_console and (launch.shown_ranks is None or rank in launch.shown_ranks)
    redirects, tee = launch.redirects.of(local_rank), launch.tee.of(local_rank)

    def output(name: str, redirect: bool, tee: bool) -> Output:
        if redirect or tee:
            return Output(folder / name, follow=tee and on_console)
        return Output(None if on_console else Path(os.devnull), follow=False)

    return WorkerFiles(
        stdout=output("stdout.log", redirects.stdout, tee.stdout),
        stderr=output("stderr.log", redirects.stderr, tee.stderr),
        error_file=folder / "error.json",
    )


def line_prefix(launch: LaunchOptions, rank: int, environment: Mapping[str, str]) -> str:
    template = environment.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${role_name}${rank}]:")
    local_rank = rank % launch.ranks_per_node
    return string.Template(template).safe_substitute(role_name=launch.role, rank=rank, local_rank=local_rank)


class Followed:
    """A growing file, with the position up to which it has been shown."""

    def __init__(self, file: Path, prefix: str, console: TextIO) -> None:
        self._file = file
        self._prefix = prefix
        self._console = console
        self._shown = 0
        self._begun = b""

    def show(self, *, complete: bool) -> bool:
        """Write new lines to the console, each with the prefix; return whether the file has grown. An unfinished last
        line is shown only when the file is complete."""
        try:
            if self._file.stat().st_size == self._shown and not (complete and self._begun):
                return False
            with self._file.open("rb") as source:  # not kept open: there may be thousands of files
                source.seek(self._shown)
                content = source.read()
        except OSError:  # the rank has not started yet, or the file cannot be read now
            return False
        self._shown += len(content)
        *lines, self._begun = (self._begun + content).split(b"\n")
        if complete and self._begun:
            lines.append(self._begun)
            self._begun = b""
        if lines:
            texts = (line.decode(errors="replace") for line in lines)
            self._console.write("".join(f"{self._prefix}{text}\n" for text in texts))
            self._console.flush()
        return bool(content)


class Shown(Protocol):
    """What a `Follower` shows."""

    def show(self, *, complete: bool) -> bool: ...


class Follower:
    """While entered, copies growing files to the console, line by line with a prefix. The files must be complete when
    it is left."""

    def __init__(self, files: Sequence[Shown]) -> None:
        self._files = files
        self._complete = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow logs", daemon=True)

    def __enter__(self) -> Follower:
        if self._files:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._complete.set()
        if self._files:
            self._thread.join()

    def _run(self) -> None:
        while not self._complete.is_set():
            began = time.monotonic()
            for file in self._files:
                file.show(complete=False)
            # Polling thousands of files takes long: limit its share of the time.
            self._complete.wait(max(_TAIL_SECONDS, _TAIL_PAUSE * (time.monotonic() - began)))
        for file in self._files:
            file.show(complete=True)
