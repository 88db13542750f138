"""Options that several commands have."""

from __future__ import annotations

import click

fault_option = click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="LINK[=PERCENT%]",
    help='A lost link ("node3/nic5", "leaf0:spine1") or a slow one ("node3/nic5=25%"); may be repeated.',
)
algo_option = click.option("--algo", help="Algorithms, as in NCCL_ALGO: Ring, Tree, NVLS, ^Ring, allreduce:Tree, ...")
proto_option = click.option("--proto", help="Protocols, as in NCCL_PROTO: LL, LL128, Simple, ^LL128, ...")
