"""Turns signals to the launcher into readable events."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType, TracebackType


class Signals:
    """While entered, the given signals have no effect except that `descriptor` becomes readable."""

    def __init__(self, numbers: Sequence[signal.Signals]) -> None:
        # A launcher started with nohup must outlive its terminal: do not handle SIGHUP.
        self._numbers = [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
        self._arrived: list[signal.Signals] = []

    def __enter__(self) -> Signals:
        self.descriptor, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._on_signal) for number in self._numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(self.descriptor)
        os.close(self._wakeup)

    def taken(self) -> list[signal.Signals]:
        """The signals that have arrived since the last call."""
        try:
            os.read(self.descriptor, 4096)
        except BlockingIOError:
            return []
        arrived, self._arrived = self._arrived, []
        return arrived

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(signal.Signals(number))
