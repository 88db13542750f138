"""`maya estimate`: how long one op takes on GPUs of the catalogue, or everything that a trace recorded.

maya estimate --op gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --gpu a100-80,h100
maya estimate --trace rank0.trace --gpu b200
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maya.cli.net.sizes import SizeType
from maya.devices import Device, device_names, load_device

if TYPE_CHECKING:
    from maya.estimators.breakdown import Breakdown
    from maya.estimators.features import TracedKernel, TracedKernels
    from maya.estimators.kernel import Estimate, Kernel

# Dimensions that some op has; questions.OPS says which.
_SIZES = {
    "m": "Rows of a product's result.",
    "n": "Columns of a product's result.",
    "k": "What a product sums over.",
    "batch": "Products, or sequences, or images.",
    "heads": "Attention heads of the queries.",
    "kv_heads": "Attention heads of keys and values, if fewer.",
    "queries": "Length of the sequence.",
    "keys": "Length of the keys, if it differs.",
    "head_dim": "Size of an attention head.",
    "channels": "Of a convolution's input.",
    "filters": "Channels of a convolution's result.",
    "side": "Height and width of an image.",
    "window": "Height and width of a convolution's filter.",
    "stride": "Of a convolution.",
    "groups": "Of a convolution.",
    "rows": "Rows, tokens.",
    "columns": "Length of a row, hidden size, classes.",
    "elements": "Elements of a tensor, or of all of a list.",
    "inputs": "Tensors that an elementwise kernel reads.",
    "tensors": "Tensors in an optimizer's list.",
    "bytes": "Bytes to transfer or set.",
}
_WORDS = {
    "layout": "Of a product: TN (forward), NN (gradient of the input), NT (gradient of the weight).",
    "implementation": "Of attention: flash, efficient, cudnn, ...; of an optimizer: fused, foreach.",
    "direction": "Of a transfer: HtoD, DtoH.",
}
_FLAGS = {
    "causal": "A query looks at keys up to its own place only.",
    "backward": "The gradient's kernels.",
    "transposed": "A copy that changes the order of elements.",
}


def _dimensions(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for every dimension."""
    for name, text in reversed(_SIZES.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, type=SizeType(), help=text)(command)
    for name, text in reversed(_WORDS.items()):
        command = click.option(f"--{name}", name, help=text)(command)
    for name, text in reversed(_FLAGS.items()):
        command = click.option(f"--{name}", name, is_flag=True, help=text)(command)
    return command


@click.command()
@click.option("--op", help="The op: gemm, attention, norm, softmax, cross_entropy, elementwise, optimizer, copy, ...")
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Instead of an op: everything in this trace.",
)
@click.option("--gpu", "gpus", multiple=True, help="A name of the catalogue or a TOML file; several: repeated, or a,b.")
@click.option("--dtype", help="bf16, fp16, tf32, fp32, fp64, fp8, ... [bf16]")
@click.option(
    "--pack",
    "packs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A pack of your own, made by maya calibrate (may be repeated).",
)
@click.option("--within", help="Of a trace: only what was launched in annotations (record_function) of this name.")
@click.option(
    "--top", type=click.IntRange(min=0), default=10, show_default=True, help="Of a trace: list so many works."
)
@_dimensions
def estimate(
    op: str | None,
    trace_file: Path | None,
    gpus: tuple[str, ...],
    dtype: str | None,
    packs: tuple[Path, ...],
    within: str | None,
    top: int,
    **dimensions: int | str | bool | None,
) -> None:
    """Say how long an op takes, or what a trace recorded, how sure that is, and what limits it.

    Times are of the device alone, from the start of the first kernel to the end of the last.
    """
    given = {name: value for name, value in dimensions.items() if value is not None and value is not False}
    if (op is None) == (trace_file is None):
        raise click.UsageError(
            "say of what: --op gemm --m 4096 --n 4096 --k 4096 --gpu h100 for one op, or --trace FILE for a whole trace"
        )
    try:
        if trace_file is not None:
            if given or dtype:
                names = [*given, *(["dtype"] if dtype else [])]
                raise click.UsageError(f"a trace says its own shapes; leave out --{', --'.join(names)}")
            _estimate_trace(trace_file, gpus, packs, within, top)
        else:
            zero = [name for name, value in given.items() if value == 0]
            if zero:
                raise click.UsageError(f"--{zero[0].replace('_', '-')} is 0; give at least 1")
            _estimate_op(str(op), dtype or "bf16", given, _devices(gpus), packs)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _devices(gpus: Sequence[str]) -> list[Device]:
    names = [name.strip() for text in gpus for name in text.split(",") if name.strip()]
    if not names:
        raise click.UsageError(
            f"say on which GPU: --gpu h100, or --gpu a100-80,h100 (there are {', '.join(device_names())})"
        )
    return [load_device(name) for name in dict.fromkeys(names)]


def _catalogue_key(cuda_name: str) -> str | None:
    """The catalogue's name of a GPU that CUDA names so; None if there is none, or more than one."""
    found = [key for key in device_names() if load_device(key).name == cuda_name]
    return found[0] if len(found) == 1 else None


def _estimate_op(
    op: str, dtype: str, given: dict[str, int | str | bool], devices: Sequence[Device], packs: Sequence[Path]
) -> None:
    from maya.estimators.estimator import Estimator
    from maya.estimators.ops import kernels_for

    works = kernels_for(op, dtype, given)
    answers = [(device, Estimator(device, packs).estimate(works)) for device in devices]
    for work in works:
        click.echo(_describe(work))
    rows: list[tuple[str, ...]] = [
        ("gpu", "time", "reached", "of peak", "bound", "limited by", "origin", "spread", "note")
    ]
    for device, estimates in answers:
        if len(works) > 1:
            rows += [
                _row(f"  {work.variant}", device, work, found) for work, found in zip(works, estimates, strict=True)
            ]
            rows.append(_sum_row(device, works, estimates))
        else:
            rows.append(_row(device.key, device, works[0], estimates[0]))
    _print_table(rows, right=(1, 2, 3, 4, 7))


def _describe(work: Kernel) -> str:
    shape = " ".join(
        f"{name}={value:g}" if value < 1e6 else f"{name}={value:.0f}" for name, value in work.shape.items()
    )
    moved = work.bytes_read + work.bytes_written
    return f"{work.kind.value} {work.variant} {work.dtype} {shape}: {_scaled(work.flops)}FLOP, {_scaled(moved)}B moved"


def _row(name: str, device: Device, work: Kernel, found: Estimate) -> tuple[str, ...]:
    from maya.estimators.kernel import KernelClass
    from maya.estimators.models.bottleneck import bottleneck_of, peak_of

    limit = bottleneck_of(device, work)
    seconds = found.ns * 1e-9
    if limit.by in ("tensor cores", "arithmetic"):
        reached, peak, unit = work.flops / seconds, peak_of(device, work), "FLOPS"
    elif work.kind is KernelClass.TRANSFER:
        reached, peak, unit = max(work.bytes_read, work.bytes_written) / seconds, float(device.host_bandwidth), "B/s"
    else:
        reached, peak, unit = (work.bytes_read + work.bytes_written) / seconds, float(device.memory_bandwidth), "B/s"
    return (
        name,
        _time(found.ns),
        f"{_scaled(reached)}{unit}",
        f"{100 * reached / peak:.1f} %",
        _time(round(limit.seconds * 1e9)),
        limit.by,
        found.origin.value,
        f"{100 * found.spread:.1f} %",
        found.note,
    )


def _sum_row(device: Device, works: Sequence[Kernel], estimates: Sequence[Estimate]) -> tuple[str, ...]:
    """All kernels of an op that is several."""
    from maya.estimators.kernel import Origin
    from maya.estimators.models.bottleneck import bottleneck_of

    ns = sum(found.ns for found in estimates)
    moved = sum(work.bytes_read + work.bytes_written for work in works)
    bound = sum(round(bottleneck_of(device, work).seconds * 1e9) for work in works)
    order = list(Origin)
    worst = max((found.origin for found in estimates), key=order.index)
    spread = sum(found.ns * found.spread for found in estimates) / ns
    share = f"{100 * moved / ns * 1e9 / device.memory_bandwidth:.1f} %"
    rate = f"{_scaled(moved / ns * 1e9)}B/s"
    return (
        device.key,
        _time(ns),
        rate,
        share,
        _time(bound),
        "",
        worst.value,
        f"{100 * spread:.1f} %",
        "all of the above",
    )


def _estimate_trace(file: Path, gpus: Sequence[str], packs: Sequence[Path], within: str | None, top: int) -> None:
    from maya.estimators.breakdown import break_down, only_within
    from maya.estimators.features import kernels_of
    from maya.trace import read

    trace = read(file)
    if not gpus:
        key = _catalogue_key(trace.header.gpu)
        if key is None:
            raise click.UsageError(
                f'{file} was recorded on "{trace.header.gpu}", no GPU of the catalogue; say --gpu NAME'
            )
        gpus = (key,)
    devices = _devices(gpus)
    traced = kernels_of(trace)
    if within is not None:
        traced = only_within(trace, traced, within)
    if not traced.works:
        raise click.ClickException(
            f"{file}: no kernel, library call, copy or memset is in it; maya trace show lists the rest"
        )
    click.echo(
        f"{file}: {len(traced.records):,} launches of {len(traced.works):,} different works, "
        f"recorded on {trace.header.gpu}"
    )
    if trace.problem:
        click.echo(f"the trace is not whole: {trace.problem}")
    parts = [break_down(traced, device, packs) for device in devices]
    click.echo("")
    _print_kinds(parts)
    if top:
        click.echo("")
        _print_slowest(traced, parts, top)


def _print_kinds(parts: Sequence[Breakdown]) -> None:
    from maya.estimators.kernel import Origin

    first = parts[0]
    rows = [("kind", "launches", "different", *(cell for part in parts for cell in (part.device.key, "share")))]
    for kind, of_first in first.kinds.items():
        cells = [str(of_first.launches), str(of_first.different)]
        for part in parts:
            cells += [_time(part.kinds[kind].ns), f"{100 * part.kinds[kind].ns / part.total.ns:.1f} %"]
        rows.append((kind.value, *cells))
    totals = [cell for part in parts for cell in (_time(part.total.ns), "")]
    rows.append(("total", str(first.total.launches), str(first.total.different), *totals))
    for origin in Origin:
        times = [part.total.by_origin.get(origin, 0) for part in parts]
        if any(times):
            shares = [
                cell
                for part, ns in zip(parts, times, strict=True)
                for cell in (_time(ns), f"{100 * ns / part.total.ns:.1f} %")
            ]
            rows.append((f"  {origin.value}", "", "", *shares))
    if first.flops:
        rates = [
            cell
            for part in parts
            for cell in (f"{_scaled(part.flops / part.total.ns * 1e9)}FLOPS", f"{100 * part.peak_share:.1f} %")
        ]
        rows.append((f"{_scaled(first.flops)}FLOP, of peak", "", "", *rates))
    _print_table(rows, right=range(1, len(rows[0])))


def _print_slowest(traced: TracedKernels, parts: Sequence[Breakdown], top: int) -> None:
    first = parts[0]
    whole = [found.ns * item.count for found, item in zip(first.estimates, traced.works, strict=True)]
    order = sorted(range(len(whole)), key=lambda at: (-whole[at], at))[:top]
    rows = [("times", *(f"each on {part.device.key}" for part in parts), "share", "origin", "spread", "work", "op")]
    for at in order:
        item, found = traced.works[at], first.estimates[at]
        rows.append(
            (
                f"{item.count}",
                *(_time(part.estimates[at].ns) for part in parts),
                f"{100 * whole[at] / first.total.ns:.1f} %",
                found.origin.value,
                f"{100 * found.spread:.0f} %",
                _short(item),
                item.launch.op.removeprefix("aten::"),
            )
        )
    _print_table(rows, right=(*range(len(parts) + 2), len(parts) + 3))


def _short(item: TracedKernel) -> str:
    work = item.work
    shape = " ".join(f"{name}={value:.0f}" for name, value in work.shape.items())
    return f"{work.kind.value} {work.variant} {work.dtype} {shape}"


def _print_table(rows: Sequence[Sequence[str]], right: Sequence[int] | range) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def _time(ns: int) -> str:
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= factor:
            return f"{ns / factor:.{3 if ns < 10 * factor else 2 if ns < 100 * factor else 1}f} {unit}"
    return f"{ns} ns"


def _scaled(value: float) -> str:
    for unit, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.{1 if value >= 100 * factor else 2}f} {unit}"
    return f"{value:.0f} "
