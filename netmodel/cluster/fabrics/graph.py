"""A user-defined fabric: named switches, the cables between them, and the switches that nodes are plugged into.

In: the lists of a file: `switches`, `[[fabric.links]]` and `[[fabric.attach]]`. Out: that graph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from maya.util.suggestions import did_you_mean
from netmodel.cluster import keys
from netmodel.cluster.fabrics.base import Cable, Fabric, Switch, Wiring
from netmodel.cluster.keys import ClusterError


@dataclass(frozen=True)
class Joint:
    """Cables between two switches; a rate or latency of -1 means the fabric's."""

    between: tuple[str, str]
    cables: int = 1
    rate: int = -1
    latency: int = -1
    cost: int = 1


@dataclass(frozen=True)
class Attachment:
    """Nodes, and their NICs (empty: all), that are plugged into a switch."""

    switch: str
    nodes: tuple[int, ...]
    nics: tuple[int, ...] = ()


def _name(value: object) -> str:
    name = keys.text(value)
    if re.search(r"[\s:#=/]", name):
        raise ValueError(f'"{name}" is not a switch name: it must not contain spaces or any of : # = /')
    return name


def _pair(value: object) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or value[0] == value[1]:
        raise ValueError(f'{value!r} is not a pair of switches, e.g. ["leaf0", "spine1"]')
    return _name(value[0]), _name(value[1])


def numbers(value: object) -> tuple[int, ...]:
    """Parse indices: 3, "0-15", or a list of these."""
    if isinstance(value, list) and value:
        return tuple(number for entry in value for number in numbers(entry))
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return (value,)
    match = re.fullmatch(r"(\d+)-(\d+)", value) if isinstance(value, str) else None
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(f'{value!r} is not a list of indices; write 3, "0-15", or a list of these')
    return tuple(range(int(match[1]), int(match[2]) + 1))


def _cost(value: object) -> int:
    cost = keys.count(value)
    if cost > 100:
        raise ValueError(f"{cost} is more than 100; costs say which paths are preferred, 1 is usual")
    return cost


def _tables(prefix: str, made: type[Any], readers: keys.Keys, required: tuple[str, ...]) -> keys.Reader:
    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"expected a list of tables, [[{prefix}]]")
        return tuple(
            made(**keys.read_keys(f"[[{prefix}]] number {place}", "", entry, readers, required))
            for place, entry in enumerate(value, 1)
        )

    return read


_JOINT_KEYS: keys.Keys = {
    "between": _pair,
    "cables": keys.count,
    "rate": keys.rate,
    "latency": keys.duration,
    "cost": _cost,
}
_ATTACHMENT_KEYS: keys.Keys = {"switch": _name, "nodes": numbers, "nics": numbers}


@dataclass(frozen=True)
class Graph(Fabric):
    """Any graph. A switch's level is its distance from the nearest node."""

    kind: ClassVar[str] = "graph"
    own_keys: ClassVar[keys.Keys] = {
        "switches": keys.list_of(_name, "names of switches"),
        "links": _tables("fabric.links", Joint, _JOINT_KEYS, ("between",)),
        "attach": _tables("fabric.attach", Attachment, _ATTACHMENT_KEYS, ("switch", "nodes")),
    }
    required: ClassVar[tuple[str, ...]] = ("switches", "attach")
    switches: tuple[str, ...] = ()
    links: tuple[Joint, ...] = ()
    attach: tuple[Attachment, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        twice = sorted({name for name in self.switches if self.switches.count(name) > 1})
        if twice:
            raise ClusterError(f'fabric.switches: "{twice[0]}" is there twice')
        named = [(name, "links") for joint in self.links for name in joint.between]
        named += [(attachment.switch, "attach") for attachment in self.attach]
        for name, where in named:
            if name not in self.switches:
                near = did_you_mean(name, self.switches)
                raise ClusterError(f'fabric.{where}: "{name}" is not one of fabric.switches{near}')

    def summary(self) -> str:
        cables = sum(joint.cables for joint in self.links)
        return f"{len(self.switches)} switches and {cables} cables of the file's own"

    def wire(self, nodes: int, nics: int, nic_rate: int) -> Wiring:
        places = {name: place for place, name in enumerate(self.switches)}
        attached = [[-1] * nics for _ in range(nodes)]
        for attachment in self.attach:
            for nic in attachment.nics:
                if nic >= nics:
                    raise ClusterError(f"fabric.attach: a node has NICs 0 to {nics - 1}; there is no NIC {nic}")
            for node in attachment.nodes:
                for nic in (attachment.nics or range(nics)) if node < nodes else ():
                    if attached[node][nic] >= 0:
                        other = self.switches[attached[node][nic]]
                        raise ClusterError(
                            f"fabric.attach: node{node}/nic{nic} is plugged into {other} and into {attachment.switch}; "
                            "a NIC has one cable: say which NICs go where with nics = [...]"
                        )
                    attached[node][nic] = places[attachment.switch]
        for node, row in enumerate(attached):
            if -1 in row:
                raise ClusterError(
                    f"fabric.attach: node{node}/nic{row.index(-1)} is plugged into no switch, and {nodes} nodes were "
                    "requested; attach it, or request fewer GPUs"
                )
        levels = self._levels(attached)
        cables = [
            Cable(
                places[joint.between[0]],
                places[joint.between[1]],
                self.rate if joint.rate < 0 else joint.rate,
                self.link_latency if joint.latency < 0 else joint.latency,
                joint.cost,
            )
            for joint in self.links
            for _ in range(joint.cables)
        ]
        switches = tuple(Switch(name, level) for name, level in zip(self.switches, levels, strict=True))
        return Wiring(switches, tuple(cables), tuple(map(tuple, attached)))

    def _levels(self, attached: list[list[int]]) -> list[int]:
        """The distance of each switch from the nearest node, for drawings."""
        level = {self.switches[place]: 0 for row in attached for place in row}
        for distance in range(1, len(self.switches)):
            for joint in self.links:
                for name, other in (joint.between, joint.between[::-1]):
                    if level.get(other) == distance - 1:
                        level.setdefault(name, distance)
        return [level.get(name, 0) for name in self.switches]
