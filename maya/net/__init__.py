"""`maya net`: the network model from the command line. Each command is a module of its own."""

from __future__ import annotations

import click

from maya.net.bench import bench
from maya.net.fit import fit
from maya.net.show import show
from maya.net.together import together


@click.group()
def net() -> None:
    """Look at a cluster's network, and ask it how long collectives take."""


for command in (show, bench, together, fit):
    net.add_command(command)
