"""The launcher's end of a zygote: starts the process, writes its plan, sends commands, reads reports.

In: a `Preparation`, then a `Start`. Out: lines of JSON (rank_runtime/zygote/protocol.py) from the zygote and from the
coordinator, which is its child.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from maya.launcher import rank_debugger
from maya.launcher.arguments import UsageError
from maya.nodes.zygotes import Zygotes
from rank_runtime.zygote.immortal_objects import FEWEST_RANKS
from rank_runtime.zygote.protocol import (
    BIND_AT_ONCE,
    ENTRY,
    VARIABLE,
    Descriptors,
    PlanFile,
    Preparation,
    Start,
    write_line,
)


def _loading(processes: int) -> dict[str, str]:
    """Let the dynamic loader bind functions at once: with lazy binding, many ranks would unshare pages by binding."""
    return {BIND_AT_ONCE: "1"} if processes >= FEWEST_RANKS else {}


class ZygoteProcess(Zygotes):
    """The zygote on this machine, which forks the ranks."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        preparation: Preparation,
        output: tuple[int, int] | None = None,
    ) -> None:
        """`command`: the command line of a rank. `environment`: the variables that all ranks share. `output`: the
        descriptors of its standard output and error, without standard input; None: those of this process."""
        self._plan_descriptor = os.memfd_create("maya-plan")
        self._plan = PlanFile(self._plan_descriptor)
        self._write(preparation)
        commands_read, self._commands = os.pipe2(os.O_CLOEXEC)
        reports_read, reports_write = os.pipe2(os.O_CLOEXEC)
        super().__init__(reports_read)
        descriptors = Descriptors(self._plan_descriptor, commands_read, reports_write, os.getpid())
        path = environment.get("PYTHONPATH")
        stdout, stderr = output or (None, None)
        try:
            self._process = subprocess.Popen(
                command,
                env={
                    **_loading(preparation.processes),
                    **environment,
                    "PYTHONPATH": str(ENTRY) + (os.pathsep + path if path else ""),
                    VARIABLE: descriptors.text(),
                },
                stdin=None if output is None else subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(descriptors.plan, descriptors.commands, descriptors.reports),
                start_new_session=True,  # Ctrl-C on the terminal reaches the launcher only
            )
        finally:
            os.close(commands_read)
            os.close(reports_write)

    def start(self, start: Start) -> None:
        self._write(start)
        self._has_ranks = True
        self._command({"start": True})

    def _write(self, part: Preparation | Start) -> None:
        try:
            self._plan.write(part)
        except OSError as error:  # it is a file in memory
            advice = "; raise the limit on file sizes (ulimit -f)" if error.errno == errno.EFBIG else ""
            raise UsageError(f"cannot start the ranks: {error.strerror}{advice}") from error

    def signal(self, number: signal.Signals) -> None:
        self._command({"signal": int(number)})

    def go_on(self) -> None:
        self._command({"continue": True})

    def attach(self, rank: int, process: int, endpoint: str) -> socket.socket | None:
        return rank_debugger.attach(process, endpoint)

    def detach(self, rank: int, process: int) -> None:
        rank_debugger.stop(process)

    def kill(self) -> None:
        self._process.kill()

    def finish(self) -> None:
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1

    def close(self) -> None:
        self.finish()
        os.close(self._plan_descriptor)
        os.close(self._reports.descriptor)
        self.exit_code = self._process.wait()

    def kill_groups(self, running: Collection[int]) -> None:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)

    def _command(self, line: Mapping[str, Any]) -> None:
        if self._commands >= 0:
            write_line(self._commands, line)
