"""A cluster: what its nodes are, and how its GPUs are connected.

In: what the user wrote after `--cluster`, a name of the catalogue in clusters/ or the path of a TOML file with the same
keys. Out: a `Cluster`, or one `ClusterError` that names the file, the key and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maya.util.catalogue import Catalogue, as_table, merged
from netmodel.cluster import keys
from netmodel.cluster.fabrics import Fabric, read_fabric
from netmodel.cluster.faults import NetworkFault, read_faults
from netmodel.cluster.keys import ClusterError
from netmodel.cluster.node_keys import GPU_LINKS, read_node
from netmodel.cluster.parameters import (
    NOT_MEASURED,
    Parameters,
    default_parameters,
    generation_of,
    read_generation,
    read_parameters,
)

__all__ = ["GPU_LINKS", "Cluster", "ClusterError", "cluster_names", "load_cluster", "with_faults"]

_CATALOGUE = Catalogue(Path(__file__).parent / "catalogue", "cluster", ClusterError)


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
    pcie_rate: int  # of one GPU, and of a PCIe switch to its CPU
    nic_pcie_rate: int  # of one NIC
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
    parameters: Parameters  # what NCCL reaches on it
    faults: tuple[NetworkFault, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict, hash=False)  # `[host]` as it is written, for who knows CPUs


def cluster_names() -> list[str]:
    """The names of the catalogue, in alphabetical order."""
    return _CATALOGUE.names()


def cluster_path(name_or_path: str) -> Path:
    """The file of the cluster a user named."""
    return _CATALOGUE.find(name_or_path, Path())


def load_cluster(name_or_path: str, changes: Mapping[str, str] | None = None) -> Cluster:
    """The cluster a user named, by a name of the catalogue or by the path of a file.

    `changes` are keys of the file with dots, and values as text: {"node.nic_rate": "200Gbps"}.
    """
    path = cluster_path(name_or_path)
    table = _CATALOGUE.read(path)
    where = str(path)
    if changes:
        table = merged(table, as_table(changes))
        where += " with " + ", ".join(f"{key}={value}" for key, value in changes.items())
    values: dict[str, Any] = {}
    if "node" in table:
        values |= read_node(where, table.pop("node"))
        values["fabric"] = read_fabric(where, table.pop("fabric", {}), values["nic_rate"])
    values["faults"] = read_faults(where, table.pop("faults", []))
    values["host"] = table.pop("host", {})
    if not isinstance(values["host"], dict):
        raise ClusterError(f"{where}: host is {values['host']!r}; expected a table, [host]")
    calibration = table.pop("calibration", {})
    values |= keys.read_keys(where, "", table, _KEYS, _KEYS)
    if "fabric" not in values:
        raise ClusterError(f"{where}: missing the table [node]; netmodel/cluster/catalogue has complete examples")
    values["parameters"] = _read_calibration(path, calibration, values)
    cluster = Cluster(key=path.stem, **values)
    if (path.parent / cluster.gpu).is_file():  # a GPU of the user's own, next to the cluster's file
        cluster = replace(cluster, gpu=str(path.parent / cluster.gpu))
    return cluster


def with_faults(cluster: Cluster, faults: Iterable[NetworkFault]) -> Cluster:
    """The same cluster with these faults too."""
    return replace(cluster, faults=(*cluster.faults, *faults))


_KEYS: keys.Keys = {"name": keys.text, "sources": keys.text, "gpu": keys.text}


# Whose figures a cluster has that nobody measured: of the same generation of GPUs, or without NVLink.
_LIKE = {"volta": "dgx-1v", "ampere": "dgx-a100", "hopper": "dgx-h100", "blackwell": "dgx-b200", "pcie": "pcie-box"}


def _read_calibration(path: Path, table: object, values: Mapping[str, Any]) -> Parameters:
    if not isinstance(table, dict):
        raise ClusterError(f"{path}: calibration is {table!r}; expected a table, [calibration]")
    try:
        generation = read_generation(table, generation_of(values["gpu"], values["gpu_link_rate"]))
        base = default_parameters(generation)
        like = _LIKE["pcie" if values["gpu_link"] == "pcie" else generation]
        if path != (preset := _CATALOGUE.folder / f"{like}.toml"):
            found = read_parameters(_CATALOGUE.read(preset).get("calibration", {}), base)
            base = replace(
                found, generation=generation, origin="transferred", data=f"the figures of {like}", error=NOT_MEASURED
            )
        return read_parameters(table, base)
    except ValueError as error:
        raise ClusterError(f"{path}: calibration.{error}") from error
