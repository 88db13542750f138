"""`maya scale`: runs a script at several world sizes, and compares them.

Its options are those of maya-torchrun, made from that command's parser; --nproc, --out and --represent are its own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from maya.cli.launch_options import click_option

_REFUSED = ("no_trace", "no_timeline")
_SHOWN_GROUPS = ("common options", "time model", "results")


class StudyCommand(click.Command):
    """Takes the options of maya-torchrun, and says where the arguments of the script go."""

    _params: list[click.Parameter]
    _complete = False

    # The parser of maya-torchrun is imported only when somebody asks for the options: other commands start faster.
    @property
    def params(self) -> list[click.Parameter]:
        if not self._complete:
            self._complete = True
            self._params += _launch_options({str(each.name) for each in self._params})
        return self._params  # click changes the list

    @params.setter
    def params(self, params: list[click.Parameter]) -> None:
        self._params = params

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            advice = f"{error.message} The script's own arguments come after --."
            raise click.NoSuchOption(error.option_name, advice, error.possibilities, ctx) from error


def _launch_options(own: set[str]) -> list[click.Option]:
    """The options of maya-torchrun, but those that a command has itself. Those that few need are not in the help."""

    from maya.launcher.option_parser import make_parser, option_actions

    parser = make_parser({})
    shown = {
        action.dest
        for group in parser._action_groups
        if group.title in _SHOWN_GROUPS
        for action in group._group_actions
    }
    return [
        click_option(action, hidden=dest not in shown)
        for dest, action in option_actions(parser).items()
        if dest not in own and dest not in _REFUSED and not ("ray" in own and dest == "ray_resources")
    ]


@click.command(cls=StudyCommand, short_help="Run a script at several world sizes, and compare them.")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT OF THE SCRIPT ...]")
@click.option("--nproc", required=True, metavar="LIST", help="World sizes: 64,256,1024.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the study; with that of an earlier one, finished sizes do not run again  [default: a new one, "
    "maya-runs/<script>-scale-<n>].",
)
@click.option(
    "--represent",
    default="auto",
    metavar="auto|all|RANKS|FILE",
    help="Which ranks are processes, as in maya-torchrun  [default: auto].",
)
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak"]),
    help="Strong: the same work in every step; weak: the same work per GPU  [default: from the tokens of a step].",
)
def scale(
    script: Path,
    args: tuple[str, ...],
    nproc: str,
    out: Path | None,
    represent: str,
    scaling: str | None,
    **options: Any,
) -> None:
    """Run SCRIPT once for each world size, and compare the sizes: step time, throughput, efficiency, exposed
    communication, memory, cost, and what grows.

    In the script's arguments and in the values of options, {nproc} is the world size, and {nproc//8} arithmetic on it
    (whole numbers, + - * // and parentheses). Write {{ and }} for braces.

    \b
    maya scale train.py --nproc 64,256,1024 --cluster dgx-h100 -- --global-batch 1024
    maya scale train.py --nproc 8,16,32 -- --data-parallel {nproc//8}

    The study's folder gets scale.html, scale.csv and scale.svg, and the run of every size. All other options of
    maya-torchrun are taken as well.
    """
    from maya.launcher.terminal_summary import relative
    from maya.scaling.study import StudyInterrupted, run_study

    interrupted = False
    try:
        with interruptible():
            study = run_study(script, args, nproc=nproc, out=out, represent=represent, scaling=scaling, options=options)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    except StudyInterrupted as stopped:
        study, interrupted = stopped.study, True
    folder = relative(study.folder)
    if study.rows:
        click.echo(f"{study}\n")
        click.echo(f"Study   {folder}/scale.html  (also scale.csv and scale.svg; a folder nproc-N for each run)")
    if interrupted:
        click.echo(f"interrupted; to go on: the same command with --out {folder}", err=True)
    if study.failed or interrupted:
        raise SystemExit(1)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end the running job as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
