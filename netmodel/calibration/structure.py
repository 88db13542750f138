"""Measurements as arrays: the known part of their predicted times, and the parameters that decide the rest.

In: measurements and their cluster. Out: a `Structure` that predicts all their times at once from a vector of
parameters, which a fit does thousands of times. It is the arithmetic of `Plan` on columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netmodel.calibration.measurements import Measurement
from netmodel.cluster import Cluster
from netmodel.cluster.parameters import ENGINES, Engine, Parameters, engine_names
from netmodel.collectives.algorithms import hides_latency
from netmodel.collectives.algorithms.common import COUPLING, CollectiveSchedule, busiest
from netmodel.collectives.analytic import AnalyticNetwork
from netmodel.collectives.collective import Collective
from netmodel.collectives.nccl_settings import NcclSettings
from netmodel.collectives.plan import Plan
from netmodel.topology import build_topology
from netmodel.topology.links import LinkKind

_FIGURES = tuple(field.name for field in fields(Engine))
_COMMON = ("local_step", "tree_fill", "proxy_step_ns", "gpu_channel_rate", "network_channel_rate")
NAMES = tuple(f"{engine}.{figure}" for engine, figure in itertools.product(ENGINES, _FIGURES)) + _COMMON
Floats = NDArray[np.float64]


def to_vector(parameters: Parameters) -> Floats:
    """The parameters as a vector, in the order of NAMES."""
    return np.array([_value(parameters, name) for name in NAMES])


def _value(parameters: Parameters, name: str) -> float:
    owner, _, figure = name.rpartition(".")
    return float(getattr(parameters.engine(owner) if owner else parameters, figure))


def from_vector(parameters: Parameters, vector: Floats) -> Parameters:
    """The parameters with the numbers of a vector."""
    values = dict(zip(NAMES, vector.tolist(), strict=True))
    engines = {name: Engine(*(values[f"{name}.{figure}"] for figure in _FIGURES)) for name in ENGINES}
    common = {name: values[name] for name in _COMMON}
    return replace(parameters, **engines, **common)  # type: ignore[arg-type]


class Networks:
    """The cluster in the size that each measurement needs, with the algorithms that it forces."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._networks: dict[tuple[int, str, str, str], AnalyticNetwork] = {}

    def of(self, measurement: Measurement) -> AnalyticNetwork:
        forced = measurement.algorithm, measurement.protocol
        key = (measurement.nodes, *(forced if any(forced) else ("", "")), measurement.operation if any(forced) else "")
        if key not in self._networks:
            operation = measurement.operation
            settings = NcclSettings(
                algorithms={operation: frozenset([measurement.algorithm])} if measurement.algorithm else {},
                protocols={operation: frozenset([measurement.protocol])} if measurement.protocol else {},
                collnet=measurement.algorithm.startswith("collnet"),
            )
            gpus = self.gpus(measurement)
            self._networks[key] = AnalyticNetwork(build_topology(self.cluster, gpus), settings)
        return self._networks[key]

    def gpus(self, measurement: Measurement) -> int:
        """GPUs of whole nodes; in a rack with one NVSwitch only those in use."""
        return measurement.nodes * self.cluster.gpus_per_node

    def collective(self, measurement: Measurement) -> Collective:
        return Collective(
            measurement.operation, measurement.size, placed(self.cluster, measurement), dtype=measurement.dtype
        )


def placed(cluster: Cluster, measurement: Measurement) -> tuple[int, ...]:
    """The ranks of a measurement: the same number in every node, its first GPUs."""
    per_node, rest = divmod(measurement.ranks, measurement.nodes)
    if per_node + bool(rest) > cluster.gpus_per_node:
        raise ValueError(
            f"{measurement.ranks} ranks were measured on {measurement.nodes} nodes, but a node of {cluster.key} has "
            f"{cluster.gpus_per_node} GPUs; is this the right cluster?"
        )
    counts = [per_node + (node < rest) for node in range(measurement.nodes)]
    return tuple(node * cluster.gpus_per_node + gpu for node, count in enumerate(counts) for gpu in range(count))


@dataclass(frozen=True)
class Structure:
    """A row per measurement. Indices are into a vector of parameters."""

    sizes: Floats
    measured_ns: Floats
    launch: NDArray[np.intp]
    gpu_step: NDArray[np.intp]
    network_step: NDArray[np.intp]
    gpu_efficiency: NDArray[np.intp]
    network_efficiency: NDArray[np.intp]
    lag: NDArray[np.intp]
    gpu_busy: Floats  # ns per byte at full rate
    network_busy: Floats
    other_ns_per_byte: Floats  # on links whose efficiency is not calibrated
    gpu_channel_load: Floats  # bytes per byte and channel
    network_channel_load: Floats
    gpu_steps: Floats
    network_steps: Floats
    proxy_steps: Floats
    path_ns: Floats
    lag_share: Floats
    pipelined: NDArray[np.bool_]
    coupled: NDArray[np.bool_]
    fill_ns: Floats  # ns of whole pieces
    local: Floats  # ns per byte and local step

    def predicted(self, vector: Floats) -> Floats:
        """The predicted ns of every measurement."""
        gpu_rate, network_rate = vector[NAMES.index("gpu_channel_rate")], vector[NAMES.index("network_channel_rate")]
        per_byte = np.maximum.reduce(
            [
                self.gpu_busy / vector[self.gpu_efficiency],
                self.network_busy / vector[self.network_efficiency],
                self.other_ns_per_byte,
                1e9 * self.gpu_channel_load / gpu_rate,
                1e9 * self.network_channel_load / network_rate,
            ]
        )
        transfer = self.sizes * per_byte
        gpu, network = self.gpu_busy / vector[self.gpu_efficiency], self.network_busy / vector[self.network_efficiency]
        norm = (gpu**COUPLING + network**COUPLING) ** (1 / COUPLING)
        coupling = np.where(self.coupled, norm - np.maximum(gpu, network), 0.0)
        latency = self.gpu_steps * vector[self.gpu_step] + self.network_steps * vector[self.network_step] + self.path_ns
        latency = latency + vector[NAMES.index("proxy_step_ns")] * self.proxy_steps
        latency = latency + vector[NAMES.index("tree_fill")] * self.fill_ns
        moved = np.where(self.pipelined, np.hypot(latency, transfer), latency + transfer)
        local = (vector[NAMES.index("local_step")] * self.local + coupling) * self.sizes
        result: Floats = vector[self.launch] + moved + vector[self.lag] * self.lag_share * np.sqrt(transfer) + local
        return result

    def used(self) -> list[str]:
        """The parameters that any of these measurements depends on."""
        found = set(self.launch) | set(self.lag)
        found |= set(self.gpu_step[self.gpu_steps > 0]) | set(self.network_step[self.network_steps > 0])
        found |= set(self.gpu_efficiency[self.gpu_busy > 0]) | set(self.network_efficiency[self.network_busy > 0])
        names = {NAMES[index] for index in found}
        names |= {"tree_fill"} if (self.fill_ns > 0).any() else set()
        names |= {"proxy_step_ns"} if (self.proxy_steps > 0).any() else set()
        names |= {"local_step"} if (self.local > 0).any() else set()
        names |= {"gpu_channel_rate"} if (self.gpu_channel_load > 0).any() else set()
        names |= {"network_channel_rate"} if (self.network_channel_load > 0).any() else set()
        return [name for name in NAMES if name in names]


def structure_of(cluster: Cluster, measurements: Sequence[Measurement]) -> Structure:
    """The structure of measurements of one cluster."""
    networks = Networks(cluster)
    shared: dict[tuple[int, str], tuple[float, ...]] = {}
    rows = []
    for measurement in measurements:
        network = networks.of(measurement)
        schedule, plan = network.schedule_and_plan(networks.collective(measurement))
        key = id(schedule), plan.protocol  # networks keep their schedules, so an id stays unique
        if key not in shared:
            shared[key] = _row(network, schedule, plan)
        *columns, fill_ns_per_byte, fill_most, local = shared[key]
        fill_ns = fill_ns_per_byte * min(measurement.size, fill_most)
        rows.append((float(measurement.size), measurement.us * 1000, *columns, fill_ns, local))
    arrays: list[Any] = [np.array(column) for column in zip(*rows, strict=True)]
    return Structure(*arrays)


def _row(network: AnalyticNetwork, schedule: CollectiveSchedule, plan: Plan) -> tuple[float, ...]:
    topology = network.topology
    launching, transporting = engine_names(plan.algorithm, plan.protocol)
    busy = busiest(topology, schedule)
    pipelined = hides_latency(plan.algorithm, plan.protocol)
    over_pcie = topology.cluster.gpu_link == "pcie"
    gpu_kind = LinkKind.PCIE if over_pcie else LinkKind.NVLINK
    other = 0.0 if over_pcie else busy[LinkKind.PCIE] / plan.efficiency[LinkKind.PCIE]
    return (
        NAMES.index(f"{launching}.launch_ns"),
        *(NAMES.index(f"{transporting}.{figure}") for figure in _FIGURES[1:]),
        busy[gpu_kind],
        busy[LinkKind.NETWORK],
        other,
        max((1 / limit.channels for limit in schedule.limits if not limit.network), default=0.0),
        max((1 / limit.channels for limit in schedule.limits if limit.network), default=0.0),
        schedule.gpu_steps,
        schedule.network_steps,
        schedule.proxy_steps,
        schedule.path_ns,
        schedule.lag_share,
        pipelined,
        plan.algorithm != "p2p" and not over_pcie,
        schedule.fill_steps * pipelined * 1e9 / (schedule.fill_channels * topology.cluster.nic_rate),
        plan.fill_most,
        schedule.local_share * 1e9 / topology.cluster.gpu_link_rate,
    )


def predictions(cluster: Cluster, measurements: Iterable[Measurement]) -> Floats:
    """The ns of each measurement by the analytic level."""
    networks = Networks(cluster)
    return np.array(
        [networks.of(each).estimate(networks.collective(each)).ns for each in measurements], dtype=np.float64
    )
