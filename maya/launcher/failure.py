"""Reports failed workers in torchrun's format, which people and tools know.

In: the exit of a worker, and the error file that `torch.distributed.elastic.multiprocessing.errors.record` wrote, if
the script uses it. Out: the text; and the error file of an outer launcher, if this one runs under another.
"""

from __future__ import annotations

import json
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from maya.launcher.attempt import Exit
from maya.util.ranks import ranks_text

_WITHOUT_ERROR_FILE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
_WIDEST = 60
_MOST_SHOWN = 15  # failures besides the root cause; torchrun reports those of one node only
_MOST_ALIKE = 3  # ... with the same exit code and message
_MANY = 8  # of more failures than these, one with the same exit code and message is enough


@dataclass(frozen=True)
class Failure:
    """One failed worker."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    error_file: str
    message: str
    timestamp: int
    host: str = ""


def failures_of(exits: Sequence[Exit], ranks_per_node: int, error_file: Callable[[int], Path]) -> list[Failure]:
    """The failures of an attempt, in the order in which the launcher noticed them."""
    return [_failure(end, end.rank % ranks_per_node, error_file(end.rank)) for end in exits if end.exit_code != 0]


def _failure(end: Exit, local_rank: int, error_file: Path) -> Failure:
    """One failure. An error file that cannot be read counts as missing."""
    error = _read_error(error_file)
    if error is not None:
        message, timestamp = error
        return Failure(end.rank, local_rank, end.pid, end.exit_code, str(error_file), message, timestamp, end.host)
    message = _WITHOUT_ERROR_FILE
    if end.exit_code < 0:
        message = f"Signal {-end.exit_code} ({_signal_name(end.exit_code)}) received by PID {end.pid}"
    return Failure(end.rank, local_rank, end.pid, end.exit_code, "<N/A>", message, int(end.time), end.host)


def root_cause(failures: Sequence[Failure], blamed: int | None = None) -> Failure:
    """The failure of the rank that a report of a hang blames. Otherwise the earliest failure; if several have the same
    second, the one that the launcher noticed first."""
    for failure in failures:
        if failure.rank == blamed and failure.exit_code > 0:
            return failure
    return min(failures, key=lambda failure: failure.timestamp)


def failure_block(script: str, failures: Sequence[Failure], root: Failure) -> str:
    """The text that torchrun prints at the end of a failed job."""
    texts = {failure.rank: _text(index, failure) for index, failure in enumerate(failures)}
    title = f"{script} FAILED"
    width = min(_WIDEST, max(len(line) for text in [title, *texts.values()] for line in text.split("\n")))
    shown: list[Failure] = []
    alike = Counter[tuple[int, str]]()
    most = _MOST_ALIKE if len(failures) <= _MANY else 1
    for failure in failures:
        kind = (failure.exit_code, "" if failure.exit_code < 0 else failure.message)
        alike[kind] += failure is not root
        if failure is not root and alike[kind] <= most and len(shown) < _MOST_SHOWN:
            shown.append(failure)
    others = [texts[failure.rank] for failure in shown]
    if len(shown) < len(failures) - 1:
        ranks = sorted(failure.rank for failure in failures if failure is not root)
        others.append(f"  ... and {len(ranks) - len(shown)} more; {ranks_text(ranks)}")
    return "\n".join(
        [
            "=" * width,
            title,
            "-" * width,
            "Failures:",
            *(others or ["  <NO_OTHER_FAILURES>"]),
            "-" * width,
            "Root Cause (first observed failure):",
            texts[root.rank],
            "=" * width,
        ]
    )


def pass_on_error_file(failure: Failure, own_error_file: str | None) -> None:
    """Write the root cause to the outer launcher's error file, with the exit code, which the worker could not know."""
    if not own_error_file or failure.error_file == "<N/A>":
        return
    content = json.loads(Path(failure.error_file).read_text(encoding="utf-8"))
    if isinstance(content["message"], dict):
        content["message"]["errorCode"] = failure.exit_code
    Path(own_error_file).write_text(json.dumps(content), encoding="utf-8")


def _read_error(error_file: Path) -> tuple[str, int] | None:
    try:
        content: Any = json.loads(error_file.read_text(encoding="utf-8"))
        message = content["message"]
        if isinstance(message, str):
            return message, _timestamp(content.get("timestamp", 0))
        details = message["extraInfo"]
        text: str = details.get("py_callstack", message.get("message", "<N/A>"))
        return text.replace("\n", "\n  "), _timestamp(details["timestamp"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _timestamp(value: Any) -> int:
    seconds = int(value)
    datetime.fromtimestamp(seconds)  # an error for one that is no date
    return seconds


def exit_text(exit_code: int) -> str:
    """ "exit code 3", or "SIGKILL"."""
    return f"exit code {exit_code}" if exit_code >= 0 else _signal_name(exit_code)


def _signal_name(exit_code: int) -> str:
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return "<N/A>"


def _text(index: int, failure: Failure) -> str:
    when = datetime.fromtimestamp(failure.timestamp).isoformat(sep="_")
    signalled = f" ({_signal_name(failure.exit_code)})" if failure.exit_code < 0 else ""
    return "\n".join(
        [
            f"[{index}]:",
            f"  time      : {when}",
            f"  host      : {failure.host or _host()}",
            f"  rank      : {failure.rank} (local_rank: {failure.local_rank})",
            f"  exitcode  : {failure.exit_code} (pid: {failure.pid}) {signalled}".rstrip(),
            f"  error_file: {failure.error_file}",
            f"  traceback : {failure.message}",
        ]
    )


@cache
def _host() -> str:
    return socket.getfqdn()
