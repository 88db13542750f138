"""`maya net bench`: the time of a collective at every size, in the table that nccl-tests prints."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maya.cli.common_options import algo_option, fault_option, proto_option
from maya.cli.net.chart import Series, draw_chart
from maya.cli.parameter_types import CatalogueType, RanksType, SizeType
from netmodel.collectives.collective import OPERATIONS, bus_factor

if TYPE_CHECKING:
    from maya.api.cluster_network import ClusterNetwork, CollectiveTime
    from netmodel.calibration.measurements import Measurement

_DTYPES = (
    "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "int32", "uint32", "float64",
    "int64", "uint64",
)  # fmt: skip


@dataclass(frozen=True)
class BenchRow:
    """One size."""

    predicted: CollectiveTime
    measured_us: float = 0.0  # 0: not measured

    @property
    def error(self) -> float:
        return self.predicted.time_ns / 1000 / self.measured_us - 1


@click.command()
@click.argument("cluster", type=CatalogueType("cluster"))
@click.option("--op", "operation", type=click.Choice(OPERATIONS), required=True, help="The collective.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="Use the first N GPUs.")
@click.option("--members", type=RanksType(), help="Use these ranks: 0-7, 0,8,16 or 0:64:8 (every eighth below 64).")
@click.option("--minbytes", type=SizeType(), default="8", show_default=True, help="Smallest size.")
@click.option("--maxbytes", type=SizeType(), default="8G", show_default=True, help="Largest size.")
@click.option(
    "--stepfactor",
    type=click.FloatRange(min=1, min_open=True),
    metavar="FACTOR",
    default=2.0,
    show_default=True,
    help="Factor between one size and the next.",
)
@click.option("--dtype", type=click.Choice(_DTYPES), default="float32", show_default=True, help="Type of the elements.")
@algo_option
@proto_option
@fault_option
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare with these measurements, at their sizes: nccl-tests' output, or CSV.",
)
@click.option("--where", multiple=True, metavar="COLUMN=TEXT", help="Of a CSV file, use rows with TEXT in COLUMN only.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Also write a chart to this file.")
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
    """Print what nccl-tests would print on CLUSTER: a name in the catalogue, or a TOML file.

    NCCL_ALGO, NCCL_PROTO, NCCL_MAX_NCHANNELS, NCCL_NVLS_ENABLE, NCCL_COLLNET_ENABLE, NCCL_PXN_DISABLE, ... in the
    environment have the effect that they have on NCCL.
    """
    from maya.api.cluster_network import network as load_network

    if (gpus is None) == (members is None):
        raise click.UsageError("give --gpus 64 for the first 64 GPUs, or --members 0:64:8 for some")
    if maxbytes < minbytes:
        raise click.UsageError(f"--maxbytes {maxbytes} is below --minbytes {minbytes}")
    try:
        network = load_network(cluster, gpus=gpus, members=members, algo=algo, proto=proto, faults=faults)
        if against is None:
            table = network.bench(operation, min_size=minbytes, max_size=maxbytes, factor=stepfactor, dtype=dtype)
            rows = [BenchRow(each) for each in table]
        else:
            measured = _measured(network, against, where, operation)
            rows = [
                BenchRow(network.time(operation, each.size, dtype=each.dtype), each.us)
                for each in measured
                if minbytes <= each.size <= maxbytes
            ]
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if not rows:
        raise click.ClickException(f"no size between {minbytes} and {maxbytes} bytes; widen --minbytes and --maxbytes")
    _print_head(network, rows[0].predicted)
    for row in rows:
        click.echo(_line(row, rows[0].predicted.dtype))
    _print_tail(rows)
    if svg is not None:
        _write_chart(svg, rows, network.cluster_name, against)


def _measured(network: ClusterNetwork, path: Path, where: Sequence[str], operation: str) -> list[Measurement]:
    from netmodel.calibration.measurements import read_measurements

    ranks, nodes = len(network.ranks), network.nodes
    everything = read_measurements(path, operation=operation, ranks=ranks, nodes=nodes, where=parse_where(where))
    fitting = [each for each in everything if (each.operation, each.ranks) == (operation, ranks)]
    if not fitting:
        has = sorted({f"{each.operation} of {each.ranks}" for each in everything})
        raise ValueError(f"{path} has no {operation} of {ranks} ranks; it has {', '.join(has)}")
    if len({each.nodes for each in fitting}) > 1:
        fitting = [each for each in fitting if each.nodes == nodes]
    return sorted(fitting, key=lambda each: each.size)


def parse_where(pairs: Sequence[str]) -> dict[str, str]:
    """The COLUMN=TEXT words of --where."""
    found = {}
    for pair in pairs:
        column, equals, text = pair.partition("=")
        if not equals or not column:
            raise ValueError(f'--where "{pair}": expected COLUMN=TEXT, e.g. gpu=H100')
        found[column] = text
    return found


def _print_head(network: ClusterNetwork, first: CollectiveTime) -> None:
    nodes, parameters = network.nodes, network.model.parameters
    calibrated = parameters.error or parameters.data
    where = f"{nodes} node{'s' if nodes > 1 else ''} of {network.cluster_name}"
    click.echo(f"# {first.operation} of {first.dtype} over {first.ranks} GPUs on {where}")
    click.echo(f"# figures: {parameters.origin}{f'; {calibrated}' if calibrated else ''}")
    click.echo("#")
    click.echo(
        f"# {'size':>12} {'count':>12} {'type':>9} {'redop':>6} {'time':>10} {'algbw':>8} {'busbw':>8}  {'algo':<13} "
        f"{'proto':<7}{'channels':>8}"
    )
    click.echo(f"# {'(B)':>12} {'(elements)':>12} {'':>9} {'':>6} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8}")


def _line(row: BenchRow, dtype: str) -> str:
    from maya.api.cluster_network import smallest_size

    found = row.predicted
    us = found.time_ns / 1000
    count = found.size_bytes // smallest_size(found.operation, dtype, found.ranks)
    redop = "sum" if found.operation in ("all_reduce", "reduce_scatter", "reduce") else "none"
    line = (
        f"  {found.size_bytes:>12} {count:>12} {dtype:>9} {redop:>6} {_figure(us):>10} {found.algbw_gb_per_s:>8.2f} "
        f"{found.busbw_gb_per_s:>8.2f}  {found.algorithm:<13} {found.protocol:<7}{found.channels:>8}"
    )
    if row.measured_us:
        line += f"   measured {_figure(row.measured_us):>10} us  {row.error:>+7.1%}"
    return line


def _figure(us: float) -> str:
    return f"{us:.2f}" if us < 1e4 else f"{us:.0f}"


def _print_tail(rows: Sequence[BenchRow]) -> None:
    first = rows[0].predicted
    mean = statistics.fmean(row.predicted.size_bytes / row.predicted.time_ns for row in rows)
    click.echo("#")
    click.echo(f"# Avg bus bandwidth    : {mean * bus_factor(first.operation, first.ranks):g}")
    for name, is_large in (("1 MiB and more", True), ("below", False)):
        errors = sorted(
            abs(row.error) for row in rows if row.measured_us and (row.predicted.size_bytes >= 2**20) == is_large
        )
        if errors:
            p90 = errors[min(len(errors) - 1, round(0.9 * (len(errors) - 1)))]
            median = statistics.median(errors)
            click.echo(f"# error, {name:<14}: median {median:.1%}, p90 {p90:.1%} of {len(errors)} measurements")


def _write_chart(path: Path, rows: Sequence[BenchRow], name: str, against: Path | None) -> None:
    operation, ranks = rows[0].predicted.operation, rows[0].predicted.ranks
    factor = bus_factor(operation, ranks)
    sizes = [row.predicted.size_bytes for row in rows]
    series = [
        Series(
            "predicted",
            [(size, factor * size / row.predicted.time_ns) for size, row in zip(sizes, rows, strict=True)],
        )
    ]
    if against is not None:
        points = [(size, factor * size / row.measured_us / 1000) for size, row in zip(sizes, rows, strict=True)]
        series.append(Series(f"measured, {against.name}", points, dots=True))
    try:
        path.write_text(
            draw_chart(f"{operation} over {ranks} GPUs, {name}: bus bandwidth", "GB/s", series), encoding="utf-8"
        )
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"Chart  {path}")
