"""The coordinator as a child of the launcher, for ranks on other machines (coordinator/separate_process.py).

In: its settings; lines about ranks. Out: the coordinator's reports, on a pipe that the caller reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rank_runtime.zygote.protocol import write_line

_ROOT = Path(__file__).parents[2]
# As the installed commands start, so that a module of the user's called `coordinator` is not imported.
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from coordinator.separate_process import main; sys.exit(main())"
)
_END_SECONDS = 20.0


class CoordinatorChild:
    """A coordinator. After close() the process has ended."""

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str], reports: int) -> None:
        """`environment`: of a rank on this machine, for the store needs torch. `reports`: where it writes."""
        control, self._control = os.pipe2(os.O_CLOEXEC)
        words = [str(reports), str(control), str(os.getpid()), str(_ROOT)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, *words],
                stdin=subprocess.PIPE,
                stdout=2,
                env=dict(environment),
                pass_fds=(reports, control),
                start_new_session=True,  # Ctrl-C on the terminal reaches the launcher only
            )
        finally:
            os.close(control)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(dict(settings)).encode() + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: Mapping[str, Any]) -> None:
        if self._control >= 0:
            write_line(self._control, line)

    def poll(self) -> int | None:
        """Its exit code, or a negative signal number; None while it runs."""
        return self._process.poll()

    def finish(self) -> None:
        """Tell it to report its statistics and end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        self.finish()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._control >= 0:
            os.close(self._control)
            self._control = -1
