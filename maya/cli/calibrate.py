"""`maya calibrate`: learns kernel times from measurements of the user's GPU.

In: CSV files that scripts/profile_gpu.py wrote on a machine with that GPU. Out: a pack, and a table of its models'
errors on held-out shapes.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from maya.cli.parameter_types import CatalogueType
from maya.devices import DeviceError, load_device
from maya.estimators.training.measurements_file import MeasurementsError, Timed, read_measurements
from maya.util.extras import MissingPackage


@click.command(short_help="Learn kernel times from measurements.")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--gpu",
    type=CatalogueType("gpu"),
    required=True,
    metavar="NAME|FILE",
    help="The measured GPU: a name in the catalogue, or a TOML file.",
)
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The pack to write (.npz).")
@click.option("--source", default="", help="Origin of the measurements; kept in the pack.")
@click.option("--licence", default="", help="Licence of the measurements; kept in the pack.")
@click.option("--date", default="", help="Date of the measurements; kept in the pack  [default: today].")
def calibrate(files: tuple[Path, ...], gpu: str, out: Path, source: str, licence: str, date: str) -> None:
    """Learn kernel times from the measurements in FILES, which scripts/profile_gpu.py wrote."""
    if out.suffix != ".npz":
        raise click.ClickException(f"--out {out}: a pack is a .npz file; write --out {out.with_suffix('.npz')}")
    if not out.parent.is_dir():
        raise click.ClickException(f"--out {out}: there is no folder {out.parent}; make it first")
    try:
        device = load_device(gpu)
        timed = [row for path in files for row in read_measurements(path)]
    except (DeviceError, MeasurementsError) as error:
        raise click.ClickException(str(error)) from error
    _warn_of_other_devices(timed, device.name)

    from maya.estimators.pack import write_pack
    from maya.estimators.training.calibration import calibrate as learn

    date = date or datetime.date.today().isoformat()
    source = source or ", ".join(path.name for path in files)
    try:
        learned = learn(device, timed, source=source, licence=licence, date=date)
    except MissingPackage as error:
        raise click.ClickException(str(error)) from error
    write_pack(out, device.key, learned.models, learned.curves, learned.measured)
    click.echo(f"{'model':<36}{'rows':>7}{'error before':>14}{'held out':>10}")
    for line in learned.lines:
        held_out = f"{line.held_out:.1%}" if line.held_out is not None else "-"
        click.echo(f"{line.model:<36}{line.rows:>7}{line.before.mean:>14.1%}{held_out:>10}  {line.note}".rstrip())
    click.echo(
        f"{out}: {len(learned.models)} models, {len(learned.curves)} curves, "
        f"{len(learned.measured)} measured kernels of {device.key}"
    )


def _warn_of_other_devices(timed: list[Timed], expected: str) -> None:
    for name in sorted({row.device for row in timed if row.device} - {expected}):
        click.echo(f"warning: measured on {name!r}, but --gpu is {expected!r}; is it the right one?", err=True)
