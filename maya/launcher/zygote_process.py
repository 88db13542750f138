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
from types import TracebackType
from typing import Any, Protocol

from maya.launcher import rank_debugger
from maya.launcher.arguments import UsageError
from rank_runtime.zygote.immortal_objects import FEWEST_RANKS
from rank_runtime.zygote.protocol import (
    BIND_AT_ONCE,
    ENTRY,
    VARIABLE,
    Descriptors,
    Lines,
    PlanFile,
    Preparation,
    Start,
    write_line,
)


def _loading(processes: int) -> dict[str, str]:
    """Let the dynamic loader bind functions at once: with lazy binding, many ranks would unshare pages by binding."""
    return {BIND_AT_ONCE: "1"} if processes >= FEWEST_RANKS else {}


class Zygotes(Protocol):
    """The zygote of a job, or those of all nodes."""

    @property
    def descriptor(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    def reports(self) -> list[dict[str, Any]]: ...
    def start(self, start: Start) -> None: ...
    def signal(self, number: signal.Signals) -> None: ...
    def go_on(self) -> None: ...
    def attach(self, rank: int, process: int, endpoint: str) -> socket.socket | None: ...
    def detach(self, rank: int, process: int) -> None: ...
    def kill(self) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...
    def kill_groups(self, running: Collection[int]) -> None: ...
    @property
    def exit_code(self) -> int | None: ...


class ZygoteProcess:
    """The zygote, which forks the ranks, seen from the launcher. After close() none of its processes is left. A `with`
    block that ends in an exception closes it."""

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
        self._reports = Lines(reports_read)
        self._has_ranks = False
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
        self.exit_code: int | None = None  # known after close()

    def __enter__(self) -> ZygoteProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.exit_code is not None:
            return
        if not self._has_ranks:
            self.kill()  # it is busy with imports
        self.finish()
        while not self.ended:
            self.reports()
        self.close()

    @property
    def descriptor(self) -> int:
        """Readable when there is a report, and at the end of reports."""
        return self._reports.descriptor

    def reports(self) -> list[dict[str, Any]]:
        return self._reports.read()

    @property
    def ended(self) -> bool:
        """Whether the zygote and the coordinator have ended. Only `reports` updates this."""
        return self._reports.ended

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
        """Send a signal to the process groups of all ranks."""
        self._command({"signal": int(number)})

    def go_on(self) -> None:
        """Continue ranks that were stopped for a debugger."""
        self._command({"continue": True})

    def attach(self, rank: int, process: int, endpoint: str) -> socket.socket | None:
        """Let a stopped rank run, and start Python's debugger in it; None: its process does not listen."""
        return rank_debugger.attach(process, endpoint)

    def detach(self, rank: int, process: int) -> None:
        """Stop a rank again."""
        rank_debugger.stop(process)

    def kill(self) -> None:
        """Kill a zygote that has no ranks yet; its coordinator ends with it."""
        self._process.kill()

    def finish(self) -> None:
        """Tell the zygote and the coordinator to end. Reports may still arrive."""
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1

    def close(self) -> None:
        self.finish()
        os.close(self._plan_descriptor)
        os.close(self._reports.descriptor)
        self.exit_code = self._process.wait()

    def kill_groups(self, running: Collection[int]) -> None:
        """Kill what is left of the process groups of ranks: the ranks die with the zygote, their children do not."""
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)

    def _command(self, line: Mapping[str, Any]) -> None:
        if self._commands >= 0:
            write_line(self._commands, line)
