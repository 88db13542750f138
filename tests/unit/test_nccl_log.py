"""The lines of NCCL_DEBUG=INFO: every member's lines belong to the same rings and trees, those of the model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import pytest

from netmodel.cluster import load_cluster
from netmodel.collectives.analytic import AnalyticNetwork
from netmodel.collectives.nccl_log import CommunicatorLog
from netmodel.collectives.nccl_settings import NcclSettings
from netmodel.topology import build_topology


def _lines(cluster: str, places: Sequence[int], settings: NcclSettings | None = None) -> list[list[str]]:
    loaded = load_cluster(cluster)
    gpus = -(-(max(places) + 1) // loaded.gpus_per_node) * loaded.gpus_per_node
    log = CommunicatorLog(AnalyticNetwork(build_topology(loaded, gpus), settings), places)
    return [[line.text for line in log.lines(member, 0x5500)] for member in range(len(places))]


def _rings(lines: Sequence[str]) -> list[list[int]]:
    found = (re.fullmatch(r"Channel \d+/\d+ : ([\d ]+)", line) for line in lines)
    return [[int(word) for word in match[1].split()] for match in found if match]


CASES = [
    ("dgx-h100", range(8)),
    ("dgx-h100", range(0, 32, 2)),
    ("dgx-h100", [9, 3, 17, 1, 11, 25]),
    ("dgx-1v", range(8)),
    ("pcie-box", range(0, 16)),
    ("gb200-nvl72", range(0, 80, 8)),
]


@pytest.mark.parametrize(("cluster", "places"), CASES)
def test_connections_are_those_of_the_rings(cluster: str, places: Sequence[int]) -> None:
    lines = _lines(cluster, places)
    rings = _rings(lines[0])
    assert rings
    assert all(sorted(ring) == list(range(len(places))) and ring[0] == 0 for ring in rings)
    assert not any(_rings(of_member) for of_member in lines[1:])
    for member, of_member in enumerate(lines):
        sent = re.findall(rf"Channel (\d+)/0 : {member}\[\d+\] -> (\d+)\[\d+\](?: \[send\])? via", "\n".join(of_member))
        expected = [ring[(ring.index(member) + 1) % len(ring)] for ring in rings]
        assert [int(target) for _, target in sent] == expected


@pytest.mark.parametrize(("cluster", "places"), CASES)
def test_parents_and_children_agree(cluster: str, places: Sequence[int]) -> None:
    children: dict[int, dict[int, set[int]]] = defaultdict(dict)
    parents: dict[int, dict[int, int]] = defaultdict(dict)
    for of_member in _lines(cluster, places):
        (trees,) = (line for line in of_member if line.startswith("Trees "))
        for channel, below, member, above in re.findall(r"\[(\d+)\] ([-\d/]+)->(\d+)->(-?\d+)", trees):
            children[int(channel)][int(member)] = {int(child) for child in below.split("/")} - {-1}
            parents[int(channel)][int(member)] = int(above)
    for channel, above in parents.items():
        assert sorted(above) == list(range(len(places)))
        assert list(above.values()).count(-1) == 1
        for member, parent in above.items():
            assert parent < 0 or member in children[channel][parent]
        assert sum(map(len, children[channel].values())) == len(places) - 1


def test_transports_are_those_of_the_cluster() -> None:
    inside, between = _lines("dgx-h100", range(8)), _lines("dgx-h100", range(16))
    assert not any("NET" in line for line in inside[0])
    assert "Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0(0)/GDRDMA" in between[7]
    assert "Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA" in between[8]
    assert any("NET/AWS Libfabric/" in line for line in _lines("aws-p5", [0, 8])[0])
    assert any(line.endswith("via NET/Socket/0") for line in _lines("ethernet-25g", [0, 8])[0])
    assert any(line.endswith("via P2P/MNNVL") for line in _lines("gb200-nvl72", [0, 4])[0])


def test_the_first_member_logs_the_choices_of_the_tuner() -> None:
    first, second = _lines("dgx-h100", range(8))[:2]
    (choice,) = (line for line in first if line.startswith("AllReduce: "))
    assert re.match(r"AllReduce: from 0 B (Tree|Ring)/LL on 24 channels, from \d+ B ", choice)
    assert not any(line.startswith("AllReduce") for line in second)


def test_settings_of_nccl_apply() -> None:
    lines = _lines("dgx-h100", range(16), NcclSettings(max_channels=2, nvls=False))[0]
    assert len(_rings(lines)) == 2
    assert any(line.startswith("2 coll channels, 0 nvls channels, 2 p2p channels") for line in lines)


def test_members_that_share_a_gpu_have_no_rings() -> None:
    assert _lines("dgx-h100", [0, 0])[0] == ["comm 0x5500 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0"]
