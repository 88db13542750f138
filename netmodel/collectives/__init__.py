"""How long a collective takes that has the network to itself, with the algorithms and protocols of NCCL.

collective.py     `Collective`: what NCCL is asked to do
nccl_settings.py  NCCL_* variables
tuner.py          which algorithm and protocol NCCL chooses
algorithms/       ring, tree, NVLS, PAT, send/recv: the traffic of each
plan.py           `Plan`: that traffic, as flows over links
analytic.py       `AnalyticNetwork`: a collective -> its time
"""
