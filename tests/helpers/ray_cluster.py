"""A Ray cluster of two nodes on this machine, in a process of its own.

In: lines on standard input: "lose" kills the second node; the end of the input ends the cluster. Out: the address of
the cluster on standard output, then "lost".
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

_STORE_BYTES = 100_000_000


def main() -> None:
    node = {"num_cpus": 1, "object_store_memory": _STORE_BYTES}
    cluster = Cluster(
        initialize_head=True, head_node_args={**node, "include_dashboard": False, "env_vars": {"RAY_NODE": "head"}}
    )
    try:
        # With an address of its own: a driver connects to the first node that has its machine's.
        other = cluster.add_node(**node, node_ip_address="127.0.0.2", env_vars={"RAY_NODE": "other"})
        print(cluster.address, flush=True)
        for line in sys.stdin:
            assert line.strip() == "lose"
            cluster.remove_node(other, allow_graceful=False)
            print("lost", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
