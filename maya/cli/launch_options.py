"""Options of maya-torchrun as options of subcommands of `maya`.

In: an action of maya-torchrun's argparse parser. Out: a click option with the same names and help.
"""

from __future__ import annotations

import argparse

import click

from maya.cli.parameter_types import CatalogueType

_CATALOGUES = {"gpu": CatalogueType("gpu"), "cluster": CatalogueType("cluster"), "host": CatalogueType("host")}


def click_option(action: argparse.Action, *, hidden: bool = False) -> click.Option:
    """The option that the action declares."""
    names = [name for name in action.option_strings if "_" not in name]
    text = (action.help or "").replace("%%", "%")
    help = f"{text[:1].upper()}{text[1:]}."
    if action.nargs == 0:
        return click.Option([*names, action.dest], is_flag=True, help=help, hidden=hidden)
    choices = "|".join(map(str, action.choices or ()))
    return click.Option(
        [*names, action.dest],
        type=_CATALOGUES.get(action.dest, click.STRING),
        metavar=str(action.metavar or choices),
        multiple=isinstance(action, argparse._AppendAction),
        help=help,
        hidden=hidden,
    )
