"""A cluster: what its nodes are, and how its GPUs are connected.

In: what the user wrote after `--cluster`, a name of the catalogue in clusters/ or the path of a TOML file with the same
keys. Out: a `Cluster`, or one `ClusterError` that names the file, the key and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netmodel.settings_file import Catalogue, did_you_mean, listed
from netmodel.units import BYTES_PER_SECOND

GPU_LINKS = ("nvswitch", "nvlink-mesh", "pcie")


class ClusterError(ValueError):
    """There is no such cluster, or its file is not right."""


_CATALOGUE = Catalogue(Path(__file__).parent / "clusters", "cluster", ClusterError)


@dataclass(frozen=True)
class Cluster:
    """Nodes of one kind. Rates are of one direction, in bytes per second."""

    key: str  # its name in the catalogue, or its file's
    name: str
    sources: str  # where the figures come from
    gpu: str  # a name of the catalogue of GPUs, or a file's path
    gpus_per_node: int
    gpu_link: str  # one of GPU_LINKS
    gpu_link_rate: int  # of one GPU
    gpu_link_nodes: int  # nodes that these links join: 18 in an NVL72 rack, 1 where they end at the node
    nics_per_node: int
    nic_rate: int


def cluster_names() -> list[str]:
    """The names of the catalogue, in alphabetical order."""
    return _CATALOGUE.names()


def load_cluster(name_or_path: str) -> Cluster:
    """The cluster a user named, by a name of the catalogue or by the path of a file."""
    path = _CATALOGUE.find(name_or_path, Path())
    table = _CATALOGUE.read(path)
    node = table.pop("node", {})
    if not isinstance(node, dict):
        raise ClusterError(f"{path}: node is {node!r}; expected a table, [node]")
    values = _read_keys(path, "", table, _CLUSTER_KEYS) | _read_keys(path, "node.", node, _NODE_KEYS)
    values.setdefault("gpu_link_nodes", 1)
    cluster = Cluster(key=path.stem, **values)
    if (Path(path.parent) / cluster.gpu).is_file():  # a GPU of the user's own, next to the cluster's file
        values["gpu"] = str(path.parent / cluster.gpu)
        cluster = Cluster(key=path.stem, **values)
    return cluster


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is not a whole number of at least 1")
    return value


def _rate(value: object) -> int:
    rate = BYTES_PER_SECOND.parse(value)
    if rate == 0:
        raise ValueError("a rate of zero connects nothing")
    return rate


def _gpu_link(value: object) -> str:
    if value not in GPU_LINKS:
        raise ValueError(f"{value!r} is not a kind of link; use {listed(GPU_LINKS, 'or')}")
    return str(value)


# A file's keys: the field of `Cluster`, and how its value is read.
_Keys = Mapping[str, tuple[str, Callable[[object], Any]]]
_CLUSTER_KEYS: _Keys = {"name": ("name", _text), "sources": ("sources", _text), "gpu": ("gpu", _text)}
_NODE_KEYS: _Keys = {
    "gpus": ("gpus_per_node", _count),
    "gpu_link": ("gpu_link", _gpu_link),
    "gpu_link_rate": ("gpu_link_rate", _rate),
    "gpu_link_nodes": ("gpu_link_nodes", _count),
    "nics": ("nics_per_node", _count),
    "nic_rate": ("nic_rate", _rate),
}
_OPTIONAL = {"gpu_link_nodes"}


def _read_keys(path: Path, prefix: str, table: Mapping[str, object], keys: _Keys) -> dict[str, Any]:
    values = {}
    for key, value in table.items():
        if key not in keys:
            raise ClusterError(f'{path}: unknown key "{prefix}{key}"{did_you_mean(key, keys)}')
        field, read = keys[key]
        try:
            values[field] = read(value)
        except ValueError as error:
            raise ClusterError(f"{path}: {prefix}{key}: {error}") from error
    missing = [prefix + key for key in keys if key not in table and key not in _OPTIONAL]
    if missing:
        raise ClusterError(f"{path}: missing {listed(missing)}; netmodel/clusters has complete examples")
    return values
