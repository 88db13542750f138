"""Cluster files for tests: one small cluster of every kind of fabric, as a user would write it."""

from __future__ import annotations

from pathlib import Path

from netmodel.cluster import Cluster, load_cluster

_HEAD = 'name = "made up"\nsources = "made up"\ngpu = "h100"\n'
_NODE = """
[node]
gpus = 4
gpu_link = "nvswitch"
gpu_link_rate = "450GB/s"
nics = 2
nic_rate = "400Gbps"
"""
_FABRICS = {
    "default": "",
    "two-levels": 'kind = "fat-tree"\nlevels = 2\nradix = 8\n',
    "oversubscribed": 'kind = "fat-tree"\nlevels = 2\nradix = 12\noversubscription = 2\n',
    "three-levels": 'kind = "fat-tree"\nlevels = 3\nradix = 6\nrouting = "d-mod-k"\n',
    "adaptive": 'kind = "fat-tree"\nlevels = 2\nradix = 8\nrouting = "adaptive"\n',
    "rails": 'kind = "rail-optimised"\nradix = 8\n',
    "rails-that-never-meet": 'kind = "rail-optimised"\nlevels = 1\n',
    "dragonfly": 'kind = "dragonfly"\ngroups = 4\nrouters_per_group = 3\nnodes_per_router = 2\n',
    "torus": 'kind = "torus"\ndimensions = [3, 4]\n',
    "cube": 'kind = "torus"\ndimensions = [2, 2, 3]\nlinks = 2\nnodes_per_router = 2\n',
    "ring": 'kind = "ring"\nrouting = "d-mod-k"\n',
    "graph": """
kind = "graph"
switches = ["left", "right", "over", "under"]
links = [
    { between = ["left", "over"], cables = 2 },
    { between = ["over", "right"], cables = 2 },
    { between = ["left", "under"], rate = "100Gbps", latency = "2us" },
    { between = ["under", "right"], rate = "100Gbps" },
]
attach = [{ switch = "left", nodes = "0-5" }, { switch = "right", nodes = ["6-10", 11] }]
""",
}
FABRICS = tuple(_FABRICS)


def text_of(fabric: str, *, node: str = _NODE, more: str = "") -> str:
    """A whole file with one of FABRICS, or with the lines of a [fabric] of its own."""
    lines = _FABRICS.get(fabric, fabric)
    return _HEAD + node + (f"[fabric]\n{lines}" if lines else "") + more


def load_text(folder: Path, text: str) -> Cluster:
    """The cluster in a file of this text."""
    file = folder / "mine.toml"
    file.write_text(text)
    return load_cluster(str(file))
