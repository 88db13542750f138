"""`maya net together`: one collective in many process groups at the same time, sharing the links of a cluster."""

from __future__ import annotations

import os
from statistics import median
from typing import TYPE_CHECKING

import click

from maya.cli.common_options import fault_option
from maya.cli.parameter_types import CatalogueType
from maya.util.text import time_text
from maya.util.units import BYTES
from netmodel.collectives.collective import OPERATIONS

if TYPE_CHECKING:
    from netmodel.collectives.collective import Collective
    from netmodel.flow import Finished
    from netmodel.flow.link_use import LinkUse
    from netmodel.topology import Topology

_COLUMNS = ("alone", "fastest", "median", "slowest")


@click.command()
@click.argument("clusters", type=CatalogueType("cluster"), nargs=-1, required=True, metavar="CLUSTER...")
@click.option("--gpus", type=click.IntRange(min=2), metavar="N", required=True, help="Number of GPUs of the job.")
@click.option(
    "--group-size", type=click.IntRange(min=2), metavar="N", required=True, help="Number of ranks of a group."
)
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    metavar="N",
    help="Distance between the ranks of a group  [default: GPUS / GROUP-SIZE, the largest possible].",
)
@click.option(
    "--op", "operation", type=click.Choice(OPERATIONS), default="all_reduce", show_default=True, help="The collective."
)
@click.option(
    "--size",
    metavar="SIZE",
    default="256MB",
    show_default=True,
    help="Size of each collective, as nccl-tests counts it.",
)
@fault_option
def together(
    clusters: tuple[str, ...],
    gpus: int,
    group_size: int,
    stride: int | None,
    operation: str,
    size: str,
    faults: tuple[str, ...],
) -> None:
    """Time a collective in all process groups of a job at once, on CLUSTER: a name in the catalogue, or a TOML file.

    Every GPU is in one group. Prints the time of a group that has the network to itself, and the times of the groups
    when they share links. NCCL_ALGO, NCCL_PROTO and the like in the environment have their effect.
    """
    from netmodel.cluster import load_cluster, with_faults
    from netmodel.cluster.faults import parse_fault
    from netmodel.collectives.collective import Collective
    from netmodel.collectives.nccl_settings import read_settings
    from netmodel.flow import FlowNetwork
    from netmodel.flow.link_use import busiest_links
    from netmodel.topology import build_topology

    step = stride or max(1, gpus // group_size)
    if gpus % (group_size * step):
        raise click.ClickException(
            f"{gpus} GPUs are not a whole number of blocks of {group_size} × {step} (group size × stride); "
            f"choose --gpus as a multiple of {group_size * step}, or another --group-size or --stride"
        )
    block = group_size * step
    groups = [
        tuple(range(first + place, first + block, step)) for first in range(0, gpus, block) for place in range(step)
    ]
    rows = []
    try:
        collectives = [Collective(operation, BYTES.parse(size), members) for members in groups]
        settings = read_settings(os.environ)
        for name in clusters:
            cluster = with_faults(load_cluster(name), [parse_fault(fault) for fault in faults])
            topology = build_topology(cluster, gpus)
            finished = FlowNetwork(topology, settings).simulate([(0, collective) for collective in collectives])
            rows.append((topology, finished, busiest_links(topology, finished)))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    _print(collectives, step, rows)


def _print(
    collectives: list[Collective], stride: int, rows: list[tuple[Topology, list[Finished], list[LinkUse]]]
) -> None:
    first, topology = collectives[0], rows[0][0]
    apart = f", {stride} apart" if stride > 1 else ""
    groups = f"{len(collectives)} group{'s' if len(collectives) > 1 else ''}"
    click.echo(f"{first.operation} of {first.size} bytes in {groups} of {len(first.members)} ranks{apart}")
    click.echo(f"{topology.gpus} GPUs{''.join(f', {fault}' for fault in topology.cluster.faults)}\n")
    width = max(len("cluster"), *(len(topology.cluster.key) for topology, _, _ in rows))
    head = "".join(f"{column:>10}" for column in _COLUMNS)
    click.echo(f"{'cluster':<{width}}{head}  algorithm           busiest link")
    for topology, finished, links in rows:
        times = sorted(one.ns for one in finished)
        alone = min(one.alone_ns for one in finished)
        cells = "".join(f"{time_text(ns):>10}" for ns in (alone, times[0], round(median(times)), times[-1]))
        plan = finished[0].plan
        use = "".join(f"{link.share:4.0%}  {link.source} → {link.target}" for link in links)
        click.echo(f"{topology.cluster.key:<{width}}{cells}  {f'{plan.algorithm}, {plan.protocol}':<18}{use}".rstrip())
