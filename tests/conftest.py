"""What the tests share: the build of the fake libraries, a way to run a script on virtual GPUs, and a check that a test
leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rank_runtime.build import Build, ensure_built

_PATIENCE_SECONDS = 5.0

# A shell that starts the tests in the background, or nohup, has signals ignored, and children inherit that.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


@dataclass(frozen=True)
class Run:
    """A finished maya-torchrun."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path  # its --out

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    @property
    def trace(self) -> Path:
        return self.folder / "rank0.trace"


@pytest.fixture(scope="session")
def build() -> Build:
    """The fake libraries for the installed torch; made once, and kept between sessions."""
    return ensure_built()


@pytest.fixture
def maya_run(build: Build, tmp_path: Path) -> Callable[..., Run]:
    """Runs maya-torchrun on a script given as text: maya_run(text, "--gpu", "a40", script_arguments=["--fast"])."""

    def run(
        script_text: str,
        *options: str,
        script_arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        timeout: float = 180,
    ) -> Run:
        number = len(list(tmp_path.glob("script*.py"))) + 1
        script = tmp_path / f"script{number}.py"
        script.write_text(textwrap.dedent(script_text), encoding="utf-8")
        folder = tmp_path / f"run{number}"
        ended = subprocess.run(
            [sys.executable, "-m", "maya.launcher", "--out", str(folder), *options, str(script), *script_arguments],
            cwd=tmp_path,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Run(ended.returncode, ended.stdout, ended.stderr, folder)

    return run


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test after which a process, a thread, an open file or our shared memory is there that was not before."""
    before = _belongings()
    yield
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while left := _belongings() - before:
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {', '.join(sorted(left))}")
        time.sleep(0.05)


def _belongings() -> set[str]:
    found = {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}
    for child in psutil.Process().children(recursive=True):
        found.add(f"process {child.pid}")
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = descriptor.readlink()
        except FileNotFoundError:  # the one that listed the folder
            continue
        if str(target).startswith(("socket:", "pipe:")) or target.is_file():
            found.add(f"descriptor {descriptor.name} of {target}")
    shared_memory = Path("/dev/shm")
    if shared_memory.is_dir():
        found |= {f"shared memory {path.name}" for path in shared_memory.glob("*maya*")}
    return found
