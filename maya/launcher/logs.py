"""Where a run keeps its files, and how a worker's output reaches files and the console.

Logs lie where torchrun puts them: <log folder>/<run id>_<random>/attempt_<n>/<rank>/{stdout.log,stderr.log,error.json}.
"""

from __future__ import annotations

import os
import string
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TextIO

from maya.launcher.arguments import LaunchOptions, UsageError

_TAIL_SECONDS = 0.05
_TAIL_PAUSE = 9  # times as long as it takes to look at all files


def make_run_folder(launch: LaunchOptions) -> Path:
    """The folder the user named, which must be empty, or a new one named after the script."""
    if launch.out is not None:
        try:
            launch.out.mkdir(parents=True, exist_ok=True)
            occupied = any(launch.out.iterdir())
        except OSError as error:
            raise UsageError(f"--out {launch.out}: {error.strerror}") from error
        if occupied:
            raise UsageError(f"--out {launch.out} is not empty; name another folder, or remove it")
        return launch.out.absolute()
    return new_run_folder(launch.script)


def new_run_folder(script: str, under: Path | None = None) -> Path:
    """A new folder maya-runs/<script>-<n>, `under` this one or the current one."""
    name = Path(script).stem or "run"
    number = 1
    while True:
        folder = (under or Path()).absolute() / "maya-runs" / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UsageError(f"cannot make {folder}: {error.strerror}; name another folder with --out") from error


def make_log_folder(launch: LaunchOptions, run_folder: Path) -> Path:
    base = launch.log_folder or run_folder / "logs"
    try:
        base.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{launch.run_id}_", dir=base)).absolute()
    except OSError as error:
        raise UsageError(
            f"cannot write logs to {base}: {error.strerror}; name another folder with --log-dir"
        ) from error


@dataclass(frozen=True)
class Output:
    """Where one stream of a worker goes: a file, or the launcher's own; and whether the console follows the file."""

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
        raise UsageError(f"cannot make {folder}: {error.strerror}") from error
    local_rank = rank % launch.ranks_per_node
    on_console = launch.local_ranks is None or local_rank in launch.local_ranks
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
    """A growing file, and how far it has been shown."""

    def __init__(self, file: Path, prefix: str, console: TextIO) -> None:
        self._file = file
        self._prefix = prefix
        self._console = console
        self._shown = 0
        self._begun = b""

    def show(self, *, complete: bool) -> bool:
        """Write the lines that have come, each with the prefix; whether there were any. A line is shown when it has an
        end, or when the file is complete."""
        try:
            if self._file.stat().st_size == self._shown and not (complete and self._begun):
                return False
            with self._file.open("rb") as source:  # open only while it is read: there may be thousands of files
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


class Follower:
    """While entered, copies growing files to the console, line by line with a prefix; they are complete at its end."""

    def __init__(self, files: Sequence[Followed]) -> None:
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
            # Looking takes time, too, when there are many.
            self._complete.wait(max(_TAIL_SECONDS, _TAIL_PAUSE * (time.monotonic() - began)))
        for file in self._files:
            file.show(complete=True)
