"""Choose the algorithm and protocol that NCCL would choose for a collective of a given size.

In: a `RankGroup`, the operation and the user's NCCL settings. Out: ranges of sizes, each with its choice. NCCL compares
its own estimates, latency + size / bandwidth, from constants and the bandwidths it finds in the node. This module does
the same with the constants of NCCL 2.28 (src/graph/tuning.cc). They decide only the choice: the duration comes from
plans and calibrated parameters, which are more accurate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from netmodel.cluster.parameters import GENERATIONS
from netmodel.collectives.algorithms.group import RankGroup
from netmodel.collectives.nccl_settings import ALGORITHMS, PROTOCOLS, NcclSettings, NcclSettingsError

LARGEST = 2**46  # bytes; the choice is the same for all larger sizes

_BASE = {  # us: ll, ll128, simple
    "tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "pat": (8.0, 8.0, 8.0),
    "collnetdirect": (0, 0, 0), "collnetchain": (0, 0, 0), "nvls": (0, 0, 0), "nvlstree": (0, 0, 0),
}  # fmt: skip
_STEP = {
    "nvlink": {
        "tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "collnetdirect": (0, 0, 3.7), "collnetchain": (0, 0, 2.8),
        "nvls": (0, 0, 25.0), "nvlstree": (0, 0, 25.0), "pat": (0, 0, 4.0),
    },
    "pcie": {
        "tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7), "collnetdirect": (0, 0, 3.7), "collnetchain": (0, 0, 2.8),
        "nvls": (0, 0, 0), "nvlstree": (0, 0, 0), "pat": (0, 0, 4.0),
    },
    "network": {
        "tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0), "collnetdirect": (0, 0, 31.0), "collnetchain": (0, 0, 30.0),
        "nvls": (0, 0, 18.0), "nvlstree": (0, 0, 14.0), "pat": (0, 0, 14.0),
    },
}  # fmt: skip
# GB/s by generation and 1, 2, more nodes.
_LL_BUS = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
_RING_LL128_CHANNEL = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (73.4,) * 3)
_TREE_LL128_CHANNEL = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
_TREE_CHANNEL = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
_NVLS_TREE_CHANNEL = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 43.1))
_NVLS_SHARE = (0.0, 0.0, 0.85, 0.74)
# The share of its bandwidth that NCCL expects a tree to reach, from 64 B in powers of two.
_TREE_CORRECTION = {
    "ll": (
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
        0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0,
    ),
    "ll128": (
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
        0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0,
    ),
    "simple": (
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
        0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9,
    ),
}  # fmt: skip
_FLOATS = {"float16", "bfloat16", "float32", "float64", "half", "float", "double", "bf16"}
# The GB/s per channel that NCCL's search tries.
_SPEEDS = {
    "volta": (40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 9.0, 6.0, 3.0),
    "ampere": (40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 9.0, 6.0, 3.0),
    "hopper": (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    "blackwell": (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0, 3.0),
}
_MOST_HEADS = 32
_RING_GRAPH_CHANNELS = {"volta": 6, "ampere": 12, "hopper": 12, "blackwell": 18}
_NVLS_CHANNELS = {"volta": 0, "ampere": 0, "hopper": 16, "blackwell": 32}


@dataclass(frozen=True)
class Choice:
    """How a collective is carried out."""

    algorithm: str
    protocol: str
    channels: int


@dataclass(frozen=True)
class _Cost:
    """NCCL's own estimate: us + bytes / (GB/s)."""

    choice: Choice
    latency: float
    bandwidth: float
    correction: tuple[float, ...] = ()
    plateau_from: float = math.inf  # bytes from which a ring between nodes has longer latency
    plateau: float = 1.0

    def us(self, size: int) -> float:
        bandwidth, latency = self.bandwidth, self.latency
        place = (size >> 6).bit_length() - 1
        if self.correction and 0 <= place < len(self.correction):
            bandwidth *= self.correction[place]
        if size >= self.plateau_from:
            latency *= self.plateau
        return latency + size / (1000 * bandwidth)


@dataclass(frozen=True)
class Bandwidths:
    """The result of NCCL's search of the node and its NICs, in GB/s summed over all channels."""

    inside: float
    between: float
    channels: int  # channels of the graph, before doubling


def search_bandwidths(group: RankGroup, generation: str) -> Bandwidths:
    """NCCL counts 80 % of an NVLink and three quarters of a PCIe link's rate; of a network 96 %."""
    cluster = group.topology.cluster
    inside = cluster.gpu_link_rate / 1e9 * (0.75 if cluster.gpu_link == "pcie" else 0.8)
    if not group.rails:
        return Bandwidths(inside, inside, 1 if cluster.gpu_link == "pcie" else _RING_GRAPH_CHANNELS[generation])
    rails = len(group.rails[0])
    between = rails * cluster.nic_rate / 1e9 * 0.96
    return Bandwidths(inside, min(between, inside), rails)


def tune(
    group: RankGroup, generation: str, operation: str, settings: NcclSettings, dtype: str
) -> list[tuple[int, Choice]]:
    """The choices and the sizes from which they apply, ascending from 0."""
    costs = candidates(group, generation, operation, settings, dtype)
    if not costs:
        shape = f"{len(group.members)} ranks in {len(group.domains)} domain{'s' if len(group.domains) > 1 else ''}"
        raise NcclSettingsError(
            f"no algorithm/protocol available for {operation} of {dtype} with {shape} on {group.topology.cluster.key}: "
            f"{settings.described(operation)}; allow another with NCCL_ALGO or NCCL_PROTO"
        )
    choose = _chooser(costs)
    borders = sorted({0, 64, *(64 << power for power in range(1, 24)), LARGEST, *_plateaus(costs)})
    switches: list[tuple[int, Choice]] = []
    for low, high in pairwise(borders):
        _find_switches(choose, low, high - 1, switches)
    return switches


def _plateaus(costs: list[_Cost]) -> set[int]:
    return {math.ceil(cost.plateau_from) for cost in costs if cost.plateau_from < LARGEST}


def _chooser(costs: list[_Cost]) -> Callable[[int], Choice]:
    def choose(size: int) -> Choice:
        return min(costs, key=lambda cost: cost.us(size)).choice

    return choose


def _find_switches(choose: Callable[[int], Choice], low: int, high: int, switches: list[tuple[int, Choice]]) -> None:
    """Add the sizes where the choice changes between two sizes. Costs are linear there: equal ends mean no change."""
    first, last = choose(low), choose(high)
    if not switches or switches[-1][1] != first:
        switches.append((low, first))
    if first == last or high - low < 2:
        if first != last:
            switches.append((high, last))
        return
    middle = (low + high) // 2
    _find_switches(choose, low, middle, switches)
    _find_switches(choose, middle, high, switches)


def candidate_choices(
    group: RankGroup, generation: str, operation: str, settings: NcclSettings, dtype: str
) -> list[Choice]:
    """What NCCL chooses from."""
    return [cost.choice for cost in candidates(group, generation, operation, settings, dtype)]


def candidates(group: RankGroup, generation: str, operation: str, settings: NcclSettings, dtype: str) -> list[_Cost]:
    """All candidates in NCCL's order, with NCCL's own estimates."""
    found = []
    for algorithm in ALGORITHMS:
        if not settings.allows_algorithm(operation, algorithm):
            continue
        if not _supported(group, generation, operation, algorithm, settings, dtype):
            continue
        for protocol in PROTOCOLS:
            if not settings.allows_protocol(operation, protocol):
                continue
            if (
                protocol == "ll128"
                and not settings.forces_protocol(operation, protocol)
                and not _ll128_safe(group, generation)
            ):
                continue
            if protocol != "simple" and algorithm not in ("ring", "tree"):
                continue
            cost = _cost(group, generation, operation, algorithm, protocol, settings)
            if cost.bandwidth > 0:
                found.append(cost)
    return found


def _supported(
    group: RankGroup, generation: str, operation: str, algorithm: str, settings: NcclSettings, dtype: str
) -> bool:
    cluster, domains = group.topology.cluster, len(group.domains)
    if algorithm == "ring":
        return True
    if operation in ("broadcast", "reduce"):
        return False
    if algorithm == "tree":
        return operation == "all_reduce"
    reducible = dtype.removeprefix("torch.") in _FLOATS or operation == "all_gather"
    nvswitch = cluster.gpu_link == "nvswitch"
    multicast = settings.nvls and nvswitch and generation in ("hopper", "blackwell") and group.ranks_per_domain > 1
    sharp = settings.collnet and cluster.fabric.sharp and domains > 1
    if algorithm == "pat":
        return settings.pat and operation != "all_reduce" and domains > 1 and group.ranks_per_domain == 1
    if algorithm == "nvls":
        return multicast and reducible and (domains == 1 or (sharp and _one_nic_per_gpu(group)))
    if algorithm == "nvlstree":
        return multicast and reducible and domains > 1 and operation == "all_reduce"
    if algorithm == "collnetdirect":
        return sharp and nvswitch and (operation == "all_reduce" or _one_nic_per_gpu(group))
    return sharp and operation == "all_reduce"


def _one_nic_per_gpu(group: RankGroup) -> bool:
    return len(group.rails[0]) >= group.ranks_per_domain


def _ll128_safe(group: RankGroup, generation: str) -> bool:
    """NCCL chooses LL128 by itself only where 128 bytes arrive at once: over NVLink, and to NICs without a CPU on the
    path. Grace is an exception; its GPUs are Blackwells here."""
    topology = group.topology
    if topology.cluster.gpu_link == "pcie":
        return False
    if not group.rails or generation == "blackwell":
        return True
    here, there = group.rails[0][0], group.rails[1][0]
    way = topology.path(here.rank, there.rank, source_nic=here.nic, target_nic=there.nic)
    return all(topology.vertices[topology.target[link]].kind != "host" for link in way)


def _cost(
    group: RankGroup, generation: str, operation: str, algorithm: str, protocol: str, settings: NcclSettings
) -> _Cost:
    members, domains = len(group.members), len(group.domains)
    row, column = GENERATIONS.index(generation), min(domains, 3) - 1
    found = search_bandwidths(group, generation)
    per_domain = members / domains
    steps = 2 * (members - 1) if operation == "all_reduce" else members - 1
    if operation in ("broadcast", "reduce"):
        steps = members
    graph_channels = found.channels
    bus = found.inside if (domains == 2 and algorithm == "tree") or algorithm.startswith("collnet") else found.between
    if algorithm in ("nvls", "nvlstree"):
        graph_channels = min(group.ranks_per_domain, _MOST_HEADS)  # every member is the head of one
        speed = max(speed for speed in _SPEEDS[generation] if speed <= max(3.0, found.inside / graph_channels))
        inside = speed * graph_channels * _NVLS_SHARE[row] * (graph_channels - 1) / graph_channels
        inside *= 2 if operation == "all_reduce" else (per_domain - 1) / per_domain
        if domains > 1:
            inside = min(inside, found.between * (2 if domains == 2 and algorithm == "nvlstree" else 1))
        bus = inside
        if algorithm == "nvlstree":
            bus = min(bus, graph_channels * _NVLS_TREE_CHANNEL[row][column])
    bus = _protocol_bus(bus, algorithm, protocol, row, column, graph_channels, generation, domains)
    if algorithm == "collnetdirect":
        factor = per_domain / graph_channels
        bus /= factor - (factor - 1) / 2
        bus *= 0.85 if row >= 2 else 1.0
    if algorithm == "ring" or operation == "all_reduce":
        bus *= members / steps if algorithm in ("ring", "nvls", "nvlstree") else 0.5
    latency = _latency(group, operation, algorithm, protocol, steps)
    channels = _channel_count(group, generation, algorithm, found, settings)
    choice = Choice(algorithm, protocol, channels)
    if algorithm == "tree":
        return _Cost(choice, latency, bus, _TREE_CORRECTION[protocol])
    if algorithm == "ring" and protocol == "simple" and domains > 1 and operation == "all_reduce":
        return _Cost(choice, latency, bus, (), 64.0 * channels * members, 1.9 if row == 0 else 1.4)
    return _Cost(choice, latency, bus)


def _protocol_bus(
    bus: float, algorithm: str, protocol: str, row: int, column: int, channels: int, generation: str, domains: int
) -> float:
    ll_most = _LL_BUS[row if domains == 1 else int(generation == "ampere")][column]  # between nodes by CPU: AMD's is 1
    if algorithm == "ring":
        if protocol == "ll":
            return min(ll_most, bus * 0.5)
        if protocol == "ll128":
            return min(bus * 0.92, channels * _RING_LL128_CHANNEL[row][column])
    if algorithm == "tree":
        bus = min(bus * 0.92, channels * _TREE_CHANNEL[row][column])
        if protocol == "ll":
            return min(bus / 3.8, ll_most)
        if protocol == "ll128":
            return min(bus * (7 / 9 if domains == 1 else 120 / 128), channels * _TREE_LL128_CHANNEL[row][column])
    if algorithm == "pat":
        return bus * 0.75
    return bus


def _latency(group: RankGroup, operation: str, algorithm: str, protocol: str, steps: int) -> float:
    place = PROTOCOLS.index(protocol)
    members, domains = len(group.members), len(group.domains)
    hardware = "pcie" if group.topology.cluster.gpu_link == "pcie" else "nvlink"
    inside = _STEP[hardware][algorithm][place]
    between = _STEP["network"]["tree" if members == domains else algorithm][place]
    base = _BASE[algorithm][place]
    per_domain = members // domains
    hops = domains.bit_length() - 1
    if algorithm == "ring":
        if operation in ("broadcast", "reduce"):
            return base + steps * (inside if domains == 1 else between)
        overhead = 0.0 if domains == 1 else 3.0 if protocol == "simple" else 1.0
        crossings = 0 if domains == 1 else (2 if operation == "all_reduce" else 1) * (domains - 1)
        return base + (steps - crossings) * max(inside, overhead) + crossings * between
    if algorithm == "tree":
        return base + 2 * ((per_domain - 1) * inside + hops * between)
    if algorithm == "collnetdirect":
        return base + 2 * (min(1, per_domain - 1) * inside + (per_domain - 1) * 0.4) + between
    if algorithm == "collnetchain":
        return base + 2 * (per_domain - 1) * inside + between
    if algorithm == "nvls":
        return inside + (between if domains > 1 else 0.0)
    if algorithm == "nvlstree":
        return base + inside + 2 * hops * between
    return base + hops * between / 3.5 + members * 2.8


def _channel_count(group: RankGroup, generation: str, algorithm: str, found: Bandwidths, settings: NcclSettings) -> int:
    """Channels as NCCL would report them: rings and trees use twice those of the graph where links are fast."""
    if algorithm in ("nvls", "nvlstree"):
        channels = max(2, _NVLS_CHANNELS[generation])
    else:
        channels = found.channels * (1 if group.topology.cluster.gpu_link == "pcie" else 2)
    channels = max(channels, settings.min_channels)
    return min(channels, settings.max_channels) if settings.max_channels else channels
