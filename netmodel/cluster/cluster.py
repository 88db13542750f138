"""A cluster: its nodes, and the links between its GPUs.

In: the value of `--cluster`, a name in catalogue/ or the path of a TOML file with the same keys. Out: a `Cluster`, or
one `ClusterError` that names the file, the key and the remedy.
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
    """Identical nodes and their network. Rates are per direction, in bytes per second; latencies in ns."""

    key: str  # its name in the catalogue, or the name of its file
    name: str
    sources: str  # where the figures come from
    gpu: str  # a name in the GPU catalogue, or the path of a file
    gpus_per_node: int
    gpu_link: str  # one of GPU_LINKS
    gpu_link_generation: int  # generation of NVLink or PCIe; 0 if the file has none
    gpu_link_rate: int  # per GPU
    gpu_link_latency: int  # per hop
    gpu_link_nodes: int  # nodes that these links connect: 18 in an NVL72 rack, 1 where they end at the node
    gpu_link_mesh: tuple[tuple[int, int, int], ...]  # of a mesh: two GPUs and the number of links between them
    pcie_rate: int  # per GPU, and from a PCIe switch to its CPU
    nic_pcie_rate: int  # per NIC
    pcie_latency: int  # per hop
    pcie_switches: int  # per node; 0 where GPUs and NICs are plugged into the CPUs
    sockets: int
    host_link_rate: int  # between two sockets
    host_link_latency: int
    nics_per_node: int
    nic_rate: int
    nic_latency: int
    nic_affinity: tuple[tuple[int, ...], ...]  # per NIC: the GPUs nearest to it
    nccl_network: str  # the name of NCCL's network plugin, as it logs it
    fabric: Fabric
    parameters: Parameters  # NCCL's calibrated costs and efficiencies
    faults: tuple[NetworkFault, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict, hash=False)  # `[host]` as written, for maya.hosts


def cluster_names() -> list[str]:
    """The names in the catalogue, in alphabetical order."""
    return _CATALOGUE.names()


def cluster_path(name_or_path: str) -> Path:
    """The file of a cluster, by its name in the catalogue or its path."""
    return _CATALOGUE.find(name_or_path, Path())


def load_cluster(name_or_path: str, changes: Mapping[str, str] | None = None) -> Cluster:
    """Load a cluster by its name in the catalogue or the path of its file.

    `changes`: dotted keys of the file and values as text, e.g. {"node.nic_rate": "200Gbps"}.
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
    if (path.parent / cluster.gpu).is_file():  # the user's own GPU, next to the cluster's file
        cluster = replace(cluster, gpu=str(path.parent / cluster.gpu))
    return cluster


def with_faults(cluster: Cluster, faults: Iterable[NetworkFault]) -> Cluster:
    """The cluster with additional faults."""
    return replace(cluster, faults=(*cluster.faults, *faults))


_KEYS: keys.Keys = {"name": keys.text, "sources": keys.text, "gpu": keys.text}


# The cluster whose parameters an unmeasured cluster takes: one with GPUs of the same generation, or one without NVLink.
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
