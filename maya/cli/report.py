"""`maya report`: a recorded run on one HTML page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write here  [default: report.html in RUN]."
)
def report(run: Path, out: Path | None) -> None:
    """Write RUN, the folder of a recorded run, as one HTML page that opens without a network.

    It shows where a step goes, all ranks, the streams of ranks, memory, traffic, and where the numbers come from.
    """
    from maya.cli.whatif import check_run
    from maya.replay.simulate import simulate
    from maya.report.collect import collect
    from maya.report.write import write_page
    from maya.results import conclude

    file = out or run / "report.html"
    try:
        check_run(run)
        content = collect(conclude(simulate(run)))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    try:
        write_page(content, file)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"Report  {file}  ({file.stat().st_size / 1e6:.1f} MB; open it in a browser)")
