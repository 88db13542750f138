"""Calls of NCCL as netmodel's collectives: sizes as the network counts them, ranks as GPUs of whole nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from maya.replay.collective_times import CollectiveTimes
from netmodel.cluster import load_cluster
from netmodel.collectives.algorithms.p2p_routes import lone_transfer_costs
from netmodel.collectives.analytic import AnalyticNetwork
from netmodel.collectives.collective import Collective, Transfer
from netmodel.collectives.nccl_settings import read_settings
from netmodel.topology import build_topology

NODE = tuple(range(8))


@pytest.fixture(scope="module")
def times() -> CollectiveTimes:
    return CollectiveTimes(load_cluster("dgx-h100"), None, 16, 8)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("ncclAllReduce", Collective("all_reduce", 2000, NODE)),
        ("ncclReduce", Collective("reduce", 2000, NODE, 3)),
        ("ncclBroadcast", Collective("broadcast", 2000, NODE, 3)),
        ("ncclAllGather", Collective("all_gather", 16000, NODE)),
        ("ncclReduceScatter", Collective("reduce_scatter", 16000, NODE)),
        ("ncclAlltoAll", Collective("all_to_all", 16000, NODE)),
        (
            "ncclGather",
            Collective("send_recv", 14000, NODE, transfers=tuple(Transfer(i, 3, 2000) for i in NODE if i != 3)),
        ),
        (
            "ncclScatter",
            Collective("send_recv", 14000, NODE, transfers=tuple(Transfer(3, i, 2000) for i in NODE if i != 3)),
        ),
    ],
)
def test_sizes_are_converted_to_those_of_the_network(times: CollectiveTimes, call: str, expected: Collective) -> None:
    found = times.collective(call, 1000, "bf16", NODE, 3)
    assert found == expected
    network = AnalyticNetwork(build_topology(load_cluster("dgx-h100"), 16))
    assert times.collective_ns(call, 1000, "bf16", NODE, 3) == network.estimate(expected).ns


def test_equal_member_tuples_share_their_times(times: CollectiveTimes) -> None:
    found = {times.collective_ns("ncclAllReduce", 1 << 20, "fp32", tuple(range(8))) for _ in range(3)}
    assert len(found) == 1


def test_ranks_fill_the_first_gpus_of_their_nodes() -> None:
    spread = CollectiveTimes(load_cluster("dgx-h100"), None, 4, 2)
    together = CollectiveTimes(load_cluster("dgx-h100"), None, 4, 4)
    assert spread.collective("ncclAllReduce", 1, "fp32", (0, 1, 2, 3)).members == (0, 1, 8, 9)
    assert together.collective("ncclAllReduce", 1, "fp32", (0, 1, 2, 3)).members == (0, 1, 2, 3)
    assert together.p2p_ns(1, 2, 1 << 24) < spread.p2p_ns(1, 2, 1 << 24)


@pytest.mark.parametrize("call", ["ncclAllReduce", "ncclGather", "ncclScatter", "ncclAlltoAll", "ncclBroadcast"])
def test_a_communicator_of_one_member_costs_a_launch(times: CollectiveTimes, call: str) -> None:
    signature = f'{{"call":"{call}","communicator":1,"ranks":1,"rank":0,"count":1048576,"dtype":"fp32","root":0}}'
    launch = times.p2p_ns(5, 5, 1 << 20)
    assert times.collective_ns(call, 1 << 20, "fp32", (5,)) == times.alone_ns(signature, 5) == launch
    message = '{"call":"ncclSend","communicator":1,"ranks":1,"rank":0,"count":8,"dtype":"fp32","peer":0}'
    assert times.alone_ns(message, 5) == launch


def test_settings_of_nccl_change_the_time() -> None:
    cluster = load_cluster("dgx-h100")
    members = tuple(range(16))
    free, forced = (
        CollectiveTimes(cluster, read_settings(environment), 16, 8).collective_ns("ncclAllReduce", 256, "fp32", members)
        for environment in ({}, {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"})
    )
    assert free < forced


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100", "gb200-nvl72", "grand-teton-h100", "pcie-box", "dgx-1v"])
def test_sends_take_the_time_of_the_network(name: str) -> None:
    """Pairs that are alike are asked about once; the answer is that of the pair itself."""
    cluster = load_cluster(name)
    gpus = 40 * cluster.gpus_per_node
    times = CollectiveTimes(cluster, None, gpus, cluster.gpus_per_node)
    network = AnalyticNetwork(build_topology(cluster, gpus))
    random = np.random.default_rng(0)
    for sender, receiver in random.integers(0, gpus, (40, 2)).tolist():
        size = int(2 ** random.uniform(0, 26))
        expected = network.estimate(times.p2p(sender, receiver, size)).ns
        assert times.p2p_ns(sender, receiver, size) == expected, (sender, receiver, size)


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100", "gb200-nvl72", "grand-teton-h100", "pcie-box", "dgx-1v"])
def test_pairs_with_equal_costs_take_the_same_time(name: str) -> None:
    cluster = load_cluster(name)
    gpus = 40 * cluster.gpus_per_node
    network = AnalyticNetwork(build_topology(cluster, gpus))
    times = CollectiveTimes(cluster, None, gpus, cluster.gpus_per_node)
    random = np.random.default_rng(0)
    source = random.integers(0, gpus, 60)
    target = (source + random.integers(1, gpus, 60)) % gpus
    costs = lone_transfer_costs(network.topology, source, target)
    for size in (1000, 1 << 26):
        expected: dict[bytes, int] = {}
        for sender, receiver, cost in zip(source.tolist(), target.tolist(), costs, strict=True):
            ns = network.estimate(times.p2p(sender, receiver, size)).ns
            assert expected.setdefault(cost.tobytes(), ns) == ns
        assert times.p2p_times(source.tolist(), target.tolist(), size) == [
            times.p2p_ns(*ends, size) for ends in zip(source.tolist(), target.tolist(), strict=True)
        ]


CALLS = (
    "ncclAllReduce",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclAlltoAll",
    "ncclBroadcast",
    "ncclReduce",
    "ncclGather",
)


def moved_groups(random: np.random.Generator, nodes: int, per_node: int) -> list[tuple[int, ...]]:
    """A random group, and groups with members in the same places of other nodes."""
    used, each = int(random.integers(1, 5)), min(int(random.choice((1, 2, 8))), per_node)
    pattern = [(node, int(gpu)) for node in range(used) for gpu in random.permutation(per_node)[:each]]
    random.shuffle(pattern)
    chosen = [np.sort(random.permutation(nodes)[:used]) for _ in range(2)]
    chosen += [np.arange(used) + int(first) for first in random.integers(0, nodes - used, 2)]
    return [tuple(int(choice[node]) * per_node + gpu for node, gpu in pattern) for choice in chosen]


@pytest.mark.parametrize(
    ("name", "radix"),
    [
        ("dgx-h100", 64),
        ("dgx-h100", 16),
        ("aws-p5", 64),
        ("dgx-a100", 40),
        ("gb200-nvl72", 64),
        ("grand-teton-h100", 64),
        ("pcie-box", 64),
        ("dgx-1v", 36),
    ],
)
def test_collectives_take_the_time_of_the_network(name: str, radix: int) -> None:
    """Communicators that are alike are asked about once; the answer is that of the communicator itself."""
    cluster = load_cluster(name)
    cluster = replace(cluster, fabric=replace(cluster.fabric, radix=(radix,)))  # type: ignore[call-arg]
    nodes, per_node = 40, cluster.gpus_per_node
    times = CollectiveTimes(cluster, None, nodes * per_node, per_node)
    network = AnalyticNetwork(build_topology(cluster, nodes * per_node))
    random = np.random.default_rng(0)
    for call in CALLS:
        count = int(2 ** random.uniform(0, 24))
        for members in (*moved_groups(random, nodes, per_node), *moved_groups(random, nodes, per_node)):
            expected = network.estimate(times.collective(call, count, "bf16", members)).ns
            assert times.collective_ns(call, count, "bf16", members) == expected, (call, count, members)


def test_like_communicators_are_estimated_once() -> None:
    times = CollectiveTimes(load_cluster("dgx-h100"), None, 128, 8)
    for node in range(16):
        times.collective_ns("ncclAllReduce", 1 << 20, "bf16", tuple(range(8 * node, 8 * node + 8)))
    for node in range(8):
        times.collective_ns("ncclAllReduce", 1 << 20, "bf16", (8 * node, 8 * node + 64))
    assert len(times._by_form) == 2


def test_a_process_that_is_several_members_uses_several_gpus() -> None:
    times = CollectiveTimes(load_cluster("dgx-h100"), None, 16, 8)
    assert times.collective("ncclAllReduce", 1, "fp32", (0, 0, 0)).members == (0, 1, 2)
    assert times.collective("ncclAllReduce", 1, "fp32", (0, 0, 1, 1)).members == (0, 1, 2, 3)
    assert times.collective("ncclAllReduce", 1, "fp32", (15, 15)).members == (15, 8)
