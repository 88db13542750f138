"""The command of each size, checked before the first of them runs.

In: world sizes, a script, its arguments and options of maya-torchrun, both with arithmetic in braces. Out:
`SizeCommand`s, or a `StudyError` that says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maya.launcher.arguments import LaunchOptions, UsageError, check
from maya.scaling.argument_template import TemplateError, fill

REPRESENT = "auto"
_WITHOUT_PREDICTION = ("no_trace", "no_timeline")
_WAITING = ("wait", "pdb")  # actions on a hang that need a person


class StudyError(ValueError):
    """A study that cannot be run as asked for."""


@dataclass(frozen=True)
class SizeCommand:
    """The run of one size."""

    nproc: int
    words: tuple[str, ...]  # of maya-torchrun, without --out


def parse_sizes(text: str) -> list[int]:
    """The sizes in "64,256,1024", in ascending order."""
    sizes: list[int] = []
    for part in text.split(","):
        word = part.strip()
        if not re.fullmatch(r"[0-9]+", word):
            raise StudyError(f"--nproc {text}: {word!r} is not a number of ranks; write e.g. 64,256,1024")
        sizes.append(int(word))
    return check_sizes(sizes)


def check_sizes(sizes: Sequence[int]) -> list[int]:
    """The sizes in ascending order."""
    if not sizes:
        raise StudyError("nproc names no size; a study needs one or more, e.g. 64,256,1024")
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int):
            raise StudyError(f"nproc: {size!r} is not a number of ranks")
        if size < 1:
            raise StudyError(f"nproc: {size} ranks; a job has at least 1")
    repeated = sorted({size for size in sizes if list(sizes).count(size) > 1})
    if repeated:
        raise StudyError(f"nproc names {', '.join(map(str, repeated))} twice")
    return sorted(sizes)


def refuse_options(options: Mapping[str, object]) -> None:
    """Options of maya-torchrun that make no sense in a study."""
    for name in _WITHOUT_PREDICTION:
        if options.get(name):
            raise StudyError(
                f"--{name.replace('_', '-')}: without a prediction there is nothing to compare; leave it out"
            )
    action = str(options.get("on_hang") or "")
    if action.partition(":")[0] in _WAITING:
        raise StudyError(f"--on-hang {action}: a study goes on with the next size; use report or abort")


def commands_of(
    sizes: Sequence[int], script: str, args: Sequence[str], options: Sequence[str], environment: Mapping[str, str]
) -> list[SizeCommand]:
    """The command of every size."""
    commands = []
    for size in sizes:
        try:
            words = (
                f"--nproc={size}",
                *(fill(word, size) for word in options),
                script,
                *(fill(word, size) for word in args),
            )
            launch = check(words, environment)
        except (TemplateError, UsageError) as error:
            raise StudyError(f"{size} ranks: {error}") from error
        _check_script(launch)
        commands.append(SizeCommand(size, words))
    return commands


def _check_script(launch: LaunchOptions) -> None:
    if launch.module or not launch.own_python or Path(launch.script).is_file():
        return
    found = "is a folder" if Path(launch.script).is_dir() else "does not exist"
    raise StudyError(f"the script {launch.script} {found}")
