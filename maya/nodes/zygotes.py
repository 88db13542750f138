"""What an attempt at a job needs of the zygote on this machine (maya/launcher/zygote_process.py), or of those on all
nodes (node_zygotes.py).

In: a `Start`, then commands. Out: reports (rank_runtime/zygote/protocol.py).
"""

from __future__ import annotations

import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection
from types import TracebackType
from typing import Any, TypeVar

from rank_runtime.zygote.protocol import Lines, Start

Z = TypeVar("Z", bound="Zygotes")


class Zygotes(ABC):
    """One zygote or several. After close() none of their processes is left. A `with` block that ends in an exception
    closes them."""

    def __init__(self, reports: int) -> None:
        """`reports`: the descriptor that reports are read from."""
        self._reports = Lines(reports)
        self._has_ranks = False
        self.exit_code: int | None = None  # known after close()

    def __enter__(self: Z) -> Z:
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
        """Whether the zygotes and the coordinator have ended. Only `reports` updates this."""
        return self._reports.ended

    @abstractmethod
    def start(self, start: Start) -> None:
        """Fork the ranks."""

    @abstractmethod
    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process groups of all ranks."""

    @abstractmethod
    def go_on(self) -> None:
        """Continue ranks that were stopped for a debugger."""

    @abstractmethod
    def attach(self, rank: int, process: int, endpoint: str) -> socket.socket | None:
        """Let a stopped rank run, and start Python's debugger in it; None: its process does not listen."""

    @abstractmethod
    def detach(self, rank: int, process: int) -> None:
        """Stop a rank again."""

    @abstractmethod
    def kill(self) -> None:
        """Kill zygotes that have no ranks yet; the coordinator ends with them."""

    @abstractmethod
    def finish(self) -> None:
        """Tell the zygotes and the coordinator to end. Reports may still arrive."""

    @abstractmethod
    def close(self) -> None:
        """Wait for the end."""

    @abstractmethod
    def kill_groups(self, running: Collection[int]) -> None:
        """Kill what is left of the process groups of ranks: the ranks die with the zygote, their children do not."""
