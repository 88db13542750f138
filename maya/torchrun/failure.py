"""What is said about a failed worker: torchrun's block of text, so that people and tools find what they look for.

In: how a worker ended, and the error file that `torch.distributed.elastic.multiprocessing.errors.record` wrote into, if
the script uses it. Out: the text; and, if this launcher itself runs under another one, that one's error file.
"""

from __future__ import annotations

import json
import signal
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from maya.torchrun.worker import Outcome

_WITHOUT_ERROR_FILE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
_WIDEST = 60


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


def failure_of(outcome: Outcome, rank: int, local_rank: int, error_file: Path) -> Failure:
    """Put together what is known; an error file that cannot be read counts as none."""
    error = _read_error(error_file)
    if error is not None:
        message, timestamp = error
        return Failure(rank, local_rank, outcome.pid, outcome.exit_code, str(error_file), message, timestamp)
    message = _WITHOUT_ERROR_FILE
    if outcome.exit_code < 0:
        message = f"Signal {-outcome.exit_code} ({_signal_name(outcome.exit_code)}) received by PID {outcome.pid}"
    return Failure(rank, local_rank, outcome.pid, outcome.exit_code, "<N/A>", message, int(time.time()))


def failure_block(script: str, failures: list[Failure]) -> str:
    """The text torchrun ends with; the earliest failure is the root cause."""
    root = min(failures, key=lambda failure: failure.timestamp)
    texts = {failure.rank: _text(index, failure) for index, failure in enumerate(failures)}
    title = f"{script} FAILED"
    width = min(_WIDEST, max(len(line) for text in [title, *texts.values()] for line in text.split("\n")))
    others = [texts[failure.rank] for failure in failures if failure is not root]
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
    """Hand the root cause to the launcher above, with the exit code, which the worker itself could not know."""
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
            return message, int(content.get("timestamp", 0))
        details = message["extraInfo"]
        text: str = details.get("py_callstack", message.get("message", "<N/A>"))
        return text.replace("\n", "\n  "), int(details["timestamp"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


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
            f"  host      : {socket.getfqdn()}",
            f"  rank      : {failure.rank} (local_rank: {failure.local_rank})",
            f"  exitcode  : {failure.exit_code} (pid: {failure.pid}) {signalled}".rstrip(),
            f"  error_file: {failure.error_file}",
            f"  traceback : {failure.message}",
        ]
    )
