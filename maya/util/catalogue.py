"""Catalogues of TOML files: the GPUs, clusters and hosts that Maya comes with, and the user's own files.

In: the text after an option, a name in a catalogue or the path of a file. Out: that file's table. Errors have the
caller's own class and name the file, the problem and the remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maya.util.suggestions import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Catalogue:
    """A folder of TOML files, the noun for one of them ("GPU"), and the error class for them."""

    folder: Path
    what: str
    error: type[ValueError]

    def names(self) -> list[str]:
        """The names of all files, in alphabetical order."""
        return sorted(path.stem for path in self.folder.glob("*.toml"))

    def find(self, name_or_path: str, relative_to: Path) -> Path:
        """The file of a name in the catalogue, or the file at a path."""
        names = self.names()
        if name_or_path.lower() in names:
            return self.folder / f"{name_or_path.lower()}.toml"
        path = relative_to / name_or_path
        if path.is_file():
            return path
        if "/" in name_or_path or path.suffix == ".toml":
            raise self.error(f"no {self.what} file {path}; give the path of a TOML file, or one of: {', '.join(names)}")
        raise self.error(
            f'unknown {self.what} "{name_or_path}"{did_you_mean(name_or_path.lower(), names)}; '
            f"the catalogue has: {', '.join(names)}; or give the path of a TOML file of your own"
        )

    def read(self, path: Path) -> dict[str, Any]:
        """The table in a file."""
        try:
            table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
            return table
        except (OSError, UnicodeDecodeError) as error:
            raise self.error(f"{path}: cannot be read: {error}") from error
        except tomllib.TOMLDecodeError as error:
            raise self.error(f"{path}: not valid TOML: {error}") from error


def as_table(changes: Mapping[str, str]) -> dict[str, Any]:
    """Changes under dotted keys ({"node.nics": "4"}) as nested tables."""
    table: dict[str, Any] = {}
    for key, text in changes.items():
        *parents, last = key.split(".")
        inner = table
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{key}: {parent} has a value of its own already")
        inner[last] = as_value(text)
    return table


def as_value(text: str) -> Any:
    """The TOML value of a text; a text that is not valid TOML ("200Gbps") is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table with changes merged over it, table by table."""
    result = dict(table)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            value = merged(result[key], value)
        result[key] = value
    return result
