"""From a collective to a `Plan`: which links its algorithm loads, and what it costs besides.

In: a group of ranks on a `Topology`, an operation, an algorithm and a protocol. Out: a `Plan`, which both levels of
detail evaluate. Which algorithm and protocol NCCL would choose is the tuner's question (netmodel/tuner.py).
"""

from __future__ import annotations

from netmodel.algorithms.common import Draft, efficiencies, transfer_ns_per_byte
from netmodel.algorithms.group import Group, make_group
from netmodel.algorithms.messages import Messages, draft_messages
from netmodel.algorithms.nvls import draft_nvls
from netmodel.algorithms.ring import draft_pat, draft_ring
from netmodel.algorithms.tree import draft_collnet, draft_nvls_tree, draft_tree
from netmodel.parameters import Engine, Parameters
from netmodel.plan import Plan

__all__ = ["Group", "make_group", "plan_collective", "plan_messages"]


def plan_collective(
    group: Group, parameters: Parameters, operation: str, algorithm: str, protocol: str, channels: int, root: int = 0
) -> Plan:
    """One operation with one algorithm and protocol. `root` is a rank, of broadcast and reduce."""
    engine = parameters.engine(_engine_of(algorithm, protocol))
    if algorithm == "ring":
        draft = draft_ring(group, operation, protocol, engine, root)
    elif algorithm == "tree":
        draft = draft_tree(group, protocol, engine)
    elif algorithm == "pat":
        draft = draft_pat(group, operation, engine)
    elif algorithm == "nvlstree":
        draft = draft_nvls_tree(group, engine)
    elif algorithm == "nvls" and len(group.domains) == 1:
        draft = draft_nvls(group, operation, engine)
    else:
        draft = draft_collnet(group, operation, engine, chain=algorithm == "collnetchain", nvls=algorithm == "nvls")
    return _plan(group, parameters, engine, draft, algorithm, protocol, channels)


def plan_messages(
    group: Group,
    parameters: Parameters,
    messages: Messages,
    protocol: str,
    *,
    pxn: bool,
    channels: int,
    net_channels: int,
) -> Plan:
    """Messages, all at the same time."""
    engine = parameters.engine("ll" if protocol == "ll" else "p2p")
    draft = draft_messages(group, messages, parameters, engine, pxn=pxn, channels=channels, net_channels=net_channels)
    return _plan(group, parameters, engine, draft, "p2p", protocol, channels)


def _engine_of(algorithm: str, protocol: str) -> str:
    return "nvls" if algorithm in ("nvls", "nvlstree") else protocol


def _plan(
    group: Group, parameters: Parameters, engine: Engine, draft: Draft, algorithm: str, protocol: str, channels: int
) -> Plan:
    efficiency = efficiencies(group.topology, engine)
    ns_per_byte = transfer_ns_per_byte(group.topology, draft.flows, efficiency)
    pipelined = protocol == "simple"
    local = 0.0
    if draft.local_share and draft.flows:
        local = parameters.local_step * draft.local_share * _local_ns_per_byte(group, efficiency)
    return Plan(
        algorithm=algorithm,
        protocol=protocol,
        channels=channels,
        flows=draft.flows,
        efficiency=efficiency,
        ns_per_byte=ns_per_byte,
        fixed_ns=engine.launch_ns + (0.0 if pipelined else draft.latency_ns),
        hidden_ns=draft.latency_ns if pipelined else 0.0,
        lag=engine.lag,
        local_ns_per_byte=local,
    )


def _local_ns_per_byte(group: Group, efficiency: object) -> float:
    """What a byte takes over a GPU's own links."""
    del efficiency
    return 1e9 / group.topology.cluster.gpu_link_rate
