"""What the launcher does when ranks can never go on: shows the report, and ends the job, waits, or debugs. When nothing
goes on for a while, which may be a hang or not: warns.

In: the command line, and the report that the coordinator wrote (coordinator/hangs). Out: the text, and how long the
ranks still have.
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

NO_PROGRESS = "no progress"  # the kind of report that proves nothing
ACTIONS = ("report", "abort", "wait", "pdb")
_MISMATCH_SECONDS = 10.0  # in which the ranks find the error that they have been given


@dataclass(frozen=True)
class Hangs:
    """What the user wants to be done about hangs."""

    action: str = "report"
    after: float = 60.0  # seconds without progress, after which that is reported
    rank: int | None = None  # to debug first

    @property
    def debugs(self) -> bool:
        return self.action == "pdb"

    @property
    def suspects(self) -> bool:
        """Whether no progress is taken for a hang."""
        return self.action in ("abort", "pdb")


@dataclass(frozen=True)
class JobEnding:
    """How the job ends: after some seconds a signal to all ranks, and SIGKILL some seconds later."""

    signal: signal.Signals = signal.SIGTERM
    patience: float = 0.0
    shutdown_seconds: float = 3.0  # a rank that is stuck does not look at signals


def add_options(common: argparse._ArgumentGroup, hangs: argparse._ArgumentGroup) -> None:
    """--on-hang among the common options, --hang-after in a group of its own."""
    common.add_argument(
        "--on-hang",
        type=_action,
        default="report",
        metavar="ACTION",
        help="on a hang: report (print who waits for whom, end the job), abort (the same, with SIGABRT), wait (report, "
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
    """Why this cannot be done here."""
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


def show(told: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """The report, on the terminal; what it says. `told`: what the coordinator says of it (coordinator/process.py)."""
    from maya.hangs.report_text import lines

    report = _report(told)
    say("\n".join([*lines(report), "", _whole_report(told)]))
    if report["recorders"]:
        folder = Path(report["recorders"]).parent
        say(
            f"flight recorders of all ranks: torchfrtrace --prefix rank_ {folder}, or without CUDA: "
            f"maya-torchrun --no-trace -m torch.distributed.flight_recorder.fr_trace --prefix rank_ {folder}"
        )
    return report


def warn(told: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """What may be a hang, on the terminal."""
    from maya.hangs.report_text import warning

    advice = "if this is meant, do nothing; --hang-after SECONDS warns later, --on-hang abort ends such a job"
    say("\n".join([*warning(_report(told)), f"  {advice}", _whole_report(told)]))


def _report(told: Mapping[str, Any]) -> dict[str, Any]:
    report = told["report"] if told["file"] is None else json.loads(Path(told["file"]).read_text(encoding="utf-8"))
    assert isinstance(report, dict)
    return report


def _whole_report(told: Mapping[str, Any]) -> str:
    return f"  all of it: {told['file'] or 'not written to a file, because there was no room for one'}"


def ending(hangs: Hangs, kind: str) -> JobEnding | None:
    """None: the job goes on."""
    if hangs.action == "wait":
        return None
    if hangs.action == "abort":
        return JobEnding(signal.SIGABRT)
    return JobEnding(patience=_MISMATCH_SECONDS if kind == "mismatch" and not hangs.debugs else 0.0)
