"""`maya stacks`: what the ranks of a running job do right now."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(short_help="Show what the ranks of a running job do right now.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the whole report, with all stacks, as JSON.")
def stacks(run: Path, *, as_json: bool) -> None:
    """Show what every rank of a running job does right now, on one screen: the call that it waits for, and its line.
    Ranks that do the same are one entry. The job goes on.

    RUN is the folder that the job records into, of maya-torchrun or maya exec.
    """
    from maya.hangs.report_text import activity
    from maya.hangs.request_socket import NotRunningError, ask_job

    try:
        reports = ask_job(run)
    except NotRunningError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(reports, indent=1))
        return
    if not reports:
        click.echo("no rank has started yet")
    for report in reports:
        click.echo("\n".join(activity(report)))
