"""The flow level on whole clusters: collectives that share links take longer."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from maya.cli.net import net
from netmodel.cluster import load_cluster, with_faults
from netmodel.cluster.fabrics.fat_tree import FatTree
from netmodel.cluster.faults import parse_fault
from netmodel.collectives.analytic import AnalyticNetwork
from netmodel.collectives.collective import Collective, Transfer
from netmodel.flow import Finished, FlowNetwork
from netmodel.flow.link_use import busiest_links
from netmodel.topology import build_topology

_EXAMPLES = Path(__file__).parents[2] / "scripts" / "examples" / "networks"
_GPUS = 128
_SIZE = 256 * 10**6


@cache
def _planned(name: str, *faults: str) -> AnalyticNetwork:
    cluster = load_cluster(str(_EXAMPLES / f"{name}.toml"))
    assert isinstance(cluster.fabric, FatTree)
    cluster = replace(cluster, fabric=replace(cluster.fabric, radix=(32,)))  # two or three nodes to a leaf
    return AnalyticNetwork(build_topology(with_faults(cluster, [parse_fault(fault) for fault in faults]), _GPUS))


def _run(network: AnalyticNetwork, *collectives: Collective) -> list[Finished]:
    flow = FlowNetwork(network.topology, planner=network)
    return flow.simulate([(0, collective) for collective in collectives])


def _data_parallel(size: int = _SIZE) -> list[Collective]:
    """A rank of every fourth node in each group: every hop of every ring leaves its leaf."""
    return [Collective("all_reduce", size, tuple(range(first, _GPUS, 32))) for first in range(32)]


def _slowdown(finished: list[Finished]) -> float:
    return max(one.ns / one.alone_ns for one in finished)


def test_a_tree_without_oversubscription_carries_all_groups_at_once() -> None:
    assert _slowdown(_run(_planned("fat-tree-1to1"), *_data_parallel())) == pytest.approx(1, abs=0.01)


def test_oversubscribed_uplinks_divide_the_rate() -> None:
    """A leaf of 32 ports has 25 down, which three nodes use 24 of, and 7 up."""
    network = _planned("fat-tree-4to1")
    finished = _run(network, *_data_parallel())
    assert 3.2 < _slowdown(finished) < 24 / 7
    link = busiest_links(network.topology, finished)[0]
    assert (link.source, link.target[:5]) == ("leaf0", "spine")
    assert link.share > 0.85


def test_collectives_that_stay_under_their_leaf_do_not_meet() -> None:
    neighbours = [Collective("all_reduce", _SIZE, tuple(range(first, first + 16))) for first in range(0, _GPUS, 48)]
    assert _slowdown(_run(_planned("fat-tree-4to1"), *neighbours)) == pytest.approx(1, abs=1e-6)


def test_flows_that_a_hash_puts_on_one_uplink_share_it_while_others_are_idle() -> None:
    finished = _run(_planned("fat-tree-1to1-ecmp"), *_data_parallel())
    assert _slowdown(finished) > 1.5
    assert len({one.ns for one in finished}) > 4  # whom it hits is chance


def test_a_slow_nic_slows_its_own_group_down_and_leaves_others_more() -> None:
    finished = _run(_planned("fat-tree-4to1", "node0/nic3=10%"), *_data_parallel())
    healthy = _run(_planned("fat-tree-4to1"), *_data_parallel())
    assert finished[3].ns > 2 * healthy[3].ns  # the group of rank 3
    others = [place for place in range(32) if place != 3]
    assert all(finished[place].ns <= healthy[place].ns for place in others)


def test_a_lost_uplink_slows_the_collectives_that_used_it() -> None:
    whole = _run(_planned("fat-tree-1to1"), *_data_parallel())
    lost = _run(_planned("fat-tree-1to1", "leaf0:spine0"), *_data_parallel())
    slower = [place for place in range(32) if lost[place].ns > whole[place].ns * 1.01]
    assert 0 < len(slower) < 32
    assert all(one.ns >= other.ns for one, other in zip(lost, whole, strict=True))


def test_rails_keep_rings_of_one_local_rank_away_from_uplinks() -> None:
    rings = [Collective("all_reduce", _SIZE, tuple(range(first, _GPUS, 8))) for first in range(8)]
    network = _planned("rails-4to1")
    finished = _run(network, *rings)
    assert _slowdown(finished) == pytest.approx(1, abs=1e-6)
    assert "spine" not in "".join(
        link.source + link.target for link in busiest_links(network.topology, finished, 10_000)
    )


def test_a_send_beside_an_all_reduce_shares_the_nic() -> None:
    network = AnalyticNetwork(build_topology(load_cluster("dgx-h100"), 16))
    message = Collective("send_recv", _SIZE, (0, 8), transfers=(Transfer(0, 1, _SIZE),))
    all_reduce = Collective("all_reduce", 8 * _SIZE, tuple(range(16)))
    alone = _run(network, message)[0]
    beside = _run(network, message, all_reduce)
    assert 1.05 * alone.ns < beside[0].ns < 10 * alone.ns
    assert beside[1].ns > beside[1].alone_ns


def test_a_collective_that_ends_gives_its_bandwidth_back() -> None:
    """All groups start together; the larger ones go on faster once the smaller ones are through."""
    network = _planned("fat-tree-4to1")
    mixed = [replace(collective, size=_SIZE * (1 + place % 2)) for place, collective in enumerate(_data_parallel())]
    both = _run(network, *mixed)
    large = _run(network, *_data_parallel(2 * _SIZE))
    small = _run(network, *_data_parallel())
    assert max(one.ns for one in small) * 1.2 < max(one.ns for one in both) < max(one.ns for one in large) * 0.8


def test_the_same_traffic_ends_at_the_same_times() -> None:
    network = _planned("fat-tree-1to1-ecmp")
    assert [one.end_ns for one in _run(network, *_data_parallel())] == [
        one.end_ns for one in _run(network, *_data_parallel())
    ]
    assert all(isinstance(one.end_ns, int) for one in _run(network, *_data_parallel()[:2]))


def test_the_command_prints_a_row_for_each_cluster() -> None:
    files = [str(_EXAMPLES / f"{name}.toml") for name in ("fat-tree-1to1", "fat-tree-4to1")]
    result = CliRunner().invoke(net, ["together", *files, "--gpus", str(_GPUS), "--group-size", "4"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "all_reduce of 256000000 bytes in 32 groups of 4 ranks, 32 apart"
    assert lines[3].split()[:5] == ["cluster", "alone", "fastest", "median", "slowest"]
    assert [line.split()[0] for line in lines[4:]] == ["fat-tree-1to1", "fat-tree-4to1"]


def test_the_documentation_shows_the_current_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first table; the others are made alike."""
    text = (_EXAMPLES.parents[2] / "docs" / "network-what-if.md").read_text(encoding="utf-8")
    shown = re.search(r"^```\n\$ maya net ([^\n]*)\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert shown is not None
    monkeypatch.chdir(_EXAMPLES)
    assert CliRunner().invoke(net, shown[1].split()).output == shown[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "10", "--group-size", "4"], "10 GPUs are not a whole number of blocks of 4 × 2"),
        (["--gpus", "16", "--group-size", "4", "--size", "12"], '"12" is not a size'),
        (
            ["--gpus", "16", "--group-size", "4", "--fault", "node9/nic0"],
            'fault of "node9/nic0": nothing here has that name',
        ),
    ],
)
def test_the_command_explains_errors(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(net, ["together", "dgx-h100", *arguments])
    assert result.exit_code == 1
    assert message in result.output
