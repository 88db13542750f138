"""A cluster as its TOML file describes it: nodes, links, network fabric, calibrated parameters, faults.

cluster.py     `Cluster`, and reading one from the catalogue or from a file of the user's own
keys.py        how the value of a key is read; `ClusterError`
node_keys.py   the keys of [node]
parameters.py  the keys of [calibration]: what NCCL reaches on the cluster
fabrics/       the keys of [fabric], and how each kind of network is wired
faults.py      slow or broken links
catalogue/     the clusters that Maya comes with
"""

from netmodel.cluster.cluster import GPU_LINKS, Cluster, cluster_names, cluster_path, load_cluster, with_faults
from netmodel.cluster.keys import ClusterError

__all__ = ["GPU_LINKS", "Cluster", "ClusterError", "cluster_names", "cluster_path", "load_cluster", "with_faults"]
