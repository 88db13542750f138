"""`maya env`: the MAYA_ environment variables that users set."""

from __future__ import annotations

import click


@click.command(short_help="List environment variables.")
@click.option("--all", "with_internal", is_flag=True, help="Also list variables that Maya sets for itself.")
def env(with_internal: bool) -> None:
    """List the MAYA_ environment variables, with their defaults."""
    from rank_runtime.variables import RANK_VARIABLES, SETUP_VARIABLES

    variables = [variable for variable in (*RANK_VARIABLES, *SETUP_VARIABLES) if with_internal or not variable.internal]
    width = max(len(variable.name) for variable in variables)
    for variable in variables:
        default = f" [{variable.default}]" if variable.default else ""
        click.echo(f"{variable.name:<{width}}  {variable.meaning}{default}")
