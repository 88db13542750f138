"""Faults of a cluster: lost links, and links at a reduced rate.

In: `[[faults]]` of a cluster's file, or an option of the command line. Out: `NetworkFault`, which names links by the
vertices at their ends, with the names in drawings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from netmodel.cluster import keys
from netmodel.cluster.keys import ClusterError


@dataclass(frozen=True)
class NetworkFault:
    """The links between two vertices, or the links of one vertex: a NIC's cable, a GPU's GPU links, else all."""

    link: tuple[str, ...]  # one name, or two
    rate_left: float  # remaining share of the rate; 0: lost
    cables: int = 0  # number of parallel cables affected; 0: all

    @property
    def lost(self) -> bool:
        return self.rate_left == 0

    def __str__(self) -> str:
        cables = f", {self.cables} cable{'s' * (self.cables > 1)}" if self.cables else ""
        return f"{' - '.join(self.link)}{cables}: {'lost' if self.lost else f'{self.rate_left:.3g} of its rate left'}"


def read_faults(where: str, tables: object) -> tuple[NetworkFault, ...]:
    """The faults in a cluster's file."""
    if not isinstance(tables, list):
        raise ClusterError(f"{where}: faults is {tables!r}; expected a list of tables, [[faults]]")
    faults = []
    for place, table in enumerate(tables, 1):
        here = f"{where}: [[faults]] number {place}"
        values = keys.read_keys(here, "", table, _KEYS, ("link",))
        if values.pop("lost", False) == ("rate_left" in values):
            raise ClusterError(f"{here}: say either lost = true, or rate_left = a part of 1, e.g. 0.5")
        faults.append(NetworkFault(**({"rate_left": 0.0} | values)))
    return tuple(faults)


def parse_fault(text: str) -> NetworkFault:
    """Parse a fault: "node3/nic5" (lost), "leaf0:spine1#2" (two of the cables), "node3/nic5=25%" (slow)."""
    match = re.fullmatch(r"([^\s:#=]+)(?::([^\s:#=]+))?(?:#(\d+))?(?:=(?:(lost)|(\d+(?:\.\d+)?)%))?", text)
    if match is None:
        raise ClusterError(
            f'"{text}" is not a fault; write a link as "node3/nic5" or "leaf0:spine1" ("leaf0:spine1#1" for one of its '
            'cables), and "=lost" or the part of its rate that is left, "=25%"'
        )
    first, second, cables, _, percent = match.groups()
    try:
        left = _part(float(percent) / 100) if percent else 0.0
        count = keys.count(int(cables)) if cables else 0
    except ValueError as error:
        raise ClusterError(f'fault "{text}": {error}') from error
    return NetworkFault((first, second) if second else (first,), left, count)


def _link(value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if len(names) not in (1, 2) or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f'{value!r} is not a link; write "node3/nic5", or ["leaf0", "spine1"]')
    return tuple(names)


def _part(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise ValueError(f"{value!r} is not a part of a rate between 0 and 1; a link without any rate is lost = true")
    return float(value)


_KEYS: keys.Keys = {"link": _link, "lost": keys.boolean, "rate_left": _part, "cables": keys.count}
