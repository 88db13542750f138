"""`maya net show`: draws a cluster in the terminal, and as SVG."""

from __future__ import annotations

from pathlib import Path

import click

from maya.cli.catalogues import list_clusters
from maya.cli.common_options import fault_option
from maya.cli.parameter_types import CatalogueType


@click.command()
@click.argument("cluster", type=CatalogueType("cluster"), required=False)
@click.option(
    "--gpus", type=click.IntRange(min=1), metavar="N", help="Draw the first N GPUs  [default: two nodes, or two racks]."
)
@fault_option
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Also write a drawing to this file.")
def show(cluster: str | None, gpus: int | None, faults: tuple[str, ...], svg: Path | None) -> None:
    """Draw CLUSTER: a name in the catalogue, or a TOML file. Without CLUSTER, list the catalogue."""
    from netmodel.cluster import ClusterError, load_cluster, with_faults
    from netmodel.cluster.faults import parse_fault
    from netmodel.drawing.svg import draw_svg
    from netmodel.drawing.terminal import draw
    from netmodel.topology import build_topology

    try:
        if cluster is None:
            list_clusters()
            return
        found = with_faults(load_cluster(cluster), [parse_fault(fault) for fault in faults])
        topology = build_topology(found, gpus or 2 * found.gpus_per_node * found.gpu_link_nodes)
    except ClusterError as error:
        raise click.ClickException(str(error)) from error
    for line in draw(topology):
        click.echo(line)
    if svg is not None:
        try:
            svg.write_text(draw_svg(topology), encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"cannot write {svg}: {error.strerror}") from error
        click.echo(f"Drawing  {svg}")
