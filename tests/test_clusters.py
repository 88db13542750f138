"""Clusters: the catalogue and files of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from maya.devices import load_device
from netmodel.cluster import Cluster, ClusterError, cluster_names, load_cluster

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


def _load(folder: Path, text: str) -> Cluster:
    file = folder / "mine.toml"
    file.write_text(text)
    return load_cluster(str(file))


@pytest.mark.parametrize("name", cluster_names())
def test_every_preset_names_a_gpu_of_the_catalogue(name: str) -> None:
    cluster = load_cluster(name)
    assert load_device(cluster.gpu).key == cluster.gpu
    assert cluster.key == name


def test_a_preset_has_its_figures() -> None:
    cluster = load_cluster("DGX-H100")
    assert (cluster.gpus_per_node, cluster.gpu_link_rate, cluster.nic_rate) == (8, 450 * 10**9, 50 * 10**9)
    assert load_cluster("gb200-nvl72").gpu_link_nodes * load_cluster("gb200-nvl72").gpus_per_node == 72


def test_a_file_of_the_users_own(tmp_path: Path) -> None:
    cluster = _load(tmp_path, _FILE)
    assert (cluster.key, cluster.gpus_per_node, cluster.gpu_link_nodes) == ("mine", 2, 1)


def test_a_gpu_file_next_to_the_cluster_file(tmp_path: Path) -> None:
    (tmp_path / "big.toml").write_text('based_on = "h100"\nname = "big"\nmemory = "120GiB"\n')
    cluster = _load(tmp_path, _FILE.replace('"h100"', '"big.toml"'))
    assert load_device(cluster.gpu).memory_bytes == 120 * 2**30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_FILE.replace("nics = 1", "nics = 1\nnic = 2"), 'unknown key "node.nic" (did you mean nics?)'),
        (_FILE.replace("gpus = 2", "gpus = 0"), "node.gpus: 0 is not a whole number of at least 1"),
        (_FILE.replace('"100Gbps"', '"0Gbps"'), "node.nic_rate: a rate of zero connects nothing"),
        (_FILE.replace('"100Gbps"', "100"), "node.nic_rate: 100 has no unit"),
        (_FILE.replace('"pcie"', '"string"'), "use nvswitch, nvlink-mesh or pcie"),
        (_FILE.replace("nics = 1\n", ""), "missing node.nics"),
        ("name =", "not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        _load(tmp_path, text)
    assert message in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ClusterError) as caught:
        load_cluster("dgx-h10")
    assert "did you mean dgx-h100" in str(caught.value)
