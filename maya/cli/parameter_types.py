"""Types of command line parameters: sizes ("8G"), ranks ("0:64:8"), and names in the catalogues.

In: words as people type them. Out: numbers and names; shells complete the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from maya.util.ranks import parse_ranks

if TYPE_CHECKING:
    IntParam = click.ParamType[int]
    RanksParam = click.ParamType[tuple[int, ...]]
    TextParam = click.ParamType[str]
else:
    IntParam = RanksParam = TextParam = click.ParamType  # generic in newer versions of click only


class SizeType(IntParam):
    """Bytes, as nccl-tests takes them: K, M, G and T count in 1024s."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from maya.api.cluster_network import parse_size

        try:
            return parse_size(value if isinstance(value, int) else str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class RanksType(RanksParam):
    """Ranks: "0-7", "0,8,16", "0:64:8" (start, stop, step), or several of these with commas."""

    name = "ranks"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_ranks(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class CatalogueType(TextParam):
    """A name in a catalogue, "gpu", "cluster" or "host", or a file. It is checked where it is loaded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in catalogue_names(self.name) if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


def catalogue_names(kind: str) -> list[str]:
    """The names in the catalogue of a kind: "gpu", "cluster" or "host"."""
    from maya.devices import device_names
    from maya.hosts import host_names
    from netmodel.cluster import cluster_names

    return list({"gpu": device_names, "cluster": cluster_names, "host": host_names}[kind]())
