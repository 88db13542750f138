"""Options that several commands of `maya net` have."""

from __future__ import annotations

import click

fault_option = click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="LINK[=PERCENT%]",
    help='A link that is lost ("node3/nic5", "leaf0:spine1") or slow ("node3/nic5=25%"); may be repeated.',
)
