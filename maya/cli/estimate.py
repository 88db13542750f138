"""`maya estimate`: the time of one op on GPUs of the catalogue, or of every kernel in a trace.

maya estimate --op gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --gpu a100-80,h100
maya estimate --trace rank0.trace --gpu b200
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maya.cli.parameter_types import CatalogueType, SizeType
from maya.cli.tables import print_table
from maya.devices import device_names
from maya.util.text import bytes_text, count_text, share_text, time_text

if TYPE_CHECKING:
    from maya.api.op_estimate import KernelEstimate, OpEstimate
    from maya.api.trace_estimate import TraceEstimate, TraceKernel

# The dimensions of all ops; maya.estimators.ops.OPS says which op has which.
_SIZES = {
    "m": "Rows of a matrix product.",
    "n": "Columns of a matrix product.",
    "k": "Inner dimension of a matrix product.",
    "batch": "Number of matrix products, sequences or images.",
    "heads": "Attention heads of the queries.",
    "kv_heads": "Attention heads of keys and values, if fewer.",
    "queries": "Length of the sequence.",
    "keys": "Length of the keys, if it differs.",
    "head_dim": "Size of an attention head.",
    "channels": "Input channels of a convolution.",
    "filters": "Output channels of a convolution.",
    "side": "Height and width of an image.",
    "window": "Height and width of a convolution's filter.",
    "stride": "Stride of a convolution.",
    "groups": "Groups of a convolution.",
    "rows": "Rows or tokens.",
    "columns": "Length of a row: hidden size or classes.",
    "elements": "Elements of a tensor, or of a list of tensors together.",
    "inputs": "Tensors that an elementwise kernel reads.",
    "tensors": "Tensors in an optimizer's list.",
    "bytes": "Bytes to transfer or set.",
}
_WORDS = {
    "layout": "Layout of a matrix product: TN (forward), NN (input gradient), NT (weight gradient).",
    "implementation": "Attention: flash, efficient, cudnn, ...; optimizer: fused, foreach.",
    "direction": "Direction of a transfer: HtoD, DtoH.",
}
_FLAGS = {
    "causal": "Causal attention: a query sees keys up to its own position.",
    "backward": "The kernels of the backward pass.",
    "transposed": "A copy that changes the order of elements.",
}


def _dimensions(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for every dimension."""
    for name, text in reversed(_SIZES.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, type=SizeType(), help=text)(command)
    for name, text in reversed(_WORDS.items()):
        command = click.option(f"--{name}", name, metavar="NAME", help=text)(command)
    for name, text in reversed(_FLAGS.items()):
        command = click.option(f"--{name}", name, is_flag=True, help=text)(command)
    return command


@click.command(short_help="Estimate the time of an op or of a trace.")
@click.option(
    "--op",
    metavar="NAME",
    help="The op: gemm, attention, norm, softmax, cross_entropy, elementwise, optimizer, copy, ...",
)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Estimate every kernel in this trace instead of an op.",
)
@click.option(
    "--gpu",
    "gpus",
    type=CatalogueType("gpu"),
    multiple=True,
    metavar="NAME|FILE",
    help="A name in the catalogue or a TOML file; several: a,b or repeated.",
)
@click.option("--dtype", metavar="NAME", help="bf16, fp16, tf32, fp32, fp64, fp8, ...  [default: bf16]")
@click.option(
    "--pack",
    "packs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A pack of your own, from maya calibrate; may be repeated.",
)
@click.option(
    "--within",
    metavar="NAME",
    help="With --trace: only launches inside annotations (torch.profiler.record_function) of this name.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    metavar="N",
    default=10,
    show_default=True,
    help="With --trace: list the N kernels that take most time.",
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
    """Estimate the time of an op, or of every kernel in a trace, with its uncertainty and bottleneck.

    Times are of the GPU alone, from the start of the first kernel to the end of the last.
    """
    given = {name: value for name, value in dimensions.items() if value is not None and value is not False}
    if (op is None) == (trace_file is None):
        raise click.UsageError(
            "give --op gemm --m 4096 --n 4096 --k 4096 --gpu h100 for one op, or --trace FILE for a whole trace"
        )
    try:
        if trace_file is not None:
            if given or dtype:
                names = [*given, *(["dtype"] if dtype else [])]
                raise click.UsageError(f"a trace has its own shapes; leave out --{', --'.join(names)}")
            _estimate_trace(trace_file, gpus, packs, within, top)
        else:
            zero = [name for name, value in given.items() if value == 0]
            if zero:
                raise click.UsageError(f"--{zero[0].replace('_', '-')} is 0; give at least 1")
            _estimate_op(str(op), dtype or "bf16", given, _gpu_names(gpus), packs)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _gpu_names(gpus: Sequence[str]) -> list[str]:
    names = [name.strip() for text in gpus for name in text.split(",") if name.strip()]
    if not names:
        raise click.UsageError(
            f"name a GPU: --gpu h100, or --gpu a100-80,h100 (the catalogue has {', '.join(device_names())})"
        )
    return list(dict.fromkeys(names))


def _estimate_op(
    op: str, dtype: str, given: dict[str, int | str | bool], gpus: Sequence[str], packs: Sequence[Path]
) -> None:
    from maya.api.op_estimate import estimate as estimate_op

    found = [estimate_op(op, gpu=gpu, dtype=dtype, packs=packs, **given) for gpu in gpus]
    for kernel in found[0].kernels:
        click.echo(_describe(kernel))
    rows: list[tuple[str, ...]] = [
        ("gpu", "time", "reached", "of peak", "bound", "limited by", "origin", "spread", "note")
    ]
    for each in found:
        if len(each.kernels) > 1:
            rows += [_row(f"  {kernel.variant}", kernel) for kernel in each.kernels]
            rows.append(_sum_row(each))
        else:
            rows.append(_row(each.gpu, each.kernels[0]))
    print_table(rows, right=(1, 2, 3, 4, 7))


def _describe(kernel: KernelEstimate) -> str:
    shape = " ".join(
        f"{name}={value:g}" if value < 1e6 else f"{name}={value:.0f}" for name, value in kernel.shape.items()
    )
    return (
        f"{kernel.kernel_class} {kernel.variant} {kernel.dtype} {shape}: {count_text(kernel.flops, 'FLOP')}, "
        f"{bytes_text(round(kernel.bytes_moved))} moved"
    )


def _row(name: str, kernel: KernelEstimate) -> tuple[str, ...]:
    return (
        name,
        time_text(kernel.time_ns),
        count_text(kernel.reached_per_second, kernel.reached_unit),
        share_text(kernel.reached_per_second / kernel.peak_per_second),
        time_text(kernel.bound_ns),
        kernel.limited_by,
        kernel.origin,
        share_text(kernel.spread),
        kernel.note,
    )


def _sum_row(found: OpEstimate) -> tuple[str, ...]:
    """All kernels of an op that has several."""
    moved = sum(kernel.bytes_moved for kernel in found.kernels)
    return (
        found.gpu,
        time_text(found.time_ns),
        count_text(moved / found.time_ns * 1e9, "B/s"),
        share_text(moved / found.time_ns * 1e9 / found.memory_peak_per_second),
        time_text(found.bound_ns),
        "",
        found.origin,
        share_text(found.spread),
        "all of the above",
    )


def _estimate_trace(file: Path, gpus: Sequence[str], packs: Sequence[Path], within: str | None, top: int) -> None:
    from maya.api.trace_estimate import estimate_trace, recorded_gpu, unknown_gpu
    from maya.trace import read

    trace = read(file)
    recorded = recorded_gpu(trace)
    if not gpus and recorded is None:
        raise click.UsageError(f"{unknown_gpu(trace)} with --gpu")
    names = _gpu_names(gpus) if gpus else [recorded]
    found = [estimate_trace(trace, gpu=name, within=within, packs=packs) for name in names]
    click.echo(
        f"{file}: {found[0].launches:,} launches of {len(found[0].kernels):,} distinct kernels, "
        f"recorded on {trace.header.gpu}"
    )
    if trace.problem:
        click.echo(f"the trace is incomplete: {trace.problem}")
    click.echo("")
    _print_classes(found)
    if top:
        click.echo("")
        _print_slowest(found, top)


def _print_classes(found: Sequence[TraceEstimate]) -> None:
    from maya.estimators.kernel import Origin

    first = found[0]
    rows = [("class", "launches", "distinct", *(cell for each in found for cell in (each.gpu, "share")))]
    times = [{row.kernel_class: row.total_ns for row in each.classes} for each in found]
    for row in first.classes:
        ns = [of_gpu[row.kernel_class] for of_gpu in times]
        rows.append((row.kernel_class, str(row.launches), str(row.distinct), *_with_shares(found, ns)))
    totals = [cell for each in found for cell in (time_text(each.total_ns), "")]
    rows.append(("total", str(first.launches), str(len(first.kernels)), *totals))
    for origin in Origin:
        ns = [each.origin_ns.get(origin.value, 0) for each in found]
        if any(ns):
            rows.append((f"  {origin.value}", "", "", *_with_shares(found, ns)))
    if first.flops:
        rates = [
            cell
            for each in found
            for cell in (count_text(each.flops / each.total_ns * 1e9, "FLOPS"), share_text(each.peak_share))
        ]
        rows.append((f"{count_text(first.flops, 'FLOP')}, of peak", "", "", *rates))
    print_table(rows, right=range(1, len(rows[0])))


def _with_shares(found: Sequence[TraceEstimate], times_ns: Sequence[int]) -> list[str]:
    pairs = zip(found, times_ns, strict=True)
    return [cell for each, ns in pairs for cell in (time_text(ns), share_text(ns / each.total_ns))]


def _print_slowest(found: Sequence[TraceEstimate], top: int) -> None:
    first = found[0]
    order = sorted(range(len(first.kernels)), key=lambda at: (-first.kernels[at].total_ns, at))[:top]
    rows = [("times", *(f"each on {each.gpu}" for each in found), "share", "origin", "spread", "kernel", "op")]
    for at in order:
        kernel = first.kernels[at]
        rows.append(
            (
                f"{kernel.launches}",
                *(time_text(each.kernels[at].time_ns) for each in found),
                share_text(kernel.total_ns / first.total_ns),
                kernel.origin,
                f"{100 * kernel.spread:.0f} %",
                _short(kernel),
                kernel.op,
            )
        )
    print_table(rows, right=(*range(len(found) + 2), len(found) + 3))


def _short(kernel: TraceKernel) -> str:
    shape = " ".join(f"{name}={value:.0f}" for name, value in kernel.shape.items())
    return f"{kernel.kernel_class} {kernel.variant} {kernel.dtype} {shape}"
