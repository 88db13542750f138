"""The launcher's end of a session's coordinator: starts the process, reads its reports.

In: a folder with run.json. Out: the address for ranks, which is valid at once, and reports
(coordinator/session/session_process.py).
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maya.session.environment import CoordinatorAddress

_ROOT = Path(__file__).parents[2]
# As the installed commands start, so that a module of the user's called `coordinator` is not imported.
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop()); "
    "from coordinator.session.session_process import main; sys.exit(main())"
)
_END_SECONDS = 20.0


class CoordinatorProcess:
    """A coordinator. After close() the process has ended."""

    def __init__(
        self, folder: Path, gpus_per_node: int, hang_after: float, *, virtual_clock: bool, reports_at_once: bool
    ) -> None:
        self.address = CoordinatorAddress(f"ipc://@maya-{secrets.token_hex(8)}", secrets.token_hex(16))
        self._reports, write = os.pipe2(os.O_CLOEXEC)
        self._rest = b""
        settings = {
            "secret": self.address.secret,
            "endpoint": self.address.endpoint,
            "folder": str(folder),
            "gpus_per_node": gpus_per_node,
            "hang_after": hang_after,
            "virtual_clock": virtual_clock,
            "reports_at_once": reports_at_once,
            "report_descriptor": write,
            "parent": os.getpid(),
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, json.dumps(settings), str(_ROOT)],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(write,),
                env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            )
        finally:
            os.close(write)

    def reports(self, seconds: float = 0.0) -> Iterator[dict[str, Any]]:
        """The reports that have arrived, waiting up to `seconds` for the first."""
        while self._reports >= 0 and select.select([self._reports], [], [], seconds)[0]:
            seconds = 0.0
            chunk = os.read(self._reports, 1 << 16)
            if not chunk:
                os.close(self._reports)
                self._reports = -1
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            yield from map(json.loads, lines)

    def finish(self) -> Iterator[dict[str, Any]]:
        """End the session; yields the last reports."""
        self._process.terminate()
        deadline = time.monotonic() + _END_SECONDS
        while self._reports >= 0 and time.monotonic() < deadline:
            yield from self.reports(0.5)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._reports >= 0:
            os.close(self._reports)
            self._reports = -1
