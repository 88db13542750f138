"""What the tests share: the build of the fake libraries, a way to run a script on virtual GPUs, and a check that a test
leaves nothing behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.program_parts import Part, Parts
from helpers.script_run import MayaRun, runner_in

from rank_runtime.build import Build, ensure_built

_PATIENCE_SECONDS = 5.0

# A shell that starts the tests in the background, or nohup, has signals ignored, and children inherit that.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session")
def build() -> Build:
    """The fake libraries for the installed torch; made once, and kept between sessions."""
    return ensure_built()


@pytest.fixture
def maya_run(build: Build, tmp_path: Path) -> MayaRun:
    """Runs maya-torchrun on a script given as text: maya_run(text, "--gpu", "a40", script_arguments=["--fast"])."""
    return runner_in(tmp_path)


@pytest.fixture(scope="module")
def maya_run_once(build: Build, tmp_path_factory: pytest.TempPathFactory) -> MayaRun:
    """As `maya_run`, for a run that all tests of a module look at."""
    return runner_in(tmp_path_factory.mktemp("module"))


@pytest.fixture(scope="module")
def parts(maya_run_once: MayaRun, request: pytest.FixtureRequest) -> Parts:
    """The parts of the module's PROGRAM (helpers/program_parts.py)."""
    found: Parts = request.module.PROGRAM.run(maya_run_once)
    return found


@pytest.fixture
def part(parts: Parts, request: pytest.FixtureRequest) -> Part:
    """The part that is declared beside the test."""
    return parts.of(request.function)


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
