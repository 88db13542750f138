"""`maya doctor`: checks whether this machine, or the nodes of a Ray cluster, can run Maya."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from maya.nodes.machine import Machine


@click.command(short_help="Check this machine, or a Ray cluster.")
@click.option("--ray", metavar="ADDRESS|auto", help="Check the nodes of this Ray cluster; auto: that of this machine.")
def doctor(ray: str | None) -> None:
    """Check this machine, and print advice on problems.

    With --ray, check the nodes of a Ray cluster, and count the ranks that fit.
    """
    if ray is not None:
        sys.exit(_check_cluster(ray))
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


def _check_cluster(address: str) -> int:
    """The exit code."""
    from maya.nodes.job_nodes import NodesError
    from maya.nodes.ray_cluster import RayNodes

    try:
        with RayNodes(address) as cluster:
            machines = cluster.all_nodes()
    except NodesError as error:
        raise click.ClickException(str(error)) from error
    return print_machines(machines)


def print_machines(machines: list[Machine]) -> int:
    """The nodes of a cluster and what they lack; an exit code."""
    import platform

    from maya.cli.tables import print_table
    from maya.launcher.capacity import ZYGOTE_BYTES, bytes_per_rank
    from maya.nodes.placement import room_on
    from maya.version import __version__

    torch = next((each.torch for each in machines if each.is_here), "")
    found = {each.name: each.problem(platform.python_version(), __version__, torch) for each in machines}
    problems = {name: problem for name, problem in found.items() if problem is not None}
    room = {
        each.name: 0 if each.name in problems else room_on(each, bytes_per_rank(shared=True), ZYGOTE_BYTES)
        for each in machines
    }
    title = ["node", "address", "interface", "CPUs", "memory", "Maya", "torch", "compiler", "ranks"]
    print_table([title, *(_row(each, room[each.name]) for each in machines)], right=(3, 4, 8))
    total = sum(room.values())
    nodes = "1 node" if len(machines) == 1 else f"{len(machines)} nodes"
    click.echo(f"\n{total:,} small ranks fit on {nodes}; ranks that keep batches in host memory take more.")
    for each in machines:
        if each.processors == 0 and each.name not in problems:
            click.echo(f"{each.name} gets no ranks: Ray hands out no CPUs there.")
    for name, problem in problems.items():
        click.echo(f"{click.style('FAIL', fg='red')}  {name} {problem}")
    return 1 if problems or total == 0 else 0


def _row(machine: Machine, room: int) -> list[str]:
    from maya.util.text import bytes_text

    compiler = machine.compiler.split()
    return [
        f"{machine.name} (here)" if machine.is_here else machine.name,
        machine.address,
        machine.interface,
        str(machine.processors),
        bytes_text(machine.memory) if machine.memory else "?",
        machine.maya or "none",
        machine.torch or "none",
        " ".join(dict.fromkeys([compiler[0], compiler[-1]])) if compiler else "none",
        f"{room:,}",
    ]
