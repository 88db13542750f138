"""Clusters and how long a collective takes on them: topology and collective in, time out, importing nothing of ours.

cluster.py reads a cluster's file and build.py makes the graph of it; algorithms/ plans how NCCL carries out a
collective on that graph, and analytic.py says how long it takes with the network to itself.
"""
