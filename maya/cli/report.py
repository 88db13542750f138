"""`maya report`: a recorded run on one HTML page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Write an HTML page about a recorded run.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write this file  [default: report.html in RUN].",
)
def report(run: Path, out: Path | None) -> None:
    """Write one HTML page about RUN, the folder of a recorded run. It opens without a network.

    It shows where the time of a step goes, all ranks, the streams of ranks, memory, traffic, and the origin of the
    numbers.
    """
    from maya.api.run import load

    try:
        prediction = load(run).prediction
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    try:
        file = prediction.write_report(out)
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error
    click.echo(f"Report  {file}  ({file.stat().st_size / 1e6:.1f} MB; open it in a browser)")
