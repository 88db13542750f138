"""`maya trace`: prints the trace of a rank."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def trace() -> None:
    """Print the trace of a rank."""


@trace.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="List at most N records.")
@click.option("--kind", "kinds", multiple=True, help="List only records of this kind; may be repeated.")
@click.option("--ops/--no-ops", default=True, show_default=True, help="Name the op that each record came from.")
@click.option("--demangle/--no-demangle", default=True, show_default=True, help="Make kernel names readable.")
@click.option("--summary", is_flag=True, help="Count launches instead of listing records.")
def show(file: Path, limit: int | None, kinds: tuple[str, ...], ops: bool, demangle: bool, summary: bool) -> None:
    """Print the trace in FILE."""
    from maya.trace import read
    from maya.trace.listing import parse_kinds, trace_lines

    try:
        chosen = parse_kinds(kinds) if kinds else None
        found = read(file)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    for line in trace_lines(found, limit=limit, kinds=chosen, ops=ops, demangle=demangle, summary=summary):
        print(line)
