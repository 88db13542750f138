"""`maya net show`: a cluster drawn in the terminal, and as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from maya.cli.net.options import fault_option
from maya.util.units import format_rate

if TYPE_CHECKING:
    from netmodel.cluster import Cluster


@click.command()
@click.argument("cluster", required=False)
@click.option("--gpus", type=click.IntRange(min=1), help="Draw so many GPUs  [default: two nodes, or two racks].")
@fault_option
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write a drawing to this file, too.")
def show(cluster: str | None, gpus: int | None, faults: tuple[str, ...], svg: Path | None) -> None:
    """Draw CLUSTER: a name of the catalogue, or a TOML file of your own. Without CLUSTER, list the catalogue."""
    from netmodel.cluster import ClusterError, cluster_names, load_cluster, with_faults
    from netmodel.cluster.faults import parse_fault
    from netmodel.drawing.svg import draw_svg
    from netmodel.drawing.terminal import draw
    from netmodel.topology import build_topology

    try:
        if cluster is None:
            for name in cluster_names():
                _list(load_cluster(name))
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


def _list(cluster: Cluster) -> None:
    links = {"nvswitch": "NVSwitch", "nvlink-mesh": "NVLink mesh", "pcie": "PCIe"}[cluster.gpu_link]
    link_rate = format_rate(cluster.gpu_link_rate)
    nics = f"{cluster.nics_per_node} × {format_rate(cluster.nic_rate, bits=True)}"
    click.echo(
        f"{cluster.key:<18}{cluster.gpus_per_node} × {cluster.gpu:<14}{links:<12}{link_rate:>9}  "
        f"{nics:<14}{cluster.fabric.kind:<15}{cluster.name}"
    )
