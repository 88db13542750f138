"""`maya setup-torch`: lets plain Python import torch's CUDA build where NVIDIA's packages are not installed.

In: the installed torch. Out: stub libraries in its folder (rank_runtime/build/plain_torch.py), and a line that says so.
"""

from __future__ import annotations

import click

from rank_runtime.build.errors import BuildError


@click.command("setup-torch")
@click.option("--remove", is_flag=True, help="Remove the stub libraries.")
def setup_torch(remove: bool) -> None:
    """Let plain Python import torch without NVIDIA's packages.

    Adds stub libraries to torch's folder if `import torch` fails without them. torch then sees no GPU and runs on the
    CPU, e.g. under torchrun, in notebooks and in scripts that prepare data. maya-torchrun does not need them, and
    packages of NVIDIA's that are installed later are used instead.
    """
    from rank_runtime.build.plain_torch import add_stubs, import_problem, remove_stubs

    try:
        if remove:
            click.echo(f"removed {len(remove_stubs())} stub libraries")
            return
        changed = add_stubs(click.echo)
    except BuildError as error:
        raise click.ClickException(str(error)) from error
    problem = import_problem()
    if problem is not None:
        raise click.ClickException(f"`import torch` fails: {problem}")
    click.echo("`import torch` works" + ("" if changed else "; nothing had to be added"))
