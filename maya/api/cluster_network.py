"""How long collectives take on a cluster: the network model, for Python.

In: a cluster, how many GPUs a job has, NCCL's settings, and a collective. Out: `CollectiveTime`, as nccl-tests would
measure it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath

from maya.api.figures import FigureTable, PlainFigures
from netmodel.cluster import load_cluster, with_faults
from netmodel.cluster.faults import parse_fault
from netmodel.collectives.analytic import AnalyticNetwork
from netmodel.collectives.collective import OPERATIONS, Collective, CollectiveEstimate, bus_factor
from netmodel.collectives.nccl_settings import read_settings
from netmodel.topology import build_topology

DTYPE_BYTES = {
    "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4,
    "uint32": 4, "float64": 8, "int64": 8, "uint64": 8,
}  # fmt: skip
_SPLIT_AMONG_RANKS = ("all_gather", "reduce_scatter", "all_to_all")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


@dataclass(frozen=True)
class CollectiveTime(PlainFigures):
    """One collective that has the network to itself."""

    operation: str
    size_bytes: int
    ranks: int
    dtype: str
    time_ns: int
    algorithm: str  # as in NCCL_ALGO
    protocol: str  # as in NCCL_PROTO
    channels: int
    latency_ns: int  # the part of time_ns that an empty collective would take
    algbw_gb_per_s: float  # as nccl-tests counts, 10^9 bytes per second
    busbw_gb_per_s: float
    origin: str  # of the cluster's parameters: "fitted", "transferred" or "datasheet"

    @property
    def count(self) -> int:
        """Elements, as nccl-tests counts them."""
        return self.size_bytes // smallest_size(self.operation, self.dtype, self.ranks)


def network(
    cluster: str | PathLike[str],
    *,
    gpus: int | None = None,
    members: Iterable[int] | None = None,
    set: Mapping[str, object] | None = None,
    faults: Sequence[str] = (),
    algo: str | None = None,
    proto: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> ClusterNetwork:
    """The network of a cluster, for a job on its first `gpus` GPUs, or on these `members`.

    `cluster`: a name in the catalogue (`maya clusters`) or a TOML file; by default one node of it. `set`: other values
    of its keys, {"node.nic_rate": "200Gbps"}. `faults`: slow or lost links, "node3/nic5" or "leaf0:spine1=25%". `algo`,
    `proto`: as NCCL_ALGO and NCCL_PROTO. `environment`: where NCCL_* variables are read, by default this process's.
    """
    if gpus is not None and members is not None:
        raise ValueError("give gpus=64 for the first 64 GPUs, or members=range(0, 64, 8), not both")
    variables = dict(os.environ if environment is None else environment)
    variables |= {name: value for name, value in (("NCCL_ALGO", algo), ("NCCL_PROTO", proto)) if value}
    settings = read_settings(variables)
    changes = {key: str(value) for key, value in (set or {}).items()}
    found = with_faults(load_cluster(fspath(cluster), changes), [parse_fault(fault) for fault in faults])
    ranks = tuple(members) if members is not None else tuple(range(found.gpus_per_node if gpus is None else gpus))
    if not ranks or min(ranks) < 0:
        raise ValueError("a network needs at least one GPU; give gpus=8, or members=range(8)")
    return ClusterNetwork(AnalyticNetwork(build_topology(found, max(ranks) + 1), settings), ranks)


class ClusterNetwork:
    """The network between the GPUs of a job. `maya.network` makes one."""

    def __init__(self, model: AnalyticNetwork, ranks: tuple[int, ...]) -> None:
        self.model = model  # the model behind it; not a stable interface
        self.ranks = ranks

    def __repr__(self) -> str:
        return f"<ClusterNetwork: {len(self.ranks)} GPUs, {self.nodes} nodes of {self.cluster_name}>"

    @property
    def cluster_name(self) -> str:
        return self.model.topology.cluster.name

    @property
    def nodes(self) -> int:
        """Nodes that the ranks are on."""
        return len({self.model.topology.node_of(rank) for rank in self.ranks})

    def time(
        self,
        operation: str,
        size: int | str,
        *,
        members: Iterable[int] | None = None,
        dtype: str = "float32",
        root: int = 0,
    ) -> CollectiveTime:
        """The time of a collective: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send_recv.

        `size`: bytes as nccl-tests counts them, or text such as "64K", "1M", "8G". `members`: ranks, by default all.
        `root`: of broadcast and reduce, the place among the members.
        """
        ranks = self.ranks if members is None else tuple(members)
        if operation not in OPERATIONS:
            raise ValueError(f"{operation!r} is no collective; use one of {', '.join(OPERATIONS)}")
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"{dtype!r} is no dtype of NCCL; use one of {', '.join(DTYPE_BYTES)}")
        if any(not 0 <= rank < self.model.topology.gpus for rank in ranks):
            raise ValueError(f"members {ranks}: this network has ranks 0 to {self.model.topology.gpus - 1}")
        size_bytes = parse_size(size)
        estimate = self.model.estimate(Collective(operation, size_bytes, ranks, root=root, dtype=dtype))
        return _time(operation, size_bytes, len(ranks), dtype, estimate)

    def bench(
        self,
        operation: str,
        *,
        min_size: int | str = 8,
        max_size: int | str = "8G",
        factor: float = 2.0,
        dtype: str = "float32",
    ) -> FigureTable[CollectiveTime]:
        """The times at sizes from `min_size` to `max_size`, each `factor` times the one before, as nccl-tests steps."""
        if factor <= 1:
            raise ValueError(f"factor {factor} is not above 1")
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"{dtype!r} is no dtype of NCCL; use one of {', '.join(DTYPE_BYTES)}")
        step = smallest_size(operation, dtype, len(self.ranks))
        sizes: list[int] = []
        size, largest = float(parse_size(min_size)), parse_size(max_size)
        while size <= largest:
            whole = max(step, int(size) // step * step)
            if not sizes or whole > sizes[-1]:
                sizes.append(whole)
            size = size * factor or 1.0
        return FigureTable(CollectiveTime, [self.time(operation, each, dtype=dtype) for each in sizes])


def smallest_size(operation: str, dtype: str, ranks: int) -> int:
    """Bytes of one element, or of one for every rank where each has a part of the buffer."""
    return DTYPE_BYTES[dtype] * (ranks if operation in _SPLIT_AMONG_RANKS else 1)


def parse_size(size: int | str) -> int:
    """Bytes, as nccl-tests takes them: in "64K", "1M" and "8G" the units count in 1024s."""
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"{size} is not a size; write bytes, or e.g. 64K, 1M, 8G")
        return size
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ValueError(f"{size!r} is not a size; write bytes, or e.g. 64K, 1M, 8G")
    power: int = " kmgt".index(match[2].lower() or " ")
    return round(float(match[1]) * float(1024**power))


def _time(operation: str, size: int, ranks: int, dtype: str, estimate: CollectiveEstimate) -> CollectiveTime:
    bandwidth = size / estimate.ns if estimate.ns else 0.0
    return CollectiveTime(
        operation=operation,
        size_bytes=size,
        ranks=ranks,
        dtype=dtype,
        time_ns=estimate.ns,
        algorithm=estimate.algorithm,
        protocol=estimate.protocol,
        channels=estimate.channels,
        latency_ns=estimate.latency_ns,
        algbw_gb_per_s=bandwidth,
        busbw_gb_per_s=bandwidth * bus_factor(operation, ranks),
        origin=estimate.origin,
    )
