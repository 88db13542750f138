"""All-to-alls of large groups: routed as the few legs that their messages share, they load every link as they would one
message after the other, and the flow level finds the flows of every sender."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import netmodel
from netmodel.cluster import load_cluster, with_faults
from netmodel.cluster.faults import parse_fault
from netmodel.collectives.algorithms.group import make_group
from netmodel.collectives.algorithms.p2p import all_pairs
from netmodel.collectives.algorithms.p2p_routes import MOST_FLOWS, P2PTransfers, RoutedTransfers, route_p2p
from netmodel.collectives.analytic import AnalyticNetwork
from netmodel.collectives.collective import Collective, Transfer
from netmodel.topology import Topology, build_topology

PRESETS = sorted(path.stem for path in (Path(netmodel.__file__).parent / "cluster" / "catalogue").glob("*.toml"))
GPUS = 72  # 5,112 messages


def routed(topology: Topology, transfers: P2PTransfers, *, pxn: bool) -> tuple[RoutedTransfers, NDArray[np.float64]]:
    """With what its flows, which are made one message at a time, load each link with."""
    found = route_p2p(make_group(topology, range(topology.gpus)), transfers, pxn=pxn)
    loads = np.zeros(len(topology.rate))
    for flow in found.flows:
        loads[flow.links] += flow.loads
    return found, loads


@pytest.mark.parametrize("preset", PRESETS)
def test_links_carry_the_bytes_of_all_sends(preset: str) -> None:
    topology = build_topology(load_cluster(preset), GPUS)
    transfers = all_pairs(tuple(range(GPUS)))
    assert len(transfers.source) > MOST_FLOWS
    for pxn in (True, False):
        found, loads = routed(topology, transfers, pxn=pxn)
        assert found.link_loads is not None
        np.testing.assert_allclose(found.link_loads, loads, rtol=1e-12)
        assert len(found.flows) == GPUS
        assert (found.most_inside + found.most_across) == GPUS - 1


@pytest.mark.parametrize("preset", ["dgx-h100", "pcie-box"])
def test_unequal_parts_may_come_in_any_order(preset: str) -> None:
    topology = build_topology(load_cluster(preset), GPUS)
    pairs, random = all_pairs(tuple(range(GPUS))), np.random.default_rng(1)
    order = random.permutation(len(pairs.source))
    transfers = P2PTransfers(pairs.source[order], pairs.target[order], random.random(len(order)))
    found, loads = routed(topology, transfers, pxn=True)
    assert found.link_loads is not None
    np.testing.assert_allclose(found.link_loads, loads, rtol=1e-12)
    for place, sender in enumerate(range(GPUS)):
        largest = transfers.load[transfers.source == sender].max()
        assert max(found.inside[place], found.across[place]) == largest


@pytest.mark.parametrize("preset", ["dgx-h100", "grand-teton-h100", "gb200-nvl72"])
def test_an_all_to_all_takes_as_long_as_its_sends(preset: str) -> None:
    topology = build_topology(load_cluster(preset), GPUS)
    members, part = tuple(range(GPUS)), 3 << 20
    transfers = tuple(Transfer(one, other, part) for one in members for other in members if one != other)
    network = AnalyticNetwork(topology)
    exchange = network.estimate(Collective("all_to_all", part * GPUS, members))
    unequal = network.estimate(Collective("all_to_all", part * len(transfers), members, transfers=transfers))
    assert exchange.ns == pytest.approx(unequal.ns, abs=1)
    assert exchange.channels == unequal.channels


def test_lost_links_inside_a_node_are_gone_around() -> None:
    """A GPU that has lost its NVLink is reached through NICs, also by what relays messages."""
    cluster = with_faults(load_cluster("dgx-h100"), [parse_fault("node0/gpu3:node0/nvswitch")])
    topology = build_topology(cluster, GPUS)
    found, loads = routed(topology, all_pairs(tuple(range(GPUS))), pxn=True)
    assert found.link_loads is not None
    np.testing.assert_allclose(found.link_loads, loads, rtol=1e-12)
    assert topology.lost.any()
    assert not loads[topology.lost].any()
