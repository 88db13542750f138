"""`maya net bench`: how long a collective takes at every size, in the table that nccl-tests prints."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maya.cli.net.chart import Series, draw_chart
from maya.cli.net.options import fault_option
from maya.cli.net.sizes import RanksType, SizeType
from netmodel.collectives.collective import bus_factor

if TYPE_CHECKING:
    from netmodel.calibration.measurements import Measurement
    from netmodel.collectives.analytic import AnalyticNetwork
    from netmodel.collectives.collective import CollectiveEstimate

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv")
_WIDTHS = {
    "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4,
    "uint32": 4, "float64": 8, "int64": 8, "uint64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class BenchRow:
    """One size."""

    size: int
    estimate: CollectiveEstimate
    measured_us: float = 0.0


@click.command()
@click.argument("cluster")
@click.option("--op", "operation", type=click.Choice(OPERATIONS), required=True, help="The collective.")
@click.option("--gpus", type=click.IntRange(min=1), help="Of the first so many GPUs.")
@click.option("--members", type=RanksType(), help="Of these ranks: 0-7, 0,8,16 or 0:64:8 (every eighth below 64).")
@click.option("--minbytes", type=SizeType(), default="8", show_default=True, help="Smallest size.")
@click.option("--maxbytes", type=SizeType(), default="8G", show_default=True, help="Largest size.")
@click.option("--stepfactor", type=click.FloatRange(min=1, min_open=True), default=2.0, show_default=True)
@click.option("--dtype", type=click.Choice(tuple(_WIDTHS)), default="float32", show_default=True)
@click.option("--algo", help="As NCCL_ALGO: Ring, Tree, NVLS, ^Ring, allreduce:Tree, ...")
@click.option("--proto", help="As NCCL_PROTO: LL, LL128, Simple, ^LL128, ...")
@fault_option
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measurements to compare with, at their sizes: nccl-tests' output, or CSV.",
)
@click.option("--where", multiple=True, metavar="COLUMN=TEXT", help="Of a CSV, rows with TEXT in COLUMN.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write a chart to this file, too.")
def bench(
    cluster: str,
    operation: str,
    gpus: int | None,
    members: tuple[int, ...] | None,
    minbytes: int,
    maxbytes: int,
    stepfactor: float,
    dtype: str,
    algo: str | None,
    proto: str | None,
    faults: tuple[str, ...],
    against: Path | None,
    where: tuple[str, ...],
    svg: Path | None,
) -> None:
    """Print what nccl-tests would on CLUSTER: a name of the catalogue, or a TOML file of your own.

    NCCL_ALGO, NCCL_PROTO, NCCL_MAX_NCHANNELS, NCCL_NVLS_ENABLE, NCCL_COLLNET_ENABLE, NCCL_PXN_DISABLE, ... of the
    environment count as they do for NCCL.
    """
    from netmodel.cluster import load_cluster, with_faults
    from netmodel.cluster.faults import parse_fault
    from netmodel.collectives.analytic import AnalyticNetwork
    from netmodel.collectives.collective import Collective
    from netmodel.collectives.nccl_settings import read_settings
    from netmodel.topology import build_topology

    if (gpus is None) == (members is None):
        raise click.UsageError("say of which GPUs: --gpus 64 for the first 64, or --members 0:64:8 for some")
    if maxbytes < minbytes:
        raise click.UsageError(f"--maxbytes {maxbytes} is below --minbytes {minbytes}")
    ranks = members if members is not None else tuple(range(gpus or 1))
    environment = dict(os.environ) | ({"NCCL_ALGO": algo} if algo else {}) | ({"NCCL_PROTO": proto} if proto else {})
    try:
        settings = read_settings(environment)
        found = with_faults(load_cluster(cluster), [parse_fault(fault) for fault in faults])
        network = AnalyticNetwork(build_topology(found, max(ranks) + 1), settings)
        if against is None:
            sizes = _sizes(minbytes, maxbytes, stepfactor, _granule(operation, dtype, len(ranks)))
            wanted = [(size, 0.0, dtype) for size in sizes]
        else:
            measured = _measured(network, against, where, operation, ranks)
            wanted = [(each.size, each.us, each.dtype) for each in measured if minbytes <= each.size <= maxbytes]
        rows = [
            BenchRow(size, network.estimate(Collective(operation, size, ranks, dtype=kind)), us)
            for size, us, kind in wanted
        ]
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if not rows:
        raise click.ClickException(f"no size between {minbytes} and {maxbytes} bytes; widen --minbytes and --maxbytes")
    kind = wanted[0][2]
    _print_head(network, operation, ranks, kind)
    for row in rows:
        click.echo(_line(row, operation, len(ranks), kind))
    _print_tail(rows, operation, len(ranks))
    if svg is not None:
        _write_chart(svg, rows, operation, len(ranks), found.name, against)


def _sizes(smallest: int, largest: int, factor: float, granule: int) -> list[int]:
    """As nccl-tests steps: every size is a whole number of elements for every rank."""
    sizes: list[int] = []
    size = float(smallest)
    while size <= largest:
        whole = max(granule, int(size) // granule * granule)
        if not sizes or whole > sizes[-1]:
            sizes.append(whole)
        size *= factor
    return sizes


def _granule(operation: str, dtype: str, ranks: int) -> int:
    return _WIDTHS[dtype] * (ranks if operation in ("all_gather", "reduce_scatter", "all_to_all") else 1)


def _measured(
    network: AnalyticNetwork, path: Path, where: Sequence[str], operation: str, ranks: tuple[int, ...]
) -> list[Measurement]:
    from netmodel.calibration.measurements import read_measurements

    nodes = len({network.topology.node_of(rank) for rank in ranks})
    everything = read_measurements(path, operation=operation, ranks=len(ranks), nodes=nodes, where=parse_where(where))
    fitting = [each for each in everything if (each.operation, each.ranks) == (operation, len(ranks))]
    if not fitting:
        has = sorted({f"{each.operation} of {each.ranks}" for each in everything})
        raise ValueError(f"{path} has no {operation} of {len(ranks)} ranks; it has {', '.join(has)}")
    if len({each.nodes for each in fitting}) > 1:
        fitting = [each for each in fitting if each.nodes == nodes]
    return sorted(fitting, key=lambda each: each.size)


def parse_where(pairs: Sequence[str]) -> dict[str, str]:
    """ "column=text" of options."""
    found = {}
    for pair in pairs:
        column, equals, text = pair.partition("=")
        if not equals or not column:
            raise ValueError(f'--where "{pair}": expected COLUMN=TEXT, e.g. gpu=H100')
        found[column] = text
    return found


def _print_head(network: AnalyticNetwork, operation: str, ranks: tuple[int, ...], dtype: str) -> None:
    cluster = network.topology.cluster
    nodes = len({network.topology.node_of(rank) for rank in ranks})
    calibrated = network.parameters.error or network.parameters.data
    where = f"{nodes} node{'s' if nodes > 1 else ''} of {cluster.name}"
    click.echo(f"# {operation} of {dtype} over {len(ranks)} GPUs on {where}")
    click.echo(f"# figures: {network.parameters.origin}{f'; {calibrated}' if calibrated else ''}")
    click.echo("#")
    click.echo(
        f"# {'size':>12} {'count':>12} {'type':>9} {'redop':>6} {'time':>10} {'algbw':>8} {'busbw':>8}  {'algo':<13} "
        f"{'proto':<7}{'channels':>8}"
    )
    click.echo(f"# {'(B)':>12} {'(elements)':>12} {'':>9} {'':>6} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8}")


def _line(row: BenchRow, operation: str, ranks: int, dtype: str) -> str:
    us = row.estimate.ns / 1000
    bandwidth = row.size / us / 1000
    count = row.size // _granule(operation, dtype, ranks)
    redop = "sum" if operation in ("all_reduce", "reduce_scatter", "reduce") else "none"
    line = (
        f"  {row.size:>12} {count:>12} {dtype:>9} {redop:>6} {_figure(us):>10} {bandwidth:>8.2f} "
        f"{bandwidth * bus_factor(operation, ranks):>8.2f}  {row.estimate.algorithm:<13} {row.estimate.protocol:<7}"
        f"{row.estimate.channels:>8}"
    )
    if row.measured_us:
        line += f"   measured {_figure(row.measured_us):>10} us  {us / row.measured_us - 1:>+7.1%}"
    return line


def _figure(us: float) -> str:
    return f"{us:.2f}" if us < 1e4 else f"{us:.0f}"


def _print_tail(rows: Sequence[BenchRow], operation: str, ranks: int) -> None:
    mean = statistics.fmean(row.size / row.estimate.ns for row in rows) * bus_factor(operation, ranks)
    click.echo("#")
    click.echo(f"# Avg bus bandwidth    : {mean:g}")
    for name, chosen in (("1 MiB and more", 2**20), ("below", 0)):
        off = sorted(
            abs(row.estimate.ns / 1000 / row.measured_us - 1)
            for row in rows
            if row.measured_us and (row.size >= 2**20) == bool(chosen)
        )
        if off:
            p90 = off[min(len(off) - 1, round(0.9 * (len(off) - 1)))]
            click.echo(
                f"# error, {name:<14}: median {statistics.median(off):.1%}, p90 {p90:.1%} of {len(off)} measurements"
            )


def _write_chart(
    path: Path, rows: Sequence[BenchRow], operation: str, ranks: int, name: str, against: Path | None
) -> None:
    factor = bus_factor(operation, ranks)
    series = [Series("predicted", [(row.size, factor * row.size / row.estimate.ns) for row in rows])]
    if against is not None:
        points = [(row.size, factor * row.size / row.measured_us / 1000) for row in rows]
        series.append(Series(f"measured, {against.name}", points, dots=True))
    try:
        path.write_text(
            draw_chart(f"{operation} over {ranks} GPUs, {name}: bus bandwidth", "GB/s", series), encoding="utf-8"
        )
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"Chart  {path}")
