"""Sizes and ranks as people type them: "8G" and "0:64:8"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from maya.util.ranks import parse_ranks

if TYPE_CHECKING:
    IntParam = click.ParamType[int]
    RanksParam = click.ParamType[tuple[int, ...]]
else:
    IntParam = RanksParam = click.ParamType  # only newer versions of click have it generic

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


class SizeType(IntParam):
    """Bytes, as nccl-tests takes them: K, M, G and T count in 1024s."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size; write bytes, or e.g. 64K, 1M, 8G", param, ctx)
        power: int = " kmgt".index(match[2].lower() or " ")
        return round(float(match[1]) * float(1024**power))


class RanksType(RanksParam):
    """Ranks: "0-7", "0,8,16", "0:64:8" (from, to but not with, step), or several of these after commas."""

    name = "ranks"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_ranks(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def size_text(size: int) -> str:
    """Short, for axes: "64K", "1M"."""
    for unit, factor in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if size >= factor:
            return f"{size / factor:g}{unit}"
    return str(size)
