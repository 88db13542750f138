"""Read the keys of a cluster's file, and report invalid values.

In: a TOML table. Out: its values in the model's units (bytes per second, nanoseconds), or one `ClusterError` that names
the file, the key and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from maya.util.suggestions import did_you_mean, listed
from maya.util.units import BYTES_PER_SECOND, NANOSECONDS


class ClusterError(ValueError):
    """A cluster does not exist, its file is invalid, or it cannot be built as requested."""


Reader = Callable[[object], Any]
Keys = Mapping[str, Reader]


def read_keys(
    where: str,
    prefix: str,
    table: object,
    keys: Keys,
    required: Collection[str],
    renamed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The values of a table by key; `renamed` maps keys to other names."""
    if not isinstance(table, dict):
        raise ClusterError(f"{where}: {prefix.rstrip('.')} is {table!r}; expected a table, [{prefix.rstrip('.')}]")
    values = {}
    for key, value in table.items():
        if key not in keys:
            raise ClusterError(f'{where}: unknown key "{prefix}{key}"{did_you_mean(key, keys)}')
        try:
            values[(renamed or {}).get(key, key)] = keys[key](value)
        except ValueError as error:
            raise ClusterError(f"{where}: {prefix}{key}: {error}") from error
    missing = [prefix + key for key in keys if key in required and key not in table]
    if missing:
        raise ClusterError(f"{where}: missing {listed(missing)}; netmodel/cluster/catalogue has complete examples")
    return values


def text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not text")
    return value


def count_up_to(most: int, least: int = 1) -> Callable[[object], int]:
    """A whole number. The limit keeps a slip of the pen from building a network for minutes."""

    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{value!r} is not a whole number of at least {least}")
        if value > most:
            raise ValueError(f"{value} is more than the {most:,} that are modelled")
        return value

    return read


count = count_up_to(65_536)
count_or_none = count_up_to(65_536, least=0)


def rate(value: object) -> int:
    parsed = BYTES_PER_SECOND.parse(value)
    if parsed == 0:
        raise ValueError("a rate of zero connects nothing")
    return parsed


def duration(value: object) -> int:
    return NANOSECONDS.parse(value)


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def ratio(value: object) -> float:
    """An oversubscription ratio, bandwidth below a switch to bandwidth above it: 1, 2, 1.5."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ValueError(f"{value!r} is not a ratio; write a number above zero, e.g. 2 for 2:1")
    return float(value)


def one_of(words: Sequence[str], what: str) -> Reader:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"{value!r} is not {what}; use {listed(words, 'or')}")
        return str(value)

    return read


def list_of(read: Reader, what: str) -> Reader:
    def read_list(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError(f"{value!r} is not a list of {what}")
        return tuple(read(entry) for entry in value)

    return read_list
