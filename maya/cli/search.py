"""`maya search`: finds the best configuration of a script.

Its options are those of maya-torchrun, with choices in braces, and its own; a TOML file may have them instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from maya.cli.scale import StudyCommand, interruptible

_TABLE = ".toml"


@click.command(cls=StudyCommand, short_help="Find the best configuration of a script.")
@click.argument("script", type=click.Path(path_type=Path), metavar="SCRIPT|SEARCH.toml")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT OF THE SCRIPT ...]")
@click.option("--nproc", metavar="N", help="World size, or choices such as '{32,64}'.")
@click.option("--where", multiple=True, metavar="TEXT", help="A constraint, such as 'tp*pp <= nproc'; may be repeated.")
@click.option(
    "--when",
    multiple=True,
    metavar="NAME:TEXT",
    help="A parameter that matters only under a condition: 'chunks: pp > 1'; may be repeated.",
)
@click.option(
    "--variable", multiple=True, metavar="NAME=TEXT", help="An environment variable of the jobs; may be repeated."
)
@click.option(
    "--objective",
    type=click.Choice(["throughput", "step-time", "cost"]),
    help="What is best: tokens (or images, or steps) a second, the step time, or the price of the tokens  "
    "[default: throughput].",
)
@click.option("--memory", type=float, metavar="SHARE", help="Use at most this share of a GPU's memory  [default: 1].")
@click.option("--trials", type=int, metavar="N", help="Run at most N configurations  [default: 30].")
@click.option("--minutes", type=float, metavar="N", help="Begin no trial after N minutes.")
@click.option("--jobs", type=int, metavar="N", help="Run N trials at once  [default: the number of processors].")
@click.option(
    "--sampler",
    type=click.Choice(["auto", "exhaustive", "tpe", "random"]),
    help="How trials are chosen  [default: auto, all configurations if they are at most --trials, else tpe].",
)
@click.option("--seed", type=int, metavar="N", help="Seed of the sampler  [default: 0].")
@click.option(
    "--prune/--no-prune", default=None, help="End trials early that are far behind the best  [default: prune]."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the search; with that of an earlier one, it goes on  [default: a new one, "
    "maya-runs/<script>-search-<n>].",
)
@click.option("--ray", metavar="ADDRESS|auto", help="Run trials on this Ray cluster; auto: that of this machine.")
@click.option(
    "--represent",
    metavar="auto|all|RANKS|FILE",
    help="Which ranks are processes, as in maya-torchrun  [default: auto].",
)
def search(
    script: Path,
    args: tuple[str, ...],
    out: Path | None,
    ray: str | None,
    where: tuple[str, ...],
    when: tuple[str, ...],
    variable: tuple[str, ...],
    **options: Any,
) -> None:
    """Run SCRIPT in the configurations that the choices in braces allow, and find the best.

    \b
    maya search train.py --nproc 64 --cluster dgx-h100 --where "tp*pp <= nproc" -- \\
        --tp '{1,2,4,8}' --pp '{1,2,4}' --micro-batch '{1..16*2}' '{--recompute,}'

    {1,2,4}, {1..16*2} and {8..64+8} are choices, called after the option before them; {name:a,b} names one.
    {nproc//tp} is an expression; {--flag,} chooses between a flag and nothing. Quotes keep the shell from expanding
    braces. Options of maya-torchrun take choices as well: --cluster '{dgx-h100,dgx-b200}'.

    A trial runs three optimizer steps with one rank of each kind. What is known already does not run: other GPUs and
    clusters are replays, and what needs more memory than a trial that ran out of it is not tried. A search that was
    interrupted goes on with the same command and --out.
    """
    from maya.config_search.errors import SearchError
    from maya.config_search.search_settings import SearchSettings, given, read_search_file
    from maya.config_search.search_study import SearchInterrupted, run_search
    from maya.launcher.terminal_summary import relative

    own = ("objective", "memory", "trials", "minutes", "jobs", "sampler", "seed", "prune")
    limits = {name: options.pop(name) for name in own}
    jobs_options = {name: value for name, value in options.items() if value not in (None, (), False)}
    interrupted = False
    try:
        from_file = script.suffix == _TABLE
        base = read_search_file(script) if from_file else SearchSettings(str(script))
        settings = given(
            base,
            **limits,
            args=(*base.args, *args),
            options={**base.options, **jobs_options},
            where=(*base.where, *where),
            when={**base.when, **dict(_pair("--when", text, ":") for text in when)},
            variables={**base.variables, **dict(_pair("--variable", text, "=") for text in variable)},
        )
        with interruptible():
            found = run_search(settings, out=out, ray=ray)
    except (SearchError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except SearchInterrupted as stopped:
        found, interrupted = stopped.search, True
    folder = relative(found.folder)
    click.echo(f"{found}\n")
    click.echo(f"Search  {folder}/search.html  (also search.csv and search.db; a folder trial-N for each run)")
    if interrupted:
        click.echo(f"interrupted; to go on: the same command with --out {folder}", err=True)
    if interrupted or found.best is None:
        raise SystemExit(1)


def _pair(option: str, text: str, separator: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip():
        raise click.BadParameter(f"{text!r}: expected NAME{separator}TEXT", param_hint=option)
    return name.strip(), value.strip()
