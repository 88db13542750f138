"""`maya whatif`: replays a recorded run on other settings, and prints both side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maya.cli.net.options import fault_option

if TYPE_CHECKING:
    from maya.results import Result
    from maya.whatif.changes import ChangedReplay
    from maya.whatif.compare import Figures

VERSION = 1  # of what --json prints


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--gpu", metavar="NAME|FILE", help="On this GPU.")
@click.option("--cluster", metavar="NAME|FILE", help="On this cluster, with its GPU unless --gpu names another.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="With another value of the cluster (node.nic_rate=200Gbps), of the GPU (memory_bandwidth=4TB/s) or of the "
    "host (host.op=5us); may be repeated.",
)
@click.option(
    "--slow-rank",
    "slow_ranks",
    multiple=True,
    metavar="RANK:FACTOR",
    help="Kernels of a rank, or of ranks, take so many times as long: 17:1.3, 0-7:1.1; may be repeated.",
)
@click.option("--algo", help="As NCCL_ALGO: Ring, Tree, NVLS, ^Ring, allreduce:Tree, ...")
@click.option("--proto", help="As NCCL_PROTO: LL, LL128, Simple, ^LL128, ...")
@click.option("--network", type=click.Choice(["analytic", "flow"]), help="flow: collectives share the links.")
@click.option("--host", metavar="NAME|FILE", help="With the CPU of this file  [default: that of the run].")
@click.option(
    "--host-time",
    type=click.Choice(["model", "zero", "measured"]),
    help="model: costs per op and call; zero: a host that takes no time; measured: as the run was recorded to take.",
)
@fault_option
@click.option("--json", "as_json", is_flag=True, help="Print all figures for programs.")
def whatif(
    run: Path,
    gpu: str | None,
    cluster: str | None,
    sets: tuple[str, ...],
    slow_ranks: tuple[str, ...],
    algo: str | None,
    proto: str | None,
    network: str | None,
    host: str | None,
    host_time: str | None,
    faults: tuple[str, ...],
    as_json: bool,
) -> None:
    """Replay RUN, the folder of a recorded run, on other settings, without running the script again.

    Without options it is replayed on its own settings, which must give the same timeline.
    """
    from maya.replay.recording import read_recording
    from maya.replay.run_settings import RunSettings
    from maya.replay.simulate import simulate
    from maya.results import conclude
    from maya.trace import RecordKind
    from maya.whatif.changes import WhatIfOptions, apply_options
    from maya.whatif.compare import count_events, same_timeline

    wanted = WhatIfOptions(gpu, cluster, sets, slow_ranks, algo, proto, network, host, host_time, faults)
    try:
        check_run(run)
        settings = RunSettings.load(run)
        changed = apply_options(settings, wanted)
        inductor = settings.inductor_folder(run)
        costs = (settings.host.calls, changed.settings.host.calls)
        allocations = any(calls.get(kind) for calls in costs for kind in (RecordKind.MALLOC, RecordKind.FREE))
        recording = read_recording(run, inductor, allocations=allocations)
        recorded = conclude(simulate(recording, settings))
        if not changed.changes:  # read once more, too, so that nothing is taken for granted
            recording = read_recording(run, inductor, allocations=allocations)
        timeline = simulate(recording, changed.settings, slow_ranks=changed.slow_ranks)
        same = same_timeline(recorded.timeline, timeline)
        after = conclude(timeline)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if changed.settings == settings and not changed.slow_ranks and not same:
        raise click.ClickException(
            f"{run}: two replays on the same settings differ, which must not happen; please report it"
        )
    if as_json:
        click.echo(json.dumps(_document(run, recorded, after, changed), indent=2))
        return
    found = ""
    if same and not changed.changes:
        events = count_events(timeline)
        found = f"replayed on its own settings: the same timeline, all {events:,} events of it{_agrees(run, recorded)}"
    for line in text_of(run, recorded, after, changed, found):
        click.echo(line)


def _agrees(run: Path, recorded: Result) -> str:
    """Whether it is what the run itself had said at its end."""
    from maya.results.prediction_json import prediction_json

    try:
        said = json.loads((run / "summary.json").read_text(encoding="utf-8")).get("prediction")
    except (OSError, ValueError, AttributeError):
        return ""
    if said is None:
        return ""
    found = json.loads(json.dumps(prediction_json(recorded)))
    different = [key for key in found if found[key] != said.get(key)]
    if not different:
        return ", and what summary.json says"
    return f"; but summary.json, which may be of another version of Maya, says otherwise about {', '.join(different)}"


def check_run(run: Path) -> None:
    """Say what is wrong with a folder that is no recorded run."""
    from maya.replay.run_settings import FILE

    if not run.exists():
        raise ValueError(f"{run}: there is no such folder; maya-torchrun says at its end where it recorded a run")
    if not run.is_dir():
        raise ValueError(f"{run} is a file; give the folder of a run, which has {FILE} and rank0.trace in it")
    if not (run / FILE).is_file():
        recorded = next(run.glob("rank*.trace"), None) is not None
        raise ValueError(
            f"{run} has traces but no {FILE}, so an older Maya recorded it; run the job again"
            if recorded
            else f"{run} is not the folder of a run: it has no {FILE}; maya-torchrun says where it recorded a run"
        )


def text_of(run: Path, recorded: Result, after: Result, changed: ChangedReplay, same: str = "") -> list[str]:
    """Lines for people."""
    from maya.whatif.compare import ComparedRow, aligned, figures_of, rows_of

    lines = [_head(run, recorded), *_listed(changed)]
    lines += [f"incomplete: {problem}" for problem in _problems(recorded, after)]
    if same:
        lines.append(same)
    before, other = figures_of(recorded), figures_of(after)
    heads = ComparedRow("", "recorded", "what if" if changed.changes else "replayed", "difference")
    lines += ["", *aligned(rows_of(before, other), heads)]
    if other.peak_bytes > other.capacity_bytes:
        lines += ["", _too_much(other)]
    return lines


def _too_much(figures: Figures) -> str:
    from maya.util.text import bytes_text

    if figures.fits:
        return (
            "PyTorch's allocator would have to give cached memory back, which takes time; the replay does not have "
            "that in it"
        )
    return (
        f"rank {figures.peak_rank} needs {bytes_text(figures.needed_bytes)} at least: on this GPU the job would fail "
        "with an out-of-memory error"
    )


def _head(run: Path, recorded: Result) -> str:
    steps, settings = recorded.steps, recorded.timeline.settings
    what = f"{settings.script}, " if settings.script else ""
    ranks = f"{settings.world_size} rank{'s' if settings.world_size != 1 else ''}"
    return (
        f"{run}: {what}{ranks}, {steps.count} step{'s' if steps.count != 1 else ''}"
        f"{f', {len(steps.measured)} after warm-up' if steps.warm_up else ''}"
    )


def _listed(changed: ChangedReplay) -> list[str]:
    width = max((len(each.what) for each in changed.changes), default=0)
    lines = [f"  {each.what:<{width}}  {each.before} → {each.after}" for each in changed.changes]
    return [*lines, *(f"  ({note})" for note in changed.notes)]


def _problems(*results: Result) -> Sequence[str]:
    return list(dict.fromkeys(problem for result in results for problem in result.timeline.problems))


def _document(run: Path, recorded: Result, after: Result, changed: ChangedReplay) -> dict[str, object]:
    from maya.whatif.compare import figures_of

    before, other = figures_of(recorded).table(), figures_of(after).table()
    return {
        "version": VERSION,
        "run": str(run),
        "changes": [{"what": each.what, "before": each.before, "after": each.after} for each in changed.changes],
        "notes": list(changed.notes),
        "problems": _problems(recorded, after),
        "recorded": before,
        "what_if": other,
        "difference": _difference(before, other),
    }


def _difference(before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
    """After less before, of all that are numbers in both."""
    found: dict[str, object] = {}
    for key, old in before.items():
        new = after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found[key] = _difference(old, new)
        elif _is_number(old) and _is_number(new):
            found[key] = new - old  # type: ignore[operator]
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
