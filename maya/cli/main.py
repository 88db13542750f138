"""The `maya` command: what there is besides running a script, which is maya-torchrun's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from maya import __version__
from maya.cli.calibrate import calibrate
from maya.cli.estimate import estimate
from maya.cli.net import net
from maya.cli.report import report
from maya.cli.setup_torch import setup_torch
from maya.cli.whatif import whatif
from maya.devices import Device, DeviceError, device_names, load_device
from maya.util import standard_streams
from maya.util.units import format_bytes


class _Maya(click.Group):
    """The command. Without `args` this is a process of its own, whose standard streams are ours."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        if args is None:
            standard_streams.begin_tool("maya")
        return super().main(args, *more, **options)


@click.group(cls=_Maya, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="maya")
def main() -> None:
    """Maya runs CUDA PyTorch scripts on virtual GPUs. To run one: maya-torchrun --gpu h100 train.py"""


main.add_command(net)
main.add_command(calibrate)
main.add_command(estimate)
main.add_command(whatif)
main.add_command(report)
main.add_command(setup_torch)


@main.command()
def doctor() -> None:
    """Check this machine, and say what to do about what is wrong."""
    from maya.doctor import Verdict, examine

    colours = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}
    checks = list(examine())
    for check in checks:
        verdict = click.style(f"{check.verdict.value:<4}", fg=colours[check.verdict])
        click.echo(f"{verdict}  {check.subject:<20}  {check.found}")
        if check.advice:
            click.echo(f"{'':<28}{check.advice}")
    if any(check.verdict is Verdict.FAIL for check in checks):
        sys.exit(1)


@main.command()
@click.argument("gpu", required=False)
def gpus(gpu: str | None) -> None:
    """List the GPUs of the catalogue, or show one (a name, or a TOML file of your own)."""
    try:
        if gpu is None:
            for name in device_names():
                _list_gpu(load_device(name))
        else:
            _show_gpu(load_device(gpu))
    except DeviceError as error:
        raise click.ClickException(str(error)) from error


def _list_gpu(device: Device) -> None:
    click.echo(
        f"{device.key:<14}{device.name:<24}sm {_text(device.compute_capability):<6}{device.sm_count:>4} SMs  "
        f"{format_bytes(device.memory_bytes):>10}  {device.memory_bandwidth / 1e9:>7.0f} GB/s  "
        f"{device.fp16_flops / 1e12:>6.0f} TFLOPS fp16"
    )


def _show_gpu(device: Device) -> None:
    for entry in fields(device):
        value = getattr(device, entry.name)
        if value is not None:
            click.echo(f"{entry.name:<34}{_text(value)}")


def _text(value: str | int | tuple[int, int]) -> str:
    if isinstance(value, tuple):
        return "{}.{}".format(*value)
    return f"{value:,}" if isinstance(value, int) else value


@main.command()
def env() -> None:
    """List the MAYA_ environment variables that users may set."""
    from rank_runtime.variables import RANK_VARIABLES, SETUP_VARIABLES

    variables = [variable for variable in (*RANK_VARIABLES, *SETUP_VARIABLES) if not variable.internal]
    width = max(len(variable.name) for variable in variables)
    for variable in variables:
        default = f" [{variable.default}]" if variable.default else ""
        click.echo(f"{variable.name:<{width}}  {variable.meaning}{default}")


@main.group()
def trace() -> None:
    """Look at what a run recorded."""


@trace.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--limit", type=click.IntRange(min=0), help="List at most this many records.")
@click.option("--kind", "kinds", multiple=True, help="List only records of this kind (may be repeated).")
@click.option("--ops/--no-ops", default=True, show_default=True, help="Name the op each record came from.")
@click.option("--demangle/--no-demangle", default=True, show_default=True, help="Make kernel names readable.")
@click.option("--summary", is_flag=True, help="Count what was launched instead of listing it.")
def show(file: Path, limit: int | None, kinds: tuple[str, ...], ops: bool, demangle: bool, summary: bool) -> None:
    """Print the trace in FILE."""
    from maya.cli.trace import parse_kinds
    from maya.cli.trace import show as print_trace

    try:
        chosen = parse_kinds(kinds) if kinds else None
        print_trace(file, limit=limit, kinds=chosen, ops=ops, demangle=demangle, summary=summary)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
