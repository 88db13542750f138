"""Find and read device files: the catalogue in this folder, and the user's own files.

In: the value of `--gpu`, a name in the catalogue or the path of a TOML file. Out: a `Device`, or one `DeviceError` that
names the file, the key and the remedy. A file may begin with `based_on = "h100"` (a name, or the path of another file
relative to this one) and then needs only the keys that differ. It does not inherit the default cluster: a GPU with a
different power limit or NVLink may be used in other nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from maya.devices.device import Device
from maya.util.catalogue import Catalogue, as_table
from maya.util.suggestions import did_you_mean, listed

_FIELDS: dict[str, Field[Any]] = {f.metadata["key"]: f for f in fields(Device) if "key" in f.metadata}
_BASE = "based_on"


class DeviceError(ValueError):
    """A GPU does not exist, or its file is invalid."""


_CATALOGUE = Catalogue(Path(__file__).parent, "GPU", DeviceError)


def device_names() -> list[str]:
    """The names in the catalogue, in alphabetical order."""
    return _CATALOGUE.names()


def load_device(name_or_path: str, changes: Mapping[str, str] | None = None) -> Device:
    """Load a GPU by its name in the catalogue or the path of its file; `changes` override keys of the file:
    {"memory_bandwidth": "4TB/s"}."""
    path = _CATALOGUE.find(name_or_path, Path())
    values = _read(path, ())
    if changes:
        named = ", ".join(f"{key}={value}" for key, value in changes.items())
        values |= _values(f"{path} with {named}", as_table(changes), list(_FIELDS))
    missing = [key for key, f in _FIELDS.items() if f.default is MISSING and f.name not in values]
    if missing:
        raise DeviceError(
            f"{path}: missing {listed(missing)}; add what is missing, "
            f'or begin the file with {_BASE} = "h100" to take the rest from a GPU of the catalogue'
        )
    device = Device(key=path.stem, **values)
    _check(device, path)
    return device


def flattened(name_or_path: str) -> str | None:
    """The user's file as self-contained text, with all keys that it takes from the user's other files. None for a name
    in the catalogue."""
    path = _CATALOGUE.find(name_or_path, Path())
    table: dict[str, Any] = {}
    while path.parent != _CATALOGUE.folder:
        table = _CATALOGUE.read(path) | table
        base = table.pop(_BASE, None)
        if base is None:
            break
        path = _CATALOGUE.find(base, path.parent)
        if path.parent == _CATALOGUE.folder:
            table = {_BASE: path.stem} | table
    if not table:
        return None
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def _read(path: Path, derived: tuple[Path, ...]) -> dict[str, Any]:
    """Field values of one file, merged over those of the file it is based on."""
    if path.resolve() in derived:
        raise DeviceError(f"{path}: {_BASE} leads back to this file; remove one of the {_BASE} lines")
    table = _CATALOGUE.read(path)
    base = table.pop(_BASE, None)
    values: dict[str, Any] = {}
    if base is not None:
        if not isinstance(base, str):
            raise DeviceError(f"{path}: {_BASE} = {base!r}: write the name of a GPU or the path of a file, as text")
        try:
            values = _read(_CATALOGUE.find(base, path.parent), (*derived, path.resolve()))
        except DeviceError as error:
            raise DeviceError(f'{path}: {_BASE} = "{base}": {error}') from error
        values.pop("default_cluster", None)
    return values | _values(str(path), table, [*_FIELDS, _BASE])


def _values(where: str, table: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _FIELDS:
            raise DeviceError(f'{where}: unknown key "{key}"{did_you_mean(key, known)}')
        try:
            values[_FIELDS[key].name] = _FIELDS[key].metadata["read"](value)
        except ValueError as error:
            raise DeviceError(f"{where}: {key}: {error}") from error
    return values


def _check(device: Device, path: Path) -> None:
    """Reject impossible values, with which PyTorch would fail far from the cause."""
    for key, f in _FIELDS.items():
        if getattr(device, f.name) == 0 and key not in ("reserved_shared_per_block", "context"):
            raise DeviceError(f"{path}: {key} is zero")
    if device.context_bytes >= device.memory_bytes:
        raise DeviceError(
            f"{path}: context ({device.context_bytes} B) leaves nothing of memory ({device.memory_bytes} B)"
        )
    if not device.shared_per_block_bytes <= device.shared_per_block_optin_bytes <= device.shared_per_sm_bytes:
        raise DeviceError(f"{path}: expected shared_per_block <= shared_per_block_optin <= shared_per_sm")
