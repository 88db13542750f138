"""Topologies: the paths of every kind of fabric, lost and slow links, and fabrics that cannot be built."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from helpers.cluster_files import FABRICS, load_text, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel.cluster import (
    Cluster,
    ClusterError,
    cluster_names,
    load_cluster,
    with_faults,
)
from netmodel.cluster.faults import NetworkFault, parse_fault
from netmodel.topology import Topology, build_topology
from netmodel.topology.bisection import bisection_rate
from netmodel.topology.links import LinkKind


@cache
def _cluster(name: str) -> Cluster:
    if name in cluster_names():
        return load_cluster(name)
    with TemporaryDirectory() as folder:
        return load_text(Path(folder), text_of(name))


@cache
def _topology(name: str, gpus: int, *faults: str) -> Topology:
    return build_topology(with_faults(_cluster(name), [parse_fault(fault) for fault in faults]), gpus)


def _stations(topology: Topology, path: tuple[int, ...]) -> list[str]:
    return [topology.vertices[topology.target[link]].name for link in path]


def _check_path(topology: Topology, path: tuple[int, ...], source: int, target: int) -> None:
    at = source
    for link in path:
        assert topology.source[link] == at
        assert not topology.lost[link]
        at = int(topology.target[link])
    assert at == target
    assert len(set(path)) == len(path)


_LOSSES = ("node0/nic0", "node1/nic1=10%", "node0/gpu1", "node0/gpu2:node0/pcie1", "node1/pcie0")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FABRICS),
    st.integers(0, 47),
    st.integers(0, 47),
    st.integers(0, 9),
    st.sets(st.sampled_from(_LOSSES)),
)
def test_a_path_leads_from_gpu_to_gpu(fabric: str, source: int, target: int, flow: int, faults: set[str]) -> None:
    topology = _topology(fabric, 48, *sorted(faults))
    path = topology.path(source, target, flow=flow)
    _check_path(topology, path, source, target)
    assert len(topology.path(target, source, flow=flow)) == len(path)
    assert tuple(topology.paths(source, target, flow=flow)[0].tolist()) == path


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(cluster_names()), st.integers(0, 99), st.integers(0, 99), st.integers(0, 9))
def test_a_path_of_a_preset(name: str, source: int, target: int, flow: int) -> None:
    topology = _topology(name, 100)
    path = topology.path(source, target, flow=flow)
    _check_path(topology, path, source, target)
    kinds = {LinkKind(topology.kind[link]) for link in path}
    same = topology.domain_of(source) == topology.domain_of(target)
    assert (LinkKind.NETWORK in kinds) == (not same)


def test_many_paths_at_once_are_the_same_as_one_by_one() -> None:
    topology = _topology("oversubscribed", 48, "leaf0:spine0#1", "node0/gpu1", "node2/nic0")
    source, target = (side.ravel() for side in np.meshgrid(np.arange(48), np.arange(48)))
    flow = (source * 7 + target) % 5
    rows = topology.paths(source, target, flow=flow)
    assert rows.dtype == np.int32
    for row, *ends, number in zip(rows, source.tolist(), target.tolist(), flow.tolist(), strict=True):
        path = topology.path(*ends, flow=number)
        assert row.tolist() == [*path, *[-1] * (rows.shape[1] - len(path))]


def test_nics_may_be_chosen() -> None:
    topology = _topology("rails", 48)
    stations = _stations(topology, topology.path(0, 9, source_nic=1, target_nic=1))
    assert stations == [
        *("node0/pcie0", "node0/cpu0", "node0/cpu1", "node0/pcie1", "node0/nic1"),
        "leaf1",
        *("node2/nic1", "node2/pcie1", "node2/cpu1", "node2/cpu0", "node2/pcie0", "node2/gpu1"),
    ]
    with pytest.raises(ValueError, match="NICs 0 to 1; 2 is not one"):
        topology.path(0, 9, source_nic=2)
    with pytest.raises(ValueError, match="no rank 48"):
        topology.path(0, 48)


def test_both_directions_of_a_cable_are_neighbours() -> None:
    topology = _topology("dgx-1v", 64)
    assert (topology.source[::2] == topology.target[1::2]).all()
    assert (topology.target[::2] == topology.source[1::2]).all()


def test_the_cube_mesh_of_a_dgx_1v() -> None:
    topology = _topology("dgx-1v", 8)
    links = {
        (int(source), int(target)): int(rate) // (25 * 10**9)
        for source, target, rate, kind in zip(
            topology.source, topology.target, topology.rate, topology.kind, strict=True
        )
        if kind == LinkKind.NVLINK
    }
    # As `nvidia-smi topo -m` prints it.
    matrix = ["01122000", "10210200", "12020010", "21200001", "20000112", "02001021", "00101202", "00012120"]
    assert links == {(a, b): int(matrix[a][b]) for a in range(8) for b in range(8) if matrix[a][b] != "0"}
    assert len(topology.path(0, 3)) == 1
    assert len(topology.path(0, 5)) == 2
    assert {_stations(topology, topology.path(0, 5, flow=flow))[0] for flow in range(20)} == {
        "node0/gpu1",
        "node0/gpu4",
    }


def test_gpus_over_pcie_meet_at_the_cpu() -> None:
    topology = _topology("pcie-box", 8)
    assert _stations(topology, topology.path(0, 3)) == ["node0/cpu0", "node0/gpu3"]
    assert _stations(topology, topology.path(0, 4)) == ["node0/cpu0", "node0/cpu1", "node0/gpu4"]


def test_a_rack_of_nvl72_is_one_domain() -> None:
    topology = _topology("gb200-nvl72", 144)
    assert _stations(topology, topology.path(0, 71)) == ["rack0/nvswitch", "node17/gpu3"]
    assert _stations(topology, topology.path(0, 72))[1:4] == ["node0/nic0", "leaf0", "node18/nic0"]
    assert (topology.domain_of(71), topology.domain_of(72)) == (0, 1)


def test_a_gpu_uses_its_nearest_nic() -> None:
    assert _topology("dgx-1v", 16).nics_of(13) == (2,)
    assert _topology("aws-p5", 16).nics_of(9) == (4, 5, 6, 7)
    assert _topology("pcie-box", 16).nics_of(9) == (0,)


# DGX SuperPOD Reference Architecture, component counts: nodes, leaves, spines, cores.
@pytest.mark.parametrize(
    ("nodes", "counts"),
    [
        (31, (8, 4, 0)),
        (63, (16, 8, 0)),
        (95, (24, 16, 0)),
        (128, (32, 16, 0)),
        (256, (64, 32, 0)),
        (512, (128, 128, 64)),
        (1024, (256, 256, 128)),
        (2048, (512, 512, 256)),
    ],
)
def test_a_superpod_has_the_switches_of_its_reference_architecture(nodes: int, counts: tuple[int, ...]) -> None:
    wiring = _cluster("dgx-h100").fabric.wire(nodes, 8, 50 * 10**9)
    levels = Counter(switch.level for switch in wiring.switches)
    assert tuple(levels[level] for level in range(3)) == counts


def test_a_rail_stays_on_its_leaf() -> None:
    topology = _topology("rails", 48)  # eight ports: four nodes under a leaf, two rails
    assert _stations(topology, topology.path(0, 12)) == [
        "node0/pcie0",
        "node0/nic0",
        "leaf0",
        "node3/nic0",
        "node3/pcie0",
        "node3/gpu0",
    ]
    assert any(name.startswith("spine") for name in _stations(topology, topology.path(0, 2 + 4)))
    assert any(name.startswith("spine") for name in _stations(topology, topology.path(0, 4 * 4)))


def test_rails_that_never_meet_are_crossed_inside_the_node() -> None:
    topology = _topology("rails-that-never-meet", 48)
    assert _stations(topology, topology.path(0, 6))[1:4] == ["node0/nic0", "leaf0", "node1/nic0"]


def test_ecmp_spreads_flows_and_always_the_same_way() -> None:
    topology = _topology("two-levels", 48)
    taken = [_stations(topology, topology.path(0, 47, flow=flow))[3] for flow in range(64)]
    assert Counter(taken).keys() == {"spine0", "spine1", "spine2", "spine3"}
    assert [int(name[-1]) for name in taken[:12]] == [3, 2, 3, 3, 3, 3, 1, 1, 3, 2, 0, 3]


def test_static_routes_do_not_collide_for_a_shift() -> None:
    """Every NIC of one pod sends to its like of another: d-mod-k gives each cables of its own."""
    topology = _topology("three-levels", 48)
    paths = topology.paths(np.arange(0, 12, 2), np.arange(12, 24, 2))
    network = [link for link in paths.ravel().tolist() if link >= 0 and topology.kind[link] == LinkKind.NETWORK]
    assert max(Counter(network).values()) == 1


def test_adaptive_routing_sees_all_cables_as_one() -> None:
    topology = _topology("adaptive", 48)
    path = topology.path(0, 47)
    assert _stations(topology, path)[2:5] == ["leaf0", "spine0-3", "leaf5"]
    assert topology.rate[path[3]] == 4 * 50 * 10**9
    with_loss = _topology("adaptive", 48, "spine3", "leaf0:spine1=50%")
    assert with_loss.rate[with_loss.path(0, 47)[3]] == 125 * 10**9
    assert with_loss.rate[with_loss.path(0, 47)[4]] == 150 * 10**9


def test_oversubscription_follows_the_wiring() -> None:
    topology = _topology("oversubscribed", 48)  # twelve ports: eight down, four up
    names = [vertex.name for vertex in topology.vertices]
    leaf = names.index("leaf0")
    up = [
        link
        for link in range(len(topology.rate))
        if topology.source[link] == leaf and "spine" in names[topology.target[link]]
    ]
    down = [
        link
        for link in range(len(topology.rate))
        if topology.source[link] == leaf and "nic" in names[topology.target[link]]
    ]
    assert (len(down), len(up)) == (8, 4)


def test_a_torus_is_walked_the_short_way_round() -> None:
    topology = _topology("torus", 48)
    for node in range(12):
        row, column = divmod(node, 4)
        hops = min(row, 3 - row) + min(column, 4 - column)
        routers = [name for name in _stations(topology, topology.path(0, 4 * node)) if name.startswith("router")]
        assert len(routers) == (hops + 1 if node else 0)


def test_two_routers_in_a_dimension_are_joined_once() -> None:
    wiring = _cluster("cube").fabric.wire(12, 2, 1)
    joined = Counter(frozenset((cable.lower, cable.upper)) for cable in wiring.cables)
    assert set(joined.values()) == {2}
    assert len(joined) == 6 + 6 + 12


def test_a_dragonfly_takes_at_most_one_cable_between_groups() -> None:
    topology = _topology("dragonfly", 96)
    for target in range(0, 96, 4):
        groups = [
            name.split(".")[0] for name in _stations(topology, topology.path(0, target)) if name.startswith("group")
        ]
        assert sum(a != b for a, b in pairwise(groups)) <= 1
        assert len(groups) <= 4


def test_a_graph_file_of_the_user_is_built() -> None:
    topology = _topology("graph", 48)
    taken = {_stations(topology, topology.path(0, 47, flow=flow))[3] for flow in range(30)}
    assert taken == {"over", "under"}
    [slow] = {link for flow in range(30) for link in topology.path(0, 47, flow=flow) if topology.latency[link] == 2300}
    assert topology.rate[slow] == 12_500_000_000


def test_a_lost_nic_is_not_used() -> None:
    topology = _topology("rails", 48, "node0/nic0")
    assert topology.nics_of(0) == (1,)
    for target in range(4, 48):
        assert "node0/nic0" not in _stations(topology, topology.path(target, 0))
    with pytest.raises(ValueError, match="no path from rank 0 to rank 4"):
        topology.path(0, 4, source_nic=0)


def test_a_gpu_without_its_nvlink_takes_pcie() -> None:
    topology = _topology("dgx-h100", 16, "node1/gpu2")
    assert {topology.kind[link] for link in topology.path(8, 10)} == {LinkKind.PCIE}
    assert {topology.kind[link] for link in topology.path(8, 11)} == {LinkKind.NVLINK}


def test_a_gpu_without_its_nvlink_leaves_the_rack_through_its_nic() -> None:
    topology = _topology("gb200-nvl72", 144, "node1/gpu2")
    assert LinkKind.NETWORK in {topology.kind[link] for link in topology.path(6, 70)}
    assert LinkKind.NETWORK not in {topology.kind[link] for link in topology.path(6, 7)}


def test_a_lost_uplink_is_avoided_and_a_slow_one_is_slow() -> None:
    whole, lost = _topology("two-levels", 48), _topology("two-levels", 48, "leaf0:spine1")
    slow = _topology("two-levels", 48, "leaf0:spine1=25%")
    for flow in range(40):
        assert "spine1" not in _stations(lost, lost.path(0, 47, flow=flow))
        path = slow.path(0, 47, flow=flow)
        assert path == whole.path(0, 47, flow=flow)
        expected = 12_500_000_000 if "spine1" in _stations(slow, path) else 50 * 10**9
        assert slow.rate[list(path)].min() == expected


def test_one_of_several_cables_can_be_lost() -> None:
    topology = _topology("graph", 48, "left:over#1")
    assert sum(topology.lost) == 2
    assert "over" in {_stations(topology, topology.path(0, 47, flow=flow))[3] for flow in range(30)}


def test_bisection_bandwidth_follows_the_wiring() -> None:
    assert bisection_rate(_topology("dgx-h100", 8)) is None
    nics = 6 * 2 * 50 * 10**9
    assert bisection_rate(_topology("two-levels", 48)) == (nics, nics)
    assert bisection_rate(_topology("oversubscribed", 64)) == (8 * 50 * 10**9, 16 * 50 * 10**9)
    assert bisection_rate(_topology("two-levels", 48, "spine0")) == (nics * 3 // 4, nics)
    assert bisection_rate(_topology("ring", 48)) == (2 * 50 * 10**9, nics)


@pytest.mark.parametrize(
    ("fabric", "gpus", "message"),
    [
        (
            "two-levels",
            4096,
            "fat-tree fabric of 2 levels and switches of 8 ports has room for 16 nodes of 2 NICs; 1024 were",
        ),
        ("three-levels", 128, "raise fabric.radix"),
        ("rails-that-never-meet", 1024, "raise fabric.levels (up to 3) or fabric.radix"),
        ("torus", 52, "3 × 4 routers has room for 12 nodes; 13 were requested; raise fabric.dimensions"),
        ("dragonfly", 100, "has room for 24 nodes; 25 were requested; raise fabric.groups"),
        ("graph", 52, "node12/nic0 is plugged into no switch, and 13 nodes were requested; attach it"),
        ("default", 0, "at least 1"),
    ],
)
def test_fabrics_that_do_not_fit_the_gpus_are_refused(fabric: str, gpus: int, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        build_topology(_cluster(fabric), gpus)
    assert message in str(caught.value)
    assert str(caught.value).startswith("mine: ")


@pytest.mark.parametrize(
    ("fabric", "faults", "message"),
    [
        (
            "graph",
            ["left:over", "left:under"],
            "node0/gpu0 cannot reach node6/gpu0: nothing connects left and right; remove one",
        ),
        ("default", ["node1/nic0", "node1/nic1"], "no working NIC is left to node1/gpu0"),
        ("rails", ["leaf0", "leaf1"], "no working NIC is left to node0/gpu0"),
        ("default", ["node1/nic9"], "nothing here has that name (did you mean node1/nic1"),
        ("default", ["node1/nic0:node0/nic0"], "no link connects them"),
        ("graph", ["left:over#3"], "the fault has 3 cables, but there are 2"),
    ],
)
def test_unreachable_gpus_are_refused(fabric: str, faults: list[str], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        build_topology(with_faults(_cluster(fabric), [parse_fault(fault) for fault in faults]), 48)
    assert message in str(caught.value)


def test_a_graph_in_two_parts_is_refused(tmp_path: Path) -> None:
    text = text_of(
        'kind = "graph"\nswitches = ["a", "b"]\nattach = [{switch = "a", nodes = 0}, {switch = "b", nodes = 1}]\n'
    )
    with pytest.raises(
        ClusterError, match=r"node0/gpu0 cannot reach node1/gpu0: nothing connects a and b; connect them in \[fabric\]"
    ):
        build_topology(load_text(tmp_path, text), 8)


def test_faults_are_parsed_from_text() -> None:
    assert parse_fault("node3/nic5") == parse_fault("node3/nic5=lost") == NetworkFault(("node3/nic5",), 0.0)
    assert parse_fault("leaf0:spine1#2=12.5%") == NetworkFault(("leaf0", "spine1"), 0.125, 2)
    for text in ("", "a:b:c", "a=", "a=50", "a=100%", "a=0%", "a#0"):
        with pytest.raises(ClusterError):
            parse_fault(text)


def test_a_topology_of_a_thousand_gpus_is_built() -> None:
    topology = _topology("dgx-b200", 1024)
    assert topology.nodes == 128
    assert topology.paths(np.arange(1024), (np.arange(1024) + 8) % 1024).shape[0] == 1024
