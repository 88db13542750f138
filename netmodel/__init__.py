"""The network model: a cluster and a collective in, its duration out. Imports nothing of ours but `maya.util`.

cluster/      a cluster's TOML file -> `Cluster`; catalogue/ has the clusters that Maya comes with
topology/     `Cluster` -> `Topology`: the graph of GPUs, NICs, switches and links, and paths in it
collectives/  one collective with the network to itself: NCCL's choice of algorithm, its `Plan`, its duration
              (analytic.py)
flow/         several collectives that share links (network.py)
calibration/  fits a cluster's parameters to measurements of nccl-tests
drawing/      clusters as text and SVG
"""
