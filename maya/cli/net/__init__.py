"""`maya net`: the network model from the command line. Each command is a module of its own."""

from __future__ import annotations

import click

from maya.cli.net.bench import bench
from maya.cli.net.fit import fit
from maya.cli.net.show import show
from maya.cli.net.together import together


@click.group()
def net() -> None:
    """Look at a cluster's network, and ask it how long collectives take."""


for command in (show, bench, together, fit):
    net.add_command(command)
