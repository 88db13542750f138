"""The `maya` command: everything but running a script, which maya-torchrun does. Each subcommand has its own module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from maya.cli.calibrate import calibrate
from maya.cli.catalogues import clusters, gpus, hosts
from maya.cli.completion import completion
from maya.cli.doctor import doctor
from maya.cli.environment import env
from maya.cli.estimate import estimate
from maya.cli.exec import exec_, shell
from maya.cli.net import net
from maya.cli.report import report
from maya.cli.scale import scale
from maya.cli.search import search
from maya.cli.setup_torch import setup_torch
from maya.cli.stacks import stacks
from maya.cli.trace import trace
from maya.cli.whatif import whatif
from maya.util import standard_streams
from maya.util.working_folder import missing_working_folder
from maya.version import __version__


class _Maya(click.Group):
    """The command. Without `args` it has a process of its own, and owns its standard streams."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        if args is None:
            standard_streams.begin_tool("maya")
        problem = missing_working_folder()
        if problem is not None:
            click.echo(f"maya: {problem}", err=True)
            raise SystemExit(1)
        return super().main(args, *more, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which people need them."""
        return list(self.commands)


@click.group(cls=_Maya, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="maya")
def main() -> None:
    """Work with runs of maya-torchrun, and ask Maya's models for the times of kernels and collectives.

    To run a script: maya-torchrun --nproc 8 --gpu h100 train.py
    """


for _command in (
    exec_, shell, stacks, whatif, report, scale, search, trace, estimate, net, calibrate, gpus, clusters, hosts, env,
    doctor, setup_torch, completion,
):  # fmt: skip
    main.add_command(_command)
