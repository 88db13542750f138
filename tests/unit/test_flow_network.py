"""The flow level on networks small enough to check by hand: 1 byte per ns is 1 GB/s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel.cluster import load_cluster
from netmodel.collectives.collective import Collective
from netmodel.collectives.plan import Flow, Plan
from netmodel.flow import Finished, FlowNetwork
from netmodel.flow.demand import Links, demand_of
from netmodel.flow.fair_share import fair_rates, stack
from netmodel.topology import Topology, build_topology
from netmodel.topology.links import LinkKind
from netmodel.topology.topology import Vertex

GB = 10**9
_EFFICIENCY = np.ones(len(LinkKind))


def _topology(rates: Sequence[int]) -> Topology:
    """Links that have nothing to do with each other, each from a vertex of its own to the next."""
    count = len(rates)
    return replace(
        build_topology(load_cluster("ethernet-25g"), 1),
        vertices=tuple(Vertex("gpu", f"gpu{number}", 0) for number in range(count + 1)),
        source=np.arange(count, dtype=np.int32),
        target=np.arange(1, count + 1, dtype=np.int32),
        kind=np.full(count, LinkKind.NETWORK, np.int8),
        rate=np.array(rates, np.int64),
        latency=np.zeros(count, np.int64),
    )


def _plan(
    *flows: dict[int, float], latency: float = 0.0, efficiency: float = 1.0, channels: int = 1, limit: float = math.inf
) -> Plan:
    return Plan(
        "ring",
        "simple",
        channels,
        tuple(Flow(np.array([*flow], np.int32), np.array([*flow.values()]), limit) for flow in flows),
        _EFFICIENCY * efficiency,
        ns_per_byte=0.0,  # once the links are known
        fixed_ns=latency,
        hidden_ns=0.0,
        lag=0.0,
    )


class _Plans:
    """A planner for collectives that name their plan by their root."""

    def __init__(self, *plans: Plan) -> None:
        self._plans = plans

    def plan(self, collective: Collective) -> Plan:
        return self._plans[collective.root]


def _network(rates: Sequence[int], *plans: Plan, shortcut: bool = True) -> FlowNetwork:
    return FlowNetwork(_topology(rates), planner=_Plans(*(_priced(plan, rates) for plan in plans)), shortcut=shortcut)


def _priced(plan: Plan, rates: Sequence[int]) -> Plan:
    taken = np.zeros(len(rates))
    for flow in plan.flows:
        taken[flow.links] += flow.loads
    slowest_link = (taken / rates).max() / plan.efficiency[LinkKind.NETWORK]
    slowest_flow = max((1 / flow.limit for flow in plan.flows), default=0.0)
    return replace(plan, ns_per_byte=1e9 * max(slowest_link, slowest_flow))


def _run(plan: int, size: int) -> Collective:
    return Collective("all_reduce", size, (0, 1), root=plan)


def _ends(finished: list[Finished]) -> list[int]:
    return [one.end_ns for one in finished]


@pytest.mark.parametrize("shortcut", [True, False])
def test_alone_a_collective_takes_its_latency_and_the_time_of_its_busiest_link(shortcut: bool) -> None:
    plan = _plan({0: 2.0, 1: 1.0}, {1: 0.5}, latency=100.0)
    network = _network([GB, GB], plan, shortcut=shortcut)
    assert _ends(network.simulate([(7, _run(0, 1000))])) == [7 + 100 + 2000]


def test_two_share_a_link_and_the_one_that_ends_gives_its_half_back() -> None:
    plan = _plan({0: 1.0})
    network = _network([GB], plan)
    # Half each until the short one has moved its 1000 bytes; then the other has the link to itself.
    assert _ends(network.simulate([(0, _run(0, 1000)), (0, _run(0, 3000))])) == [2000, 4000]


def test_a_later_flow_shares_the_link_evenly() -> None:
    network = _network([GB], _plan({0: 1.0}))
    assert _ends(network.simulate([(0, _run(0, 1000)), (600, _run(0, 1000))])) == [1400, 2000]


def test_latency_passes_before_the_first_byte_so_others_have_the_link_until_then() -> None:
    network = _network([GB], _plan({0: 1.0}), _plan({0: 1.0}, latency=500.0))
    assert _ends(network.simulate([(0, _run(0, 400)), (0, _run(1, 400))])) == [400, 900]


def test_bandwidth_that_one_flow_cannot_use_goes_to_the_others() -> None:
    # Of link 1 (4 GB/s) the second gets 1 GB/s, because link 0 has no more; the first takes the other 3.
    network = _network([GB, 4 * GB], _plan({1: 1.0}), _plan({0: 1.0, 1: 1.0}))
    assert _ends(network.simulate([(0, _run(0, 3000)), (0, _run(1, 1000))])) == [1000, 1000]


def test_flows_of_one_collective_end_apart_and_leave_their_links_to_others() -> None:
    # The first collective leaves link 1 after 1000 ns, long before its flow on the slow link 0 ends.
    network = _network([GB // 10, 2 * GB], _plan({0: 1.0}, {1: 1.0}), _plan({1: 1.0}))
    assert _ends(network.simulate([(0, _run(0, 1000)), (0, _run(1, 3000))])) == [10_000, 2000]


def test_a_coupled_flow_takes_from_every_link_what_its_slowest_allows() -> None:
    # A ring over a slow link: its other links have room for a second collective.
    network = _network([GB // 2, GB], _plan({0: 1.0, 1: 1.0}), _plan({1: 1.0}))
    assert _ends(network.simulate([(0, _run(0, 1000)), (0, _run(1, 500))])) == [2000, 1000]


def test_protocol_overhead_is_lost_to_all_flows() -> None:
    alone = _network([GB], _plan({0: 1.0}, efficiency=0.5)).simulate([(0, _run(0, 1000))])
    assert _ends(alone) == [2000]
    both = _network([GB], _plan({0: 1.0}, efficiency=0.5), _plan({0: 1.0}))
    assert _ends(both.simulate([(0, _run(0, 1000)), (0, _run(1, 2000))])) == [4000, 4000]


def test_every_channel_counts_once() -> None:
    # Two channels against one: two thirds of the link against one third.
    network = _network([3 * GB], _plan({0: 0.5}, {0: 0.5}, channels=2), _plan({0: 1.0}))
    assert _ends(network.simulate([(0, _run(0, 2000)), (0, _run(1, 1000))])) == [1000, 1000]


def test_channels_that_cannot_use_their_share_leave_it_to_others() -> None:
    limited = _plan({0: 1.0}, limit=0.25 * GB)
    assert _ends(_network([GB], limited).simulate([(0, _run(0, 500))])) == [2000]
    network = _network([GB], limited, _plan({0: 1.0}))
    assert _ends(network.simulate([(0, _run(0, 500)), (0, _run(1, 1500))])) == [2000, 2000]


def test_a_rank_with_many_sends_weighs_as_much_as_its_channels() -> None:
    # Four messages on two channels against one on one.
    messages = _plan({0: 0.25}, {0: 0.25}, {0: 0.25}, {0: 0.25}, channels=2)
    network = _network([3 * GB], messages, _plan({0: 1.0}))
    assert _ends(network.simulate([(0, _run(0, 2000)), (0, _run(1, 1000))])) == [1000, 1000]


def test_groups_that_share_nothing_do_not_touch_each_other() -> None:
    network = _network([GB, GB], _plan({0: 1.0}), _plan({1: 1.0}))
    assert _ends(network.simulate([(0, _run(0, 1000)), (0, _run(1, 1000))])) == [1000, 1000]


def test_a_collective_without_bytes_takes_its_latency() -> None:
    network = _network([GB], _plan({0: 1.0}, latency=30.0), _plan(latency=20.0))
    assert _ends(network.simulate([(5, _run(0, 0)), (5, _run(1, 1000))])) == [35, 25]


def test_step_by_step_gives_what_the_whole_run_gives() -> None:
    plans = (_plan({0: 1.0, 1: 0.5}, {1: 1.0}), _plan({0: 1.0}, latency=111.0), _plan({1: 2.0}, {0: 0.3}))
    starts = [(0, _run(0, 5000)), (400, _run(1, 3000)), (401, _run(2, 700)), (9000, _run(1, 10))]
    whole = _network([GB, 3 * GB], *plans).simulate(starts)
    network = _network([GB, 3 * GB], *plans)
    finished: list[Finished] = []
    for at, collective in starts:
        while (time := network.next_event()) is not None and time < at:
            finished += network.advance(time)
        finished += network.advance(at)
        network.start(at, collective)
    for at in range(network.now, 30_000, 7):  # at times at which nothing happens
        finished += network.advance(at)
    assert network.next_event() is None
    times = [
        (one.number, one.start_ns, one.end_ns, one.alone_ns) for one in sorted(finished, key=lambda one: one.number)
    ]
    assert times == [(one.number, one.start_ns, one.end_ns, one.alone_ns) for one in whole]
    assert [one.end_ns for one in finished] == sorted(one.end_ns for one in finished)


def test_time_does_not_go_back() -> None:
    network = _network([GB], _plan({0: 1.0}))
    network.advance(100)
    with pytest.raises(ValueError, match="starts at 99 ns, but the network is at 100 ns already"):
        network.start(99, _run(0, 1))
    with pytest.raises(ValueError, match="cannot go back to 99 ns"):
        network.advance(99)


def test_slowing_one_down_can_speed_a_third_up() -> None:
    """As on real networks: a flow that one link slows leaves more of another, but never more than all of it."""
    through, beside, newcomer = _plan({0: 1.0, 1: 1.0}), _plan({1: 1.0}), _plan({0: 1.0}, channels=2)
    starts = [(0, _run(0, 1000)), (0, _run(1, 1000)), (0, _run(2, 4000))]
    before = _network([GB, GB], through, beside, newcomer).simulate(starts[:2])
    after = _network([GB, GB], through, beside, newcomer).simulate(starts)
    assert _ends(before) == [2000, 2000]
    assert _ends(after) == [3000, 1500, 5000]
    assert all(one.ns >= one.alone_ns for one in after)


_FLOW = st.dictionaries(st.integers(0, 7), st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=3)
_PLAN = st.builds(
    lambda flows, latency, limit, channels: _plan(*flows, latency=latency, limit=limit, channels=channels),
    st.lists(_FLOW, min_size=1, max_size=3),
    st.sampled_from([0.0, 10.0, 700.0]),
    st.sampled_from([math.inf, math.inf, 0.6 * GB]),
    st.integers(1, 3),
)
_STARTS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3), st.integers(0, 4000)), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(st.lists(_PLAN, min_size=4, max_size=4), _STARTS, st.booleans())
def test_groups_and_shortcuts_change_nothing(
    plans: list[Plan], starts: list[tuple[int, int, int]], shortcut: bool
) -> None:
    rates = [GB, 2 * GB, GB // 2, GB, 3 * GB, GB, GB, 4 * GB]
    network = _network(rates, *plans, shortcut=shortcut)
    finished = network.simulate([(at, _run(plan, size)) for at, plan, size in starts])
    expected = _simulate_plainly(rates, [_priced(plan, rates) for plan in plans], starts)
    for one, end in zip(finished, expected, strict=True):
        assert one.end_ns == pytest.approx(end, abs=2 + len(starts) * 6)  # each event is rounded to a nanosecond


def _simulate_plainly(rates: list[int], plans: list[Plan], starts: list[tuple[int, int, int]]) -> list[float]:
    """All flows in one list, all rates anew at every event, time as it comes."""
    links = Links.of(_topology(rates))
    waiting = [(at + plans[plan].overhead_ns(size), number) for number, (at, plan, size) in enumerate(starts)]
    waiting.sort(reverse=True)
    flows: list[list[Any]] = []  # number, demand, row, bytes left
    ends = [0.0] * len(starts)
    now = 0.0
    while waiting or flows:
        speeds: list[float] = []
        if flows:
            rows = [np.arange(len(flow[1].table)) == flow[2] for flow in flows]
            table = stack([flow[1].table.select(row) for flow, row in zip(flows, rows, strict=True)])
            fair = fair_rates(table, links.bytes_per_ns)
            speeds = [rate * flow[1].weight for rate, flow in zip(fair, flows, strict=True)]
        next_end = min((now + flow[3] / speed for flow, speed in zip(flows, speeds, strict=True)), default=math.inf)
        time = min(next_end, waiting[-1][0] if waiting else math.inf)
        for flow, speed in zip(flows, speeds, strict=True):
            flow[3] -= speed * (time - now)
            if flow[3] <= speed * 1e-6:
                ends[flow[0]] = time
        flows = [flow for flow, speed in zip(flows, speeds, strict=True) if flow[3] > speed * 1e-6]
        now = time
        while waiting and waiting[-1][0] <= now:
            number = waiting.pop()[1]
            ends[number] = now
            demand = demand_of(plans[starts[number][1]], links)
            if starts[number][2]:
                flows += [[number, demand, row, float(starts[number][2])] for row in range(len(demand.table))]
    return ends
