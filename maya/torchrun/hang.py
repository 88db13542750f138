"""What the launcher does when ranks can never go on: shows the report, and ends the job or waits.

In: the command line, and the report that the coordinator wrote (coordinator/hangs). Out: the text, and how long the
ranks still have.
"""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ACTIONS = ("report", "abort", "wait")
_MISMATCH_SECONDS = 10.0  # in which the ranks find the error that they have been given


@dataclass(frozen=True)
class Hangs:
    """What the user wants to be done about hangs."""

    action: str = "report"
    after: float = 60.0  # seconds without progress that are reported although nobody knows the reason


@dataclass(frozen=True)
class Ending:
    """How the job ends: after some seconds a signal to all ranks, and SIGKILL some seconds later."""

    signal: signal.Signals = signal.SIGTERM
    patience: float = 0.0
    shutdown_seconds: float = 3.0  # a rank that is stuck does not look at signals


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the group "hangs"."""
    hangs = parser.add_argument_group("Maya: hangs")
    hangs.add_argument(
        "--on-hang",
        choices=ACTIONS,
        default="report",
        help="when ranks can never go on: report it and end the job, end it with SIGABRT, or report and wait (report)",
    )
    hangs.add_argument(
        "--hang-after",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="report ranks that make no progress for a reason that cannot be seen (60)",
    )


def read_options(options: argparse.Namespace) -> Hangs:
    return Hangs(options.on_hang, options.hang_after)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def show(file: Path, say: Callable[[str], None]) -> None:
    """The report, on the terminal."""
    from coordinator.hangs.text import lines

    report = json.loads(file.read_text(encoding="utf-8"))
    first, *others = lines(report)
    say("\n".join([first, *others, "", f"  all of it: {file}"]))
    if report["recorders"]:
        folder = Path(report["recorders"]).parent
        say(
            f"flight recorders of all ranks: torchfrtrace --prefix rank_ {folder}, or without CUDA: "
            f"maya-torchrun --no-trace -m torch.distributed.flight_recorder.fr_trace --prefix rank_ {folder}"
        )


def ending(hangs: Hangs, kind: str) -> Ending | None:
    """None: the job goes on."""
    if hangs.action == "wait":
        return None
    if hangs.action == "abort":
        return Ending(signal.SIGABRT)
    return Ending(patience=_MISMATCH_SECONDS if kind == "mismatch" else 0.0)
