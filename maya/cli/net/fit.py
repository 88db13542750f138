"""`maya net fit`: fits the parameters of a cluster to measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from maya.cli.net.bench import parse_where
from maya.cli.parameter_types import CatalogueType

if TYPE_CHECKING:
    from netmodel.calibration.fit import Fit


@click.command()
@click.argument("cluster", type=CatalogueType("cluster"))
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the fitted cluster file here.")
@click.option("--op", "operation", default="", help="The collective, for files that do not name it.")
@click.option(
    "--ranks", type=click.IntRange(min=1), metavar="N", help="The number of ranks, for files that do not list them."
)
@click.option(
    "--nodes", type=click.IntRange(min=1), metavar="N", help="The number of nodes, for files that do not list them."
)
@click.option("--where", multiple=True, metavar="COLUMN=TEXT", help="Of CSV files, use rows with TEXT in COLUMN only.")
def fit(
    cluster: str,
    files: tuple[Path, ...],
    out: Path | None,
    operation: str,
    ranks: int | None,
    nodes: int | None,
    where: tuple[str, ...],
) -> None:
    """Fit CLUSTER to the measurements in FILES: nccl-tests' output, or CSV with the columns op, nranks, nodes,
    size_bytes and time_us. Some measurements are held out of the fit; the reported error is on those.
    """
    from netmodel.calibration.fit import fit_cluster
    from netmodel.calibration.measurements import read_measurements
    from netmodel.cluster import cluster_path, load_cluster
    from netmodel.cluster.parameters import with_calibration

    try:
        found = load_cluster(cluster)
        picked = parse_where(where)
        measured = []
        for path in files:
            measured += read_measurements(path, operation=operation, ranks=ranks or 0, nodes=nodes or 0, where=picked)
        result = fit_cluster(found, measured, data=", ".join(path.name for path in files))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    _print(result, found.key)
    if out is None:
        click.echo("Nothing was written; --out FILE.toml writes the cluster's file with these parameters.")
        return
    try:
        text = cluster_path(cluster).read_text(encoding="utf-8")
        out.write_text(with_calibration(text, result.parameters), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {out}: {error.strerror}") from error
    click.echo(f"Cluster  {out}")


def _print(result: Fit, key: str) -> None:
    from netmodel.calibration.structure import NAMES, to_vector

    click.echo(f"{key}: fitted to {len(result.train)} measurements, checked with {len(result.held_out)} others")
    click.echo(f"{'':<22}{'1 MiB and more':<36}below")
    click.echo(f"{'  fitted to':<22}{result.train_large!s:<36}{result.train_small}")
    click.echo(f"{'  held out':<22}{result.held_large!s:<36}{result.held_small}")
    click.echo("Held out: of every series each third size; of three or more group sizes the middle one.")
    values = dict(zip(NAMES, to_vector(result.parameters).tolist(), strict=True))
    for name in result.fitted:
        click.echo(f"  {name:<28}{_shown(name, values[name])}")


def _shown(name: str, value: float) -> str:
    if name.endswith("_ns"):
        return f"{value / 1000:.2f} us"
    return f"{value / 1e9:.2f} GB/s" if name.endswith("_rate") else f"{value:.3f}"
