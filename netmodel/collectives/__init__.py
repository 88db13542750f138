"""The duration of a collective that has the network to itself, with the algorithms and protocols of NCCL.

collective.py     `Collective`: one NCCL call of all members
nccl_settings.py  NCCL_* variables
tuner.py          NCCL's choice of algorithm and protocol
algorithms/       ring, tree, NVLS, PAT, send/recv: the schedule of each
plan.py           `Plan`: a schedule with calibrated costs, as flows over links
analytic.py       `AnalyticNetwork`: a collective -> its duration
"""
