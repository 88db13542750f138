"""The options of `maya exec` and `maya shell`: those of maya-torchrun that do not depend on who starts the ranks.

In: their values, as words of maya-torchrun's command line, and a command. Out: a `LaunchOptions` of a job of one rank,
whose world size is not meant: jobs bring their own.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace

from maya.launcher.arguments import LaunchOptions, UsageError, check
from maya.launcher.option_parser import make_parser, option_actions
from maya.util.ranks import parse_ranks

_TRACE_RANKS = "--trace-ranks="
# Names as in argparse.
OPTIONS = (
    "cluster", "gpu", "set", "out", "network", "host_time", "host", "clock", "pack", "tokens_per_step",
    "price_per_gpu_hour", "steps_from", "trace_ranks", "no_timeline", "stop_after", "record_steps", "hang_after",
    "on_hang", "compute", "compute_bytes", "copy_bytes", "collective_bytes", "strict_values",
)  # fmt: skip


def actions() -> dict[str, argparse.Action]:
    """The options, from the parser of maya-torchrun."""
    known = option_actions(make_parser({}))
    return {name: known[name] for name in OPTIONS}


def read(words: Sequence[str], command: Sequence[str], environment: Mapping[str, str]) -> LaunchOptions:
    """The options of a session. Raises `UsageError`."""
    if not command:
        raise UsageError("there is no command; write it after --: maya exec -- torchrun --nproc-per-node 2 train.py")
    traced = [word for word in words if word.startswith(_TRACE_RANKS)]  # the world size is not known yet
    others = [word for word in words if word not in traced]
    launch = check([*others, "--no-python", "--represent", "all", "--", *command], environment)
    if launch.hangs.debugs:
        raise UsageError("--on-hang pdb: maya exec starts no debugger; choose report, abort or wait, or maya-torchrun")
    if not traced:
        return launch
    text = traced[-1].removeprefix(_TRACE_RANKS)
    if text not in ("all", "none"):
        try:
            parse_ranks(text, repeated=True)
        except ValueError as error:
            raise UsageError(f"--trace-ranks {text}: expected ranks, e.g. 0,8-15, or all, or none") from error
    if not launch.timing.timeline:
        raise UsageError("--trace-ranks and --no-timeline exclude each other: without a timeline it has no effect")
    results = {**launch.timing.results, "trace_ranks": text}
    return replace(launch, timing=replace(launch.timing, results=results))


def find_program(name: str, path: str) -> str:
    """The file that `name` starts."""
    found = shutil.which(name, path=path)
    if found is None:
        reason = "is not executable" if os.path.exists(name) and os.sep in name else "was not found"  # noqa: PTH110
        raise UsageError(f"cannot start {name}: it {reason}")
    return found


def script_of(command: Sequence[str]) -> str | None:
    """The script or module that a command line names."""
    for word in command:
        if word.endswith(".py") and len(word.split()) == 1:
            return os.path.basename(word)  # noqa: PTH119
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1].replace(".", "-")
    return None


def name_of(command: Sequence[str]) -> str:
    """What to call a run of this command: its script or module, or else its program."""
    return script_of(command) or (os.path.basename(command[0]) if command else "job")  # noqa: PTH119
