"""`[node]` of a cluster's file: its keys, their defaults, and contradictions between them.

In: the table. Out: the fields of `Cluster` that describe a node.
"""

from __future__ import annotations

from typing import Any

from maya.util.suggestions import listed
from netmodel.cluster import keys
from netmodel.cluster.fabrics.graph import numbers
from netmodel.cluster.keys import ClusterError

GPU_LINKS = ("nvswitch", "nvlink-mesh", "pcie")

# Rate of all links of a GPU, per direction: NVLink 2 has six links of 25 GB/s (V100), NVLink 3 twelve of 25 (A100),
# NVLink 4 eighteen of 25 (H100), NVLink 5 eighteen of 50 (B200). PCIe: sixteen lanes of 8, 16, 32, 64 GT/s, less their
# encoding.
_NVLINK_RATES = {1: 80 * 10**9, 2: 150 * 10**9, 3: 300 * 10**9, 4: 450 * 10**9, 5: 900 * 10**9}
_PCIE_RATES = {3: 15_754_000_000, 4: 31_508_000_000, 5: 63_015_000_000, 6: 121 * 10**9}

# A DGX-1V connects all pairs of GPUs 0-3 and of 4-7, and GPU i with GPU i + 4; every GPU has six links.
CUBE_MESH = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 2),
    (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
    (0, 4, 2), (1, 5, 2), (2, 6, 1), (3, 7, 1),
)  # fmt: skip


def _mesh(value: object) -> tuple[tuple[int, int, int], ...]:
    rows = value if isinstance(value, list) else []
    for row in rows:
        right = isinstance(row, list) and len(row) == 3 and all(type(entry) is int and entry >= 0 for entry in row)
        if not right or row[0] == row[1] or row[2] < 1:
            raise ValueError(f"{row!r} is not [GPU, other GPU, links], e.g. [0, 3, 2]")
    if not rows:
        raise ValueError(f"{value!r} is not a list of [GPU, other GPU, links], e.g. [[0, 1, 1], [0, 3, 2]]")
    pairs = [frozenset(row[:2]) for row in rows]
    twice = [sorted(pair) for pair in pairs if pairs.count(pair) > 1]
    if twice:
        raise ValueError(f"GPUs {twice[0][0]} and {twice[0][1]} are joined twice; give the number of links once")
    return tuple((row[0], row[1], row[2]) for row in rows)


_MOST_IN_A_NODE = 1024  # GPUs or NICs; GB200 NVL576 has 576 GPUs
_KEYS: keys.Keys = {
    "gpus": keys.count_up_to(_MOST_IN_A_NODE),
    "gpu_link": keys.one_of(GPU_LINKS, "a kind of link"),
    "gpu_link_generation": keys.count,
    "gpu_link_rate": keys.rate,
    "gpu_link_latency": keys.duration,
    "gpu_link_nodes": keys.count,
    "gpu_link_mesh": _mesh,
    "pcie_generation": keys.count,
    "pcie_rate": keys.rate,
    "nic_pcie_rate": keys.rate,
    "pcie_latency": keys.duration,
    "pcie_switches": keys.count_or_none,
    "sockets": keys.count,
    "host_link_rate": keys.rate,
    "host_link_latency": keys.duration,
    "nics": keys.count_up_to(_MOST_IN_A_NODE),
    "nic_rate": keys.rate,
    "nic_latency": keys.duration,
    "nccl_network": keys.text,
    "nic_affinity": keys.list_of(numbers, "GPUs for every NIC, e.g. [[0, 1], [2, 3]]"),
}
_REQUIRED = ("gpus", "gpu_link", "nics", "nic_rate")
_RENAMED = {"gpus": "gpus_per_node", "nics": "nics_per_node"}


def read_node(where: str, table: object) -> dict[str, Any]:
    """The fields of `Cluster` that describe a node."""
    values = keys.read_keys(where, "node.", table, _KEYS, _REQUIRED, _RENAMED)
    gpus, nics, kind = values["gpus_per_node"], values["nics_per_node"], values["gpu_link"]
    pcie_rate = _rate_of_generation(where, "pcie", _PCIE_RATES, values.pop("pcie_generation", 5))
    if "gpu_link_rate" not in values:
        if "gpu_link_generation" not in values:
            raise ClusterError(
                f'{where}: missing node.gpu_link_rate; give it (e.g. "450GB/s"), or node.gpu_link_generation'
            )
        rates = _PCIE_RATES if kind == "pcie" else _NVLINK_RATES
        generation = values["gpu_link_generation"]
        values["gpu_link_rate"] = _rate_of_generation(where, "gpu_link", rates, generation)
    defaults: dict[str, Any] = {
        "gpu_link_generation": 0,
        "gpu_link_latency": 250,
        "gpu_link_nodes": 1,
        "gpu_link_mesh": _default_mesh(gpus) if kind == "nvlink-mesh" else (),
        "pcie_rate": values["gpu_link_rate"] if kind == "pcie" else pcie_rate,
        "pcie_latency": values.get("gpu_link_latency", 250) if kind == "pcie" else 250,
        "pcie_switches": 0 if kind == "pcie" else min(gpus, max(nics, gpus // 2)),
        "sockets": min(2, gpus),
        "host_link_rate": 62_400_000_000,  # three UPI links of 10.4 GT/s: 20.8 GB/s each
        "host_link_latency": 150,
        "nic_latency": 400,
        "nic_affinity": _default_affinity(gpus, nics),
        "nccl_network": "IB",
    }
    values = defaults | values
    values.setdefault("nic_pcie_rate", values["pcie_rate"])
    _check(where, values)
    return values


def _rate_of_generation(where: str, what: str, rates: dict[int, int], generation: int) -> int:
    if generation not in rates:
        known = listed([str(number) for number in rates], "or")
        raise ClusterError(
            f"{where}: node.{what}_generation: {generation} has no known rate; use {known}, or give node.{what}_rate"
        )
    return rates[generation]


def _default_mesh(gpus: int) -> tuple[tuple[int, int, int], ...]:
    return CUBE_MESH if gpus == 8 else tuple((a, b, 1) for a in range(gpus) for b in range(a + 1, gpus))


def _default_affinity(gpus: int, nics: int) -> tuple[tuple[int, ...], ...]:
    """Assign NICs to GPUs in order: several NICs per GPU, or several GPUs per NIC."""
    return tuple(
        tuple(gpu for gpu in range(gpus) if gpu * nics // gpus == nic or nic * gpus // nics == gpu)
        for nic in range(nics)
    )


def _check(where: str, values: dict[str, Any]) -> None:
    gpus, nics, kind = values["gpus_per_node"], values["nics_per_node"], values["gpu_link"]
    if values["gpu_link_nodes"] > 1 and kind != "nvswitch":
        raise ClusterError(f'{where}: node.gpu_link_nodes: only gpu_link = "nvswitch" joins nodes; {kind} does not')
    if values["gpu_link_mesh"] and kind != "nvlink-mesh":
        raise ClusterError(f'{where}: node.gpu_link_mesh: is for gpu_link = "nvlink-mesh"; gpu_link is {kind}')
    for first, second, _ in values["gpu_link_mesh"]:
        if max(first, second) >= gpus:
            raise ClusterError(f"{where}: node.gpu_link_mesh: there is no GPU {max(first, second)}; a node has {gpus}")
    if values["sockets"] > gpus:
        raise ClusterError(f"{where}: node.sockets: {values['sockets']} sockets for {gpus} GPUs; use at most {gpus}")
    if values["pcie_switches"] > gpus:
        raise ClusterError(f"{where}: node.pcie_switches: more switches than the {gpus} GPUs; use at most {gpus}")
    if kind == "pcie" and values["gpu_link_rate"] != values["pcie_rate"]:
        raise ClusterError(f"{where}: node.pcie_rate: GPUs are joined by PCIe here, so gpu_link_rate is its rate")
    affinity = values["nic_affinity"]
    if len(affinity) != nics:
        raise ClusterError(f"{where}: node.nic_affinity: is of {len(affinity)} NICs; a node has {nics}")
    for nic, near in enumerate(affinity):
        if max(near) >= gpus:
            raise ClusterError(f"{where}: node.nic_affinity: NIC {nic} is near GPU {max(near)}; a node has {gpus} GPUs")
    without = [gpu for gpu in range(gpus) if not any(gpu in near for near in affinity)]
    if without:
        raise ClusterError(f"{where}: node.nic_affinity: GPU {without[0]} has no NIC; name it at the NIC it uses")
