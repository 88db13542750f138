"""Starts maya-torchrun and loads its run.

In: a script, its arguments, and options of maya-torchrun as keyword arguments. Out: a `Run`, or a `LaunchError` with
the exit code, the end of the output, and the folder of the logs. The job runs in a subprocess of this Python
environment, so a notebook can start one.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path

from maya.api.run import Run, load
from maya.launcher.logs import new_run_folder
from maya.launcher.option_parser import make_parser, option_actions
from maya.util.suggestions import did_you_mean

_NOT_STARTED = 2  # the exit code
_LINES_KEPT = 30
_OWN_SECONDS = 2.0  # for a job that has received the interrupt itself
END_SECONDS = 40.0  # maya-torchrun kills its ranks after 30


class LaunchError(RuntimeError):
    """A job that did not end well."""

    def __init__(self, exit_code: int, folder: Path, output: str) -> None:
        self.exit_code = exit_code  # 1: a rank failed; 2: the job could not be started
        self.folder = folder
        self.output = output  # the last lines
        reason = "the job could not be started" if exit_code == _NOT_STARTED else "the job failed"
        logs = f"; logs and traces are in {folder}" if (folder / "run.json").exists() else ""
        super().__init__(f"maya-torchrun ended with exit code {exit_code}: {reason}{logs}. Its last lines:\n{output}")

    @property
    def run(self) -> Run:
        """The run as far as it was recorded; a ValueError where there is none."""
        return load(self.folder)


def launch(
    script: str | PathLike[str],
    args: Sequence[object] = (),
    *,
    nproc: int | None = None,
    gpu: str | PathLike[str] | None = None,
    cluster: str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
    check: bool = True,
    quiet: bool = False,
    cwd: str | PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    **options: object,
) -> Run:
    """Run a script on virtual GPUs: maya.launch("train.py", ["--steps", 3], nproc=16, cluster="dgx-h100").

    `args`: the script's own. `out`: the run's folder, by default a new one under maya-runs. `check`: raise a
    LaunchError if the job fails; otherwise look at `exit_code` and `hang` of the run. `quiet`: do not show the job's
    output while it runs. `cwd`, `env`: folder and environment variables of the job. `options`: other options of
    maya-torchrun, with underscores: host_time="zero", module=True, set={"node.nic_rate": "200Gbps"},
    inject=["kill:rank=3,call=10"].
    """
    own = {"nproc": nproc, "gpu": gpu, "cluster": cluster}
    words = option_words({**own, **options})
    start = Path(cwd or ".").absolute()
    folder = new_run_folder(fspath(script), start) if out is None else start / out
    last: deque[str] = deque(maxlen=_LINES_KEPT)

    def show(line: str) -> None:
        last.append(line)
        if not quiet:
            sys.stdout.write(line)
            sys.stdout.flush()

    exit_code = run_job(["--out", str(folder), *words, fspath(script), *map(str, args)], show, cwd, env)
    if exit_code == _NOT_STARTED and out is None:
        with suppress(OSError):  # raised unless it is empty
            folder.rmdir()
    if exit_code != 0 and (check or not (folder / "run.json").exists()):
        raise LaunchError(exit_code, folder, "".join(last).rstrip("\n"))
    return load(folder)


# As the installed command starts, so that a module of the user's called `netmodel` or `coordinator` is not imported.
START = "import sys; from maya.cli.entry_points import maya_torchrun; sys.exit(maya_torchrun())"


def option_words(options: Mapping[str, object], function: str = "launch") -> list[str]:
    """Options by name, with underscores, as words of the command line. `function` is named in errors."""
    known = option_actions(make_parser({}))
    return [word for name, value in options.items() for word in _words(name, value, known, function)]


def _words(name: str, value: object, known: Mapping[str, argparse.Action], function: str) -> list[str]:
    if value is None or value is False:
        return []
    action = known.get(name)
    if action is None:
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{did_you_mean(name, known)}")
    option = f"--{name.replace('_', '-')}"
    if action.nargs == 0:
        if value is not True:
            raise TypeError(f"{function}(): {name} is {value!r}; it is True or False")
        return [option]
    if isinstance(value, Mapping):
        value = [f"{key}={each}" for key, each in value.items()]
    if isinstance(value, list | tuple) and isinstance(action, argparse._AppendAction):
        return [f"{option}={_text(each)}" for each in value]
    return [f"{option}={_text(value)}"]


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return fspath(value) if isinstance(value, PathLike) else str(value)


def run_job(
    words: Sequence[str],
    show: Callable[[str], None],
    cwd: str | PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run maya-torchrun with these words, and return its exit code. `show` gets its output line by line: a notebook
    shows only what its own process writes."""
    environment = {**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", START, *words], cwd=cwd, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace", bufsize=1,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        try:
            for line in job.stdout:
                show(line)
            return job.wait()
        except BaseException:
            _end(job)
            raise


def _end(job: subprocess.Popen[str]) -> None:
    """Ends the job after an interrupt. A terminal sends an interrupt to the job as well; a notebook may not."""
    for number, seconds in ((None, _OWN_SECONDS), (signal.SIGINT, END_SECONDS)):
        if number is not None:
            job.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            job.wait(seconds)
            return
    job.kill()
