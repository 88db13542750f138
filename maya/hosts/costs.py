"""Costs of the host: how long the CPU of a training node takes for what PyTorch does between the device's work.

In: a TOML file, `[host]` of a cluster's file or changes such as host.op=5us, all with the same keys. Out: `HostCosts`
in ns, or one `HostError` that says where, which key and what would be right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maya.devices import Device
from maya.trace.format import RecordKind
from maya.util.catalogue import Catalogue
from maya.util.suggestions import did_you_mean
from maya.util.units import NANOSECONDS
from rank_runtime.host_costs import CALLS, FACTORS, TIMES, call_key

REFERENCE = "reference"

_CALL_NAMES = {call_key(kind): kind for kind in CALLS}
_TIMES = tuple(TIMES)
_TEXTS = ("name", "sources")
_OVERLAP = "overlap_sms"
_SCALE = "scale"
_FACTORS = (*FACTORS, _SCALE)  # per mille
_LARGEST_SCALE = 100
_LONGEST = 10**12  # ns


class HostError(ValueError):
    """There is no such host, or its file is not right."""


_CATALOGUE = Catalogue(Path(__file__).parent, "host", HostError)


@dataclass(frozen=True)
class HostCosts:
    """What the CPU of a training node spends, in ns; `overlap` and `scale` are per mille."""

    op: int  # of an ATen op, with the Python around it
    latency: int  # from a launch on the host to its start on an idle device
    wake: int  # until a host thread goes on that waited for the device
    clock_read: int
    calls: Mapping[RecordKind, int] = field(default_factory=dict)  # of a call of the kind; absent: nothing
    overlap: int = 0  # how much longer work takes on the device while a collective runs beside it
    scale: int = 1000  # how long it takes for what this machine was measured to take a thousand for

    def text(self) -> str:
        """For the ranks' side, as MAYA_CLOCK_COSTS."""
        figures = {key: getattr(self, key) for key in (*TIMES, *FACTORS)}
        figures |= {call_key(kind): self.calls[kind] for kind in sorted(self.calls)}
        return ";".join(f"{key}={value}" for key, value in figures.items())

    def table(self) -> dict[str, Any]:
        """For run.json."""
        figures: dict[str, Any] = {key: getattr(self, key) for key in (*_TIMES, *_FACTORS)}
        return {**figures, "calls": {call_key(kind): self.calls[kind] for kind in sorted(self.calls)}}

    @staticmethod
    def of_table(where: str, table: object) -> HostCosts:
        """What `table` gave."""
        if not isinstance(table, dict):
            raise HostError(f"{where}: {table!r} are no costs of a host; expected an object")
        calls = table.get("calls")
        if not isinstance(calls, dict):
            raise HostError(f"{where}: calls is {calls!r}; expected an object")
        figures = {key: value for key, value in table.items() if key != "calls"}
        _refuse_unknown(where, "", figures, (*_TIMES, *_FACTORS))
        _refuse_unknown(where, "calls.", calls, _CALL_NAMES)
        for key, value in (*figures.items(), *calls.items()):
            if type(value) is not int or not 0 <= value <= _LONGEST:
                raise HostError(f"{where}: {key} is {value!r}; expected whole nanoseconds")
        missing = [key for key in (*TIMES, *FACTORS) if key not in figures]
        if missing:
            raise HostError(f"{where}: {missing[0]} is missing")
        return HostCosts(**figures, calls={_CALL_NAMES[key]: value for key, value in calls.items()})


NO_COSTS = HostCosts(op=0, latency=0, wake=0, clock_read=0)


def host_names() -> list[str]:
    """The names in the catalogue, in alphabetical order."""
    return _CATALOGUE.names()


def host_title(name_or_path: str) -> str:
    """What the file of a host calls it."""
    return str(_CATALOGUE.read(host_path(name_or_path)).get("name", ""))


def host_path(name_or_path: str) -> Path:
    """The file of the host a user named."""
    return _CATALOGUE.find(name_or_path, Path())


def load_host(name_or_path: str, device: Device, more: Mapping[str, Mapping[str, Any]] | None = None) -> HostCosts:
    """The host a user named, by a name of the catalogue or by the path of a file, as it is for this device.

    `more` are tables with the same keys, each under the name of where it was written, which come on top in order.
    """
    path = host_path(name_or_path)
    base = NO_COSTS if path.stem == REFERENCE and path.parent == _CATALOGUE.folder else load_host(REFERENCE, device)
    costs = _with(base, str(path), _CATALOGUE.read(path), device)
    for where, table in (more or {}).items():
        costs = _with(costs, where, table, device)
    return costs


def without_host_time(costs: HostCosts) -> HostCosts:
    """A host that takes no time; what the device does to itself stays."""
    return replace(NO_COSTS, overlap=costs.overlap)


def _with(costs: HostCosts, where: str, table: Mapping[str, Any], device: Device) -> HostCosts:
    """The costs with what a table says; what it leaves out stays as it was."""
    _refuse_unknown(where, "", table, (*_TIMES, _OVERLAP, _SCALE, "calls", *_TEXTS))
    for key, value in table.items():
        if key in _TIMES:
            costs = replace(costs, **{key: _time(where, key, value)})  # type: ignore[arg-type]
        elif key == _OVERLAP:
            if type(value) is not int or not 0 <= value <= device.sm_count:
                raise HostError(f"{where}: {key} is {value!r}; expected a whole number up to {device.sm_count}")
            costs = replace(costs, overlap=1000 * value // device.sm_count)
        elif key == _SCALE:
            costs = replace(costs, scale=_per_mille(where, key, value))
        elif key == "calls":
            if not isinstance(value, dict):
                raise HostError(f"{where}: calls is {value!r}; expected a table")
            _refuse_unknown(where, "calls.", value, _CALL_NAMES)
            calls = {_CALL_NAMES[name]: _time(where, f"calls.{name}", cost) for name, cost in value.items()}
            costs = replace(costs, calls={**costs.calls, **calls})
    return costs


def _time(where: str, key: str, value: object) -> int:
    try:
        time = NANOSECONDS.parse(value)
    except ValueError as error:
        raise HostError(f"{where}: {key}: {error}") from error
    if time > _LONGEST:
        raise HostError(f"{where}: {key}: {value!r} is too long for one call")
    return time


def _per_mille(where: str, key: str, value: object) -> int:
    """Of a factor, which a file has as a number and --set as text."""
    try:
        factor = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        factor = math.nan
    if not 0 < factor <= _LARGEST_SCALE:
        raise HostError(f"{where}: {key} is {value!r}; expected a factor, e.g. 1.2, of at most {_LARGEST_SCALE}")
    return max(round(1000 * factor), 1)


def _refuse_unknown(where: str, prefix: str, table: Mapping[str, Any], known: Any) -> None:
    for key in table:
        if key not in known:
            raise HostError(f'{where}: unknown key "{prefix}{key}"{did_you_mean(key, known)}')
