"""The launcher's reaction to a hang: shows the report, then stops the job, waits, or debugs. It warns of a possible
hang, when no rank has shown any activity for a while.

In: the command line, and the coordinator's report (coordinator/hangs). Out: the text, and the time until the ranks are
stopped.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NO_PROGRESS = "no progress"  # the kind of a report that does not prove a hang
ACTIONS = ("report", "abort", "wait", "pdb")
_RAISE_SECONDS = 10.0  # time for the ranks to raise the errors that they get


@dataclass(frozen=True)
class Hangs:
    """The user's choice of reaction to hangs."""

    action: str = "report"
    after: float = 60.0  # seconds without progress until it is reported
    rank: int | None = None  # the rank to debug first

    @property
    def debugs(self) -> bool:
        return self.action == "pdb"

    @property
    def suspects(self) -> bool:
        """Whether a lack of progress counts as a hang."""
        return self.action in ("abort", "pdb")


@dataclass(frozen=True)
class JobEnding:
    """How the launcher stops a job: a signal to all ranks after `patience`, SIGKILL after `shutdown_seconds` more."""

    signal: signal.Signals = signal.SIGTERM
    patience: float = 0.0
    shutdown_seconds: float = 3.0  # short: a stuck rank does not handle signals


def add_options(common: argparse._ArgumentGroup, hangs: argparse._ArgumentGroup) -> None:
    """--on-hang among the common options, --hang-after in a group of its own."""
    common.add_argument(
        "--on-hang",
        type=_action,
        default="report",
        metavar="ACTION",
        help="on a hang: report (print a report, end the job), abort (the same, with SIGABRT), wait (report, "
        "keep the ranks for py-spy), pdb or pdb:RANK (start Python's debugger) (default: report)",
    )
    hangs.add_argument(
        "--hang-after",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="warn when no rank has shown any activity for this long; abort and pdb act then as well (default: 60)",
    )


def read_options(options: argparse.Namespace) -> Hangs:
    action, _, rank = options.on_hang.partition(":")
    return Hangs(action, options.hang_after, int(rank) if rank else None)


def check(hangs: Hangs, ranks: int) -> str | None:
    """Why the chosen action is impossible here, or None."""
    if hangs.rank is not None and hangs.rank >= ranks:
        return f"--on-hang pdb:{hangs.rank}: the ranks of this job are 0 to {ranks - 1}"
    if hangs.debugs and not (sys.stdin.isatty() and sys.stdout.isatty()):
        return (
            "--on-hang pdb needs a terminal as standard input and output; start it on one, or choose --on-hang report "
            "(stacks are in hang.json) or wait (for py-spy)"
        )
    return None


def _action(text: str) -> str:
    action, _, rank = text.partition(":")
    if text not in ACTIONS and not (action == "pdb" and rank.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(ACTIONS)} and pdb:RANK")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def show(entry: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Print the report and return it. `entry`: the coordinator's line about it (coordinator/process.py)."""
    from maya.hangs.report_text import lines

    report = read_report(entry)
    say("\n".join([*lines(report), "", _whole_report(entry)]))
    if report["recorders"]:
        folder = Path(report["recorders"]).parent
        say(
            f"flight recorders of all ranks: torchfrtrace --prefix rank_ {folder}, or without CUDA: "
            f"maya-torchrun --no-trace -m torch.distributed.flight_recorder.fr_trace --prefix rank_ {folder}"
        )
    return report


def warn(entry: Mapping[str, Any], say: Callable[[str], None], stop: str = "--on-hang abort stops such a job") -> None:
    """Print a warning of a possible hang. `stop`: how to stop the job."""
    from maya.hangs.report_text import warning

    advice = f"if this is intended, do nothing; --hang-after SECONDS warns later, {stop}"
    say("\n".join([*warning(read_report(entry)), f"  {advice}", _whole_report(entry)]))


def read_report(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The report behind a line of the coordinator."""
    report = entry["report"] if entry["file"] is None else json.loads(Path(entry["file"]).read_text(encoding="utf-8"))
    assert isinstance(report, dict)
    return report


def _whole_report(entry: Mapping[str, Any]) -> str:
    return f"  full report: {entry['file'] or 'not written, because no disk has room for it'}"


def ending(hangs: Hangs, *, raises: bool) -> JobEnding | None:
    """How to stop the job after a hang; None: the job goes on. `raises`: ranks get an error of NCCL."""
    if hangs.action == "wait":
        return None
    if hangs.action == "abort":
        return JobEnding(signal.SIGABRT)
    return JobEnding(patience=_RAISE_SECONDS if raises and not hangs.debugs else 0.0)
