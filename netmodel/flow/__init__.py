"""Collectives that share links: each gets a fair share of the bandwidth, and slows down while others run.

network.py     `FlowNetwork`: collectives start and finish in virtual time
flow_group.py  the flows of one collective
demand.py      the bandwidth that a plan needs on every link
fair_share.py  max-min fair rates
link_use.py    the busiest links
"""

from netmodel.flow.network import Finished, FlowNetwork

__all__ = ["Finished", "FlowNetwork"]
