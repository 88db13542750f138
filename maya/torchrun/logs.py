"""Where a run keeps its files, and how a worker's output reaches files and the console.

Logs lie where torchrun puts them: <log folder>/<run id>_<random>/attempt_<n>/<rank>/{stdout.log,stderr.log,error.json}.
"""

from __future__ import annotations

import os
import string
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from maya.torchrun.arguments import Launch, UsageError

_TAIL_SECONDS = 0.05


def make_run_folder(launch: Launch) -> Path:
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
    name = Path(launch.script).stem or "run"
    number = 1
    while True:
        folder = Path("maya-runs", f"{name}-{number}").absolute()
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UsageError(f"cannot make {folder}: {error.strerror}; name another folder with --out") from error


def make_log_folder(launch: Launch, run_folder: Path) -> Path:
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


def make_worker_files(launch: Launch, log_folder: Path, rank: int, attempt: int) -> WorkerFiles:
    folder = log_folder / f"attempt_{attempt}" / str(rank)
    folder.mkdir(parents=True)

    def output(name: str, redirect: bool, tee: bool) -> Output:
        if redirect or tee:
            return Output(folder / name, follow=tee and launch.on_console)
        return Output(None if launch.on_console else Path(os.devnull), follow=False)

    return WorkerFiles(
        stdout=output("stdout.log", launch.redirects.stdout, launch.tee.stdout),
        stderr=output("stderr.log", launch.redirects.stderr, launch.tee.stderr),
        error_file=folder / "error.json",
    )


def line_prefix(launch: Launch, rank: int, environment: Mapping[str, str]) -> str:
    template = environment.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${role_name}${rank}]:")
    local_rank = rank % launch.ranks_per_node
    return string.Template(template).safe_substitute(role_name=launch.role, rank=rank, local_rank=local_rank)


class Follower:
    """Copies a growing file to the console, line by line with a prefix, until told that the file is complete."""

    def __init__(self, file: Path, prefix: str, console: TextIO) -> None:
        self._file = file
        self._prefix = prefix
        self._console = console
        self._complete = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follow {file.name}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self._complete.set()
        self._thread.join()

    def _run(self) -> None:
        with self._file.open(encoding="utf-8", errors="replace") as source:
            begun = ""
            while True:
                complete = self._complete.is_set()  # asked before reading, so that nothing written until then is missed
                *lines, begun = (begun + source.read()).split("\n")
                if complete and begun:
                    lines.append(begun)
                if lines:
                    self._console.write("".join(f"{self._prefix}{line}\n" for line in lines))
                    self._console.flush()
                if complete:
                    return
                self._complete.wait(_TAIL_SECONDS)
