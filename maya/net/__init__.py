"""`maya net`: the network model from the command line. Each command is a module of its own, loaded when it is run."""

from __future__ import annotations

import click


@click.group()
def net() -> None:
    """Look at a cluster's network, and ask it how long collectives take."""
