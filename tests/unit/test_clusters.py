"""Clusters: the catalogue, the files of users, and the errors for malformed files."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.cluster_files import FABRICS, load_text, text_of

from maya.devices import load_device
from maya.util.text import rate_text, time_text
from maya.util.units import NANOSECONDS
from netmodel.cluster import ClusterError, cluster_names, load_cluster
from netmodel.cluster.fabrics import FatTree
from netmodel.cluster.faults import NetworkFault
from netmodel.topology import build_topology

_FILE = """
name = "two GPUs"
sources = "made up"
gpu = "h100"
[node]
gpus = 2
gpu_link = "pcie"
gpu_link_rate = "32GB/s"
nics = 1
nic_rate = "100Gbps"
"""


@pytest.mark.parametrize("name", cluster_names())
def test_every_preset_names_a_gpu_of_the_catalogue(name: str) -> None:
    cluster = load_cluster(name)
    assert load_device(cluster.gpu).key == cluster.gpu
    assert cluster.key == name


@pytest.mark.parametrize("name", cluster_names())
def test_every_preset_says_what_it_stands_for_and_where_its_figures_come_from(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.sources not in ("", "datasheet")
    build_topology(cluster, 2048)


def test_a_preset_has_the_figures_of_its_data_sheet() -> None:
    cluster = load_cluster("DGX-H100")
    assert (cluster.gpus_per_node, cluster.gpu_link_rate, cluster.nic_rate) == (8, 450 * 10**9, 50 * 10**9)
    assert load_cluster("gb200-nvl72").gpu_link_nodes * load_cluster("gb200-nvl72").gpus_per_node == 72


def test_a_cluster_file_of_the_user_is_loaded(tmp_path: Path) -> None:
    cluster = load_text(tmp_path, _FILE)
    assert (cluster.key, cluster.gpus_per_node, cluster.gpu_link_nodes) == ("mine", 2, 1)
    fabric = cluster.fabric
    assert isinstance(fabric, FatTree)
    assert (fabric.kind, fabric.rate, fabric.oversubscription) == ("fat-tree", cluster.nic_rate, (1.0,))
    assert cluster.nic_affinity == ((0, 1),)


@pytest.mark.parametrize("fabric", FABRICS)
def test_every_kind_of_fabric_can_be_written(tmp_path: Path, fabric: str) -> None:
    assert load_text(tmp_path, text_of(fabric)).fabric.summary()


def test_rates_follow_from_generations(tmp_path: Path) -> None:
    text = _FILE.replace('gpu_link_rate = "32GB/s"', "gpu_link_generation = 5")
    assert round(load_text(tmp_path, text).gpu_link_rate / 1e9) == 63
    cluster = load_text(tmp_path, text.replace('"pcie"', '"nvswitch"') + "pcie_generation = 4\n")
    assert (cluster.gpu_link_rate, round(cluster.pcie_rate / 1e9, 1)) == (900 * 10**9, 31.5)


def test_faults_in_a_cluster_file_are_read(tmp_path: Path) -> None:
    more = """
[[faults]]
link = "node0/nic0"
rate_left = 0.5
[[faults]]
link = ["leaf0", "spine1"]
lost = true
cables = 1
"""
    faults = load_text(tmp_path, text_of("two-levels", more=more)).faults
    assert faults == (NetworkFault(("node0/nic0",), 0.5), NetworkFault(("leaf0", "spine1"), 0.0, 1))
    assert [str(fault) for fault in faults] == ["node0/nic0: 0.5 of its rate left", "leaf0 - spine1, 1 cable: lost"]


def test_a_gpu_file_next_to_the_cluster_file(tmp_path: Path) -> None:
    (tmp_path / "big.toml").write_text('based_on = "h100"\nname = "big"\nmemory = "120GiB"\n')
    cluster = load_text(tmp_path, _FILE.replace('"h100"', '"big.toml"'))
    assert load_device(cluster.gpu).memory_bytes == 120 * 2**30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_FILE.replace("nics = 1", "nics = 1\nnic = 2"), 'unknown key "node.nic" (did you mean nics?)'),
        (_FILE.replace("gpus = 2", "gpus = 0"), "node.gpus: 0 is not a whole number of at least 1"),
        (
            _FILE.replace("gpus = 2", f"gpus = {10**9}"),
            "node.gpus: 1000000000 is more than the 1,024 that are modelled",
        ),
        (_FILE.replace('"100Gbps"', '"0Gbps"'), "node.nic_rate: a rate of zero connects nothing"),
        (_FILE.replace('"100Gbps"', "100"), "node.nic_rate: 100 has no unit"),
        (_FILE.replace('"pcie"', '"string"'), "use nvswitch, nvlink-mesh or pcie"),
        (_FILE.replace("nics = 1\n", ""), "missing node.nics"),
        (_FILE.replace("gpus = 2", "gpus = 2\ngpu_link_mesh = [[0, 1, 1]]"), 'is for gpu_link = "nvlink-mesh"'),
        (_FILE.replace("gpus = 2", "gpus = 2\ngpu_link_nodes = 2"), 'only gpu_link = "nvswitch" joins nodes'),
        (_FILE.replace('gpu_link_rate = "32GB/s"\n', ""), "missing node.gpu_link_rate; give it"),
        (_FILE.replace('gpu_link_rate = "32GB/s"', "gpu_link_generation = 9"), "9 has no known rate; use 3, 4, 5 or 6"),
        (_FILE + 'nic_latency = "3"', '"3" is not a time; write a number and its unit, e.g. "1.3us"'),
        (_FILE + 'nic_latency = "3min"', '"min" is not a unit of a time; use one of ns, us, ms, s'),
        (_FILE + "nic_affinity = [[0]]", "GPU 1 has no NIC; name it at the NIC it uses"),
        (_FILE + "nic_affinity = [[0], [1]]", "is of 2 NICs; a node has 1"),
        (_FILE + "nic_affinity = [[2]]", "NIC 0 is near GPU 2; a node has 2 GPUs"),
        (_FILE + "sockets = 3", "3 sockets for 2 GPUs"),
        (_FILE.split("[node]")[0], "missing the table [node]"),
        ("node = 3\n" + _FILE.split("[node]")[0], "expected a table, [node]"),
        (
            _FILE + '[fabric]\nkind = "mesh"',
            "'mesh' is not a kind of fabric; use fat-tree, rail-optimised, dragonfly, torus",
        ),
        (_FILE + "[fabric]\nradiks = 3", 'unknown key "fabric.radiks" (did you mean radix?)'),
        (_FILE + '[fabric]\nrate = "0Gbps"', "fabric.rate: a rate of zero connects nothing"),
        (_FILE + '[fabric]\nkind = "ring"\nradix = 3', '"fabric.radix" is a key of fat-tree and rail-optimised, but'),
        (_FILE + '[fabric]\nkind = "torus"', "missing fabric.dimensions"),
        (_FILE + '[fabric]\nkind = "ring"\nrouting = "adaptive"', '"adaptive" is for fat-tree or rail-optimised'),
        (_FILE + "[fabric]\nlevels = 4", "4 is too many; a tree has 1 (one switch) to 3"),
        (_FILE + "[fabric]\noversubscription = 0", "0 is not a ratio"),
        (_FILE + "[fabric]\nsharp = 1", "1 is neither true nor false"),
        (
            _FILE + '[fabric]\nkind = "graph"\nswitches = ["a"]\nattach = [{switch = "b", nodes = 0}]',
            'fabric.attach: "b" is not one of fabric.switches',
        ),
        (
            _FILE + '[fabric]\nkind = "graph"\nswitches = ["a"]\nattach = [{switch = "a", nodes = "x"}]',
            "'x' is not a list of indices; write 3, \"0-15\", or a list of these",
        ),
        (
            _FILE + '[fabric]\nkind = "graph"\nswitches = ["a", "a"]\nattach = [{switch = "a", nodes = 0}]',
            '"a" is there twice',
        ),
        (
            _FILE + '[fabric]\nkind = "graph"\nswitches = ["a:b"]\nattach = []',
            "must not contain spaces or any of : # = /",
        ),
        (_FILE + '[[faults]]\nlink = "node0/nic0"', "say either lost = true, or rate_left"),
        (_FILE + '[[faults]]\nlink = "node0/nic0"\nrate_left = 0', "a link without any rate is lost = true"),
        (_FILE + "[[faults]]\nlost = true", "[[faults]] number 1: missing link"),
        (_FILE + '[[faults]]\nlink = ["a", "b", "c"]\nlost = true', "is not a link"),
        ("name =", "not valid TOML"),
    ],
)
def test_errors_in_a_file_are_explained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        load_text(tmp_path, text)
    assert message in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ClusterError) as caught:
        load_cluster("dgx-h10")
    assert "did you mean dgx-h100" in str(caught.value)


def test_times_are_parsed_with_units() -> None:
    assert [NANOSECONDS.parse(text) for text in ("250ns", "1.3us", "2ms", "0s")] == [250, 1300, 2 * 10**6, 0]
    assert [time_text(count) for count in (250, 1300, 2 * 10**6)] == ["250 ns", "1.3 us", "2 ms"]


def test_rates_are_formatted_with_units() -> None:
    assert [rate_text(rate) for rate in (450 * 10**9, 25_600 * 10**9)] == ["450 GB/s", "25.6 TB/s"]
    assert [rate_text(rate * 10**9, bits=True) for rate in (50, 400)] == ["400 Gbps", "3200 Gbps"]
