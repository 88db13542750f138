"""A cluster: what its nodes are, and how its GPUs are connected.

In: what the user wrote after `--cluster`, a name of the catalogue in clusters/ or the path of a TOML file with the same
keys. Out: a `Cluster`, or one `ClusterError` that names the file, the key and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from netmodel import keys
from netmodel.fabrics.base import ROUTINGS, Fabric
from netmodel.fabrics.fat_tree import FatTree, RailOptimised
from netmodel.faults import Fault
from netmodel.keys import ClusterError
from netmodel.settings_file import Catalogue

__all__ = ["Cluster", "ClusterError", "cluster_names", "load_cluster"]

GPU_LINKS = ("nvswitch", "nvlink-mesh", "pcie")
_CATALOGUE = Catalogue(Path(__file__).parent / "clusters", "cluster", ClusterError)


@dataclass(frozen=True)
class Cluster:
    """Nodes of one kind and what joins them. Rates are of one direction, in bytes per second; latencies in ns."""

    key: str  # its name in the catalogue, or its file's
    name: str
    sources: str  # where the figures come from
    gpu: str  # a name of the catalogue of GPUs, or a file's path
    gpus_per_node: int
    gpu_link: str  # one of GPU_LINKS
    gpu_link_generation: int  # of NVLink or PCIe; 0 where the file does not say
    gpu_link_rate: int  # of one GPU
    gpu_link_latency: int  # of one hop
    gpu_link_nodes: int  # nodes that these links join: 18 in an NVL72 rack, 1 where they end at the node
    gpu_link_mesh: tuple[tuple[int, int, int], ...]  # of a mesh: two GPUs and how many links join them
    pcie_rate: int  # of one GPU or NIC
    pcie_latency: int  # of one hop
    pcie_switches: int  # per node; 0 where GPUs and NICs are plugged into the CPUs
    sockets: int
    host_link_rate: int  # between two sockets
    host_link_latency: int
    nics_per_node: int
    nic_rate: int
    nic_latency: int
    nic_affinity: tuple[tuple[int, ...], ...]  # of every NIC: the GPUs it is nearest to
    fabric: Fabric
    faults: tuple[Fault, ...] = ()


def cluster_names() -> list[str]:
    """The names of the catalogue, in alphabetical order."""
    return _CATALOGUE.names()


def load_cluster(name_or_path: str) -> Cluster:
    """The cluster a user named, by a name of the catalogue or by the path of a file."""
    path = _CATALOGUE.find(name_or_path, Path())
    table = _CATALOGUE.read(path)
    where = str(path)
    node, fabric = table.pop("node", {}), table.pop("fabric", {})
    values = keys.read_keys(where, "", table, _CLUSTER_KEYS, _CLUSTER_KEYS)
    values |= read_node(where, node)
    values["fabric"] = _read_fabric(where, fabric, values["nic_rate"])
    cluster = Cluster(key=path.stem, **values)
    if (path.parent / cluster.gpu).is_file():  # a GPU of the user's own, next to the cluster's file
        cluster = replace(cluster, gpu=str(path.parent / cluster.gpu))
    return cluster


_CLUSTER_KEYS: keys.Keys = {"name": keys.text, "sources": keys.text, "gpu": keys.text}
_NODE_KEYS: keys.Keys = {
    "gpus": keys.count,
    "gpu_link": keys.one_of(GPU_LINKS, "a kind of link"),
    "gpu_link_generation": keys.count,
    "gpu_link_rate": keys.rate,
    "gpu_link_latency": keys.duration,
    "gpu_link_nodes": keys.count,
    "pcie_rate": keys.rate,
    "pcie_latency": keys.duration,
    "pcie_switches": keys.count_or_none,
    "sockets": keys.count,
    "host_link_rate": keys.rate,
    "host_link_latency": keys.duration,
    "nics": keys.count,
    "nic_rate": keys.rate,
    "nic_latency": keys.duration,
}
_REQUIRED = ("gpus", "gpu_link", "gpu_link_rate", "nics", "nic_rate")

# The mesh of a DGX-1V: a square of each four GPUs with its diagonals, and four links across; six links at each GPU.
_CUBE_MESH = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 2),
    (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
    (0, 4, 2), (1, 5, 2), (2, 6, 1), (3, 7, 1),
)  # fmt: skip


def read_node(where: str, table: object) -> dict[str, Any]:
    renamed = {"gpus": "gpus_per_node", "nics": "nics_per_node"}
    values = keys.read_keys(where, "node.", table, _NODE_KEYS, _REQUIRED, renamed)
    gpus, nics, kind = values["gpus_per_node"], values["nics_per_node"], values["gpu_link"]
    mesh: tuple[tuple[int, int, int], ...] = ()
    if kind == "nvlink-mesh":
        everyone = tuple((a, b, 1) for a in range(gpus) for b in range(a + 1, gpus))
        mesh = _CUBE_MESH if gpus == 8 else everyone
    defaults: dict[str, Any] = {
        "gpu_link_generation": 0,
        "gpu_link_latency": 250,
        "gpu_link_nodes": 1,
        "gpu_link_mesh": mesh,
        "pcie_rate": values["gpu_link_rate"] if kind == "pcie" else 63 * 10**9,
        "pcie_latency": 250,
        "pcie_switches": 0 if kind == "pcie" else min(gpus, nics),
        "sockets": min(2, gpus),
        "host_link_rate": 40 * 10**9,
        "host_link_latency": 150,
        "nic_latency": 400,
        "nic_affinity": tuple(
            tuple(gpu for gpu in range(gpus) if gpu * nics // gpus == nic or nic * gpus // nics == gpu)
            for nic in range(nics)
        ),
    }
    return defaults | values


def _read_fabric(where: str, table: object, nic_rate: int) -> Fabric:
    readers: keys.Keys = {
        "kind": keys.one_of(("fat-tree", "rail-optimised"), "a kind of fabric"),
        "rate": keys.rate,
        "link_latency": keys.duration,
        "switch_latency": keys.duration,
        "routing": keys.one_of(ROUTINGS, "a way of routing"),
        "sharp": keys.boolean,
        "radix": keys.count,
        "levels": keys.count,
        "oversubscription": keys.ratio,
    }
    values = keys.read_keys(where, "fabric.", table, readers, ())
    kind = values.pop("kind", "fat-tree")
    values["oversubscription"] = (values.get("oversubscription", 1.0),)
    defaults: dict[str, Any] = {
        "rate": nic_rate, "link_latency": 100, "switch_latency": 300, "routing": "ecmp", "sharp": False,
        "radix": 64, "levels": 0,
    }  # fmt: skip
    return (RailOptimised if kind == "rail-optimised" else FatTree)(**(defaults | values))
