"""Clusters and how long a collective takes on them: topology and collective in, time out, importing nothing of ours.

So far only what a cluster is made of (cluster.py); nothing predicts a time yet.
"""
