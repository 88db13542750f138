"""`maya net`: the network model on the command line. Each command is a module of its own."""

from __future__ import annotations

import click

from maya.cli.net.bench import bench
from maya.cli.net.fit import fit
from maya.cli.net.show import show
from maya.cli.net.together import together


@click.group(short_help="Draw a network and time collectives on it.")
def net() -> None:
    """Draw a cluster's network, and predict the times of collectives on it."""


for command in (show, bench, together, fit):
    net.add_command(command)
