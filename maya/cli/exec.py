"""`maya exec` and `maya shell`: run any command, or a shell, below which every process has virtual GPUs."""

from __future__ import annotations

import os
from typing import Any

import click

from maya.cli.launch_options import click_option


class _SessionCommand(click.Command):
    """Takes options of maya-torchrun, made from that command's parser, and leaves all words after them alone."""

    _params: list[click.Parameter]
    _complete = False
    allow_interspersed_args = False

    # The parser of maya-torchrun is imported only when somebody asks for the options: other commands start faster.
    @property
    def params(self) -> list[click.Parameter]:
        if not self._complete:
            self._complete = True
            from maya.session.options import actions

            self._params += [click_option(action) for action in actions().values()]
        return self._params  # click changes the list

    @params.setter
    def params(self, params: list[click.Parameter]) -> None:
        self._params = params


@click.command("exec", cls=_SessionCommand, short_help="Run any command with virtual GPUs, and predict its jobs.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGUMENT ...]")
def exec_(command: tuple[str, ...], **options: Any) -> None:
    """Run COMMAND with virtual GPUs below it: torchrun, accelerate launch, deepspeed, mpirun, a script that starts its
    own ranks, pytest. The jobs that it runs are predicted when it ends.

    \b
    maya exec -- torchrun --nproc-per-node 8 train.py --batch-size 4
    maya exec --cluster dgx-h100 -- python spawn.py
    maya exec -- pytest tests/gpu

    Terminal, signals and exit code are those of COMMAND.
    """
    _run(command, options, is_shell=False)


@click.command("shell", cls=_SessionCommand, short_help="Start a shell with virtual GPUs.")
def shell(**options: Any) -> None:
    """Start a shell ($SHELL) in which every command has virtual GPUs. Each job is predicted when it ends, in a folder
    of its own under maya-runs.
    """
    _run((os.environ.get("SHELL") or "/bin/sh",), options, is_shell=True)


def _run(command: tuple[str, ...], options: dict[str, Any], *, is_shell: bool) -> None:
    from maya.api.job_launch import option_words
    from maya.launcher.arguments import UsageError
    from maya.session.options import read
    from maya.session.session import run_session

    given = {name: value if value != () else None for name, value in options.items()}
    words = option_words({name: list(value) if type(value) is tuple else value for name, value in given.items()})
    try:
        launch = read(words, command, os.environ)
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    raise SystemExit(run_session(launch, command, is_shell=is_shell))
