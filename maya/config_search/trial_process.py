"""A run of maya-torchrun as a process of the search.

In: words of maya-torchrun, a folder and a log file. Out: the exit code. The job ends in order when the search does: it
gets a SIGTERM even if the search is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from maya.api.job_launch import END_SECONDS, START

_PR_SET_PDEATHSIG = 1


class TrialProcess:
    """A job. `environment`: all of it. `lock`: a descriptor that the process keeps open as long as it runs."""

    def __init__(
        self, words: Sequence[str], run: Path, log: Path, environment: Mapping[str, str], lock: int | None = None
    ) -> None:
        self.run = run
        self.log = log
        self._began = time.monotonic()
        library = ctypes.CDLL(None)  # loaded before the fork
        parent = os.getpid()

        def end_with_parent() -> None:
            library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)

        with log.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, "--out", str(run), *words],
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the search itself decides what an interrupt means
                pass_fds=() if lock is None else (lock,),
                preexec_fn=end_with_parent,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def exit_code(self) -> int | None:
        """None: it still runs."""
        return self._process.poll()

    def interrupt(self) -> None:
        """Ask the job to end in order."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def wait_for_end(self) -> None:
        """Wait after `interrupt`; a job that does not end is killed."""
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
