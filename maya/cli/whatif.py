"""`maya whatif`: replays a recorded run on other settings and prints both predictions side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maya.cli.common_options import algo_option, fault_option, proto_option
from maya.cli.parameter_types import CatalogueType

if TYPE_CHECKING:
    from maya.api.run import Run
    from maya.api.run_prediction import RunPrediction

VERSION = 1  # of the document that --json prints


@click.command(short_help="Replay a recorded run on other settings.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--gpu", type=CatalogueType("gpu"), metavar="NAME|FILE", help="Use this GPU.")
@click.option(
    "--cluster",
    type=CatalogueType("cluster"),
    metavar="NAME|FILE",
    help="Use this cluster, and its GPU unless --gpu names another.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one key of the cluster (node.nic_rate=200Gbps), the GPU (memory_bandwidth=4TB/s) or the host "
    "(host.op=5us); may be repeated.",
)
@click.option(
    "--slow-rank",
    "slow_ranks",
    multiple=True,
    metavar="RANKS:FACTOR",
    help="Multiply the kernel times of these ranks by FACTOR: 17:1.3, 0-7:1.1; may be repeated.",
)
@algo_option
@proto_option
@click.option(
    "--network",
    type=click.Choice(["analytic", "flow"]),
    help="analytic: every collective has the network to itself; flow: collectives share links.",
)
@click.option(
    "--host",
    type=CatalogueType("host"),
    metavar="NAME|FILE",
    help="Use the CPU costs of this host  [default: those of the run].",
)
@click.option(
    "--host-time",
    type=click.Choice(["model", "zero", "measured"]),
    help="model: costs per op and call; zero: a host that takes no time; measured: the host times recorded in the run.",
)
@fault_option
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
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

    Without options, replay it twice on its own settings, and check that both timelines are the same.
    """
    from maya.api.run import load

    def replay(recorded: Run) -> RunPrediction:
        return recorded.predict(
            gpu=gpu, cluster=cluster, set=sets, slow_ranks=slow_ranks, network=network, host=host,
            host_time=host_time, algo=algo, proto=proto, faults=faults,
        )  # fmt: skip

    try:
        recorded = load(run)
        after = replay(recorded)
        before = recorded.prediction
        if not after.changes:  # the traces are read again, so that the check covers reading them
            after = replay(load(run))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    same = before.same_timeline(after)
    if not after.changes and before.settings == after.settings and not same:
        raise click.ClickException(
            f"{run}: two replays on the same settings differ, which must not happen; please report it"
        )
    if as_json:
        click.echo(json.dumps(_document(run, before, after), indent=2))
        return
    found = ""
    if same and not after.changes:
        agrees = _agreement(recorded)
        found = f"replayed on its own settings: the same timeline, all {after.event_count:,} events of it{agrees}"
    for line in _lines(run, before, after, found):
        click.echo(line)


def _agreement(run: Run) -> str:
    """Whether the prediction is the one that the job made at its end."""
    try:
        recorded = (run.summary or {}).get("prediction")
    except ValueError:
        return ""
    if not isinstance(recorded, dict):
        return ""
    found = json.loads(json.dumps(run.prediction.to_dict()))
    different = [key for key in found if found[key] != recorded.get(key)]
    if not different:
        return ", and the same prediction as in summary.json"
    return f"; but summary.json, which another version of Maya may have written, differs in {', '.join(different)}"


def _lines(run: Path, before: RunPrediction, after: RunPrediction, same: str) -> list[str]:
    """Lines for the terminal."""
    lines = [_head(run, before), *_changes(after)]
    lines += [f"incomplete: {problem}" for problem in _problems(before, after)]
    if same:
        lines.append(same)
    titles = "recorded", "what if" if after.changes else "replayed"
    return [*lines, "", *before.compare(after).table(*titles)]


def _head(run: Path, recorded: RunPrediction) -> str:
    steps, settings = recorded.steps, recorded.settings
    script = f"{settings.script}, " if settings.script else ""
    ranks = f"{settings.world_size} rank{'s' if settings.world_size != 1 else ''}"
    return (
        f"{run}: {script}{ranks}, {len(steps)} step{'s' if len(steps) != 1 else ''}"
        f"{f', {len(steps.measured)} after warm-up' if steps.warm_up else ''}"
    )


def _changes(after: RunPrediction) -> list[str]:
    width = max((len(setting) for setting, _, _ in after.changes), default=0)
    lines = [f"  {setting:<{width}}  {old} → {new}" for setting, old, new in after.changes]
    return [*lines, *(f"  ({note})" for note in after.notes)]


def _problems(before: RunPrediction, after: RunPrediction) -> list[str]:
    return list(dict.fromkeys([*before.problems, *after.problems]))


def _document(run: Path, before: RunPrediction, after: RunPrediction) -> dict[str, object]:
    compared = before.compare(after).to_dict()
    return {
        "version": VERSION,
        "run": str(run),
        "changes": [{"what": setting, "before": old, "after": new} for setting, old, new in after.changes],
        "notes": list(after.notes),
        "problems": _problems(before, after),
        "recorded": compared["before"],
        "what_if": compared["after"],
        "difference": compared["difference"],
    }
