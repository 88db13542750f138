"""Host costs: the CPU time that PyTorch's ops and CUDA calls take on a training node.

In: a TOML file, `[host]` of a cluster's file or changes such as host.op=5us, all with the same keys. Out: `HostCosts`
in ns, or one `HostError` that names the place, the key and valid values.
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
    """A host does not exist, or its file is invalid."""


_CATALOGUE = Catalogue(Path(__file__).parent, "host", HostError)


@dataclass(frozen=True)
class HostCosts:
    """The CPU times of a training node, in ns; `overlap` and `scale` are per mille."""

    op: int  # per ATen op, with the Python around it
    latency: int  # from a launch on the host to its start on an idle device
    wake: int  # from the end of device work to the return of a waiting host thread
    clock_read: int
    calls: Mapping[RecordKind, int] = field(default_factory=dict)  # per call, by record kind; absent: 0
    overlap: int = 0  # slowdown of kernels while a collective runs at the same time
    scale: int = 1000  # its time for 1000 units of host time measured on this machine

    def text(self) -> str:
        """The value of MAYA_CLOCK_COSTS, for the ranks."""
        figures = {key: getattr(self, key) for key in (*TIMES, *FACTORS)}
        figures |= {call_key(kind): self.calls[kind] for kind in sorted(self.calls)}
        return ";".join(f"{key}={value}" for key, value in figures.items())

    def table(self) -> dict[str, Any]:
        """The table in run.json."""
        figures: dict[str, Any] = {key: getattr(self, key) for key in (*_TIMES, *_FACTORS)}
        return {**figures, "calls": {call_key(kind): self.calls[kind] for kind in sorted(self.calls)}}

    @staticmethod
    def of_table(where: str, table: object) -> HostCosts:
        """The costs in a table made by `table`."""
        if not isinstance(table, dict):
            raise HostError(f"{where}: {table!r} is not a table of host costs; expected an object")
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
    """The file of a host, by its name in the catalogue or its path."""
    return _CATALOGUE.find(name_or_path, Path())


def load_host(name_or_path: str, device: Device, more: Mapping[str, Mapping[str, Any]] | None = None) -> HostCosts:
    """Load a host for this device, by its name in the catalogue or the path of its file.

    `more`: tables with the same keys by their source, which override the file in this order.
    """
    path = host_path(name_or_path)
    base = NO_COSTS if path.stem == REFERENCE and path.parent == _CATALOGUE.folder else load_host(REFERENCE, device)
    costs = _with(base, str(path), _CATALOGUE.read(path), device)
    for where, table in (more or {}).items():
        costs = _with(costs, where, table, device)
    return costs


def without_host_time(costs: HostCosts) -> HostCosts:
    """A host that takes no time; the device's own costs stay."""
    return replace(NO_COSTS, overlap=costs.overlap)


def _with(costs: HostCosts, where: str, table: Mapping[str, Any], device: Device) -> HostCosts:
    """The costs with the values of a table; other costs are unchanged."""
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
    """A factor per mille, from a number (in a file) or text (from --set)."""
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
