"""Max-min fair rates: the definition, on any flows and links."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from netmodel.flow.fair_share import FlowTable, fair_rates, stack

_AMOUNTS = st.sampled_from([0.25, 1.0, 1.75, 3.0])
_FLOWS = st.lists(st.dictionaries(st.integers(0, 5), _AMOUNTS, min_size=1), min_size=1, max_size=12)
_CAPACITIES = st.lists(st.sampled_from([1.0, 2.5, 10.0, 1e4]), min_size=6, max_size=6).map(np.array)


def _table(flows: list[dict[int, float]], limits: list[float] | None = None) -> FlowTable:
    return FlowTable(
        np.cumsum([0, *(len(flow) for flow in flows)]),
        np.array([link for flow in flows for link in flow]),
        np.array([amount for flow in flows for amount in flow.values()]),
        np.full(len(flows), np.inf) if limits is None else np.array(limits),
    )


@given(_FLOWS, _CAPACITIES, st.data())
def test_every_flow_is_satisfied_or_bottlenecked(
    flows: list[dict[int, float]], capacity: np.ndarray[tuple[int], np.dtype[np.float64]], data: st.DataObject
) -> None:
    limits = [data.draw(st.sampled_from([0.1, 1.0, np.inf, np.inf])) for _ in flows]
    rates = fair_rates(_table(flows, limits), capacity)
    used = np.zeros(len(capacity))
    for flow, rate in zip(flows, rates, strict=True):
        for link, amount in flow.items():
            used[link] += rate * amount
    assert (used <= capacity * (1 + 1e-9)).all()
    full = used >= capacity * (1 - 1e-9)
    for flow, rate, limit in zip(flows, rates, limits, strict=True):
        assert rate <= limit
        highest = {link: max(r for f, r in zip(flows, rates, strict=True) if link in f) for link in flow}
        assert rate == limit or any(full[link] and rate >= highest[link] * (1 - 1e-9) for link in flow)


@given(_FLOWS, _CAPACITIES, st.randoms(use_true_random=False))
def test_order_does_not_matter(
    flows: list[dict[int, float]], capacity: np.ndarray[tuple[int], np.dtype[np.float64]], random: Random
) -> None:
    order = list(range(len(flows)))
    random.shuffle(order)
    rates = fair_rates(_table(flows), capacity)
    shuffled = fair_rates(_table([flows[place] for place in order]), capacity)
    np.testing.assert_allclose(shuffled, rates[order], rtol=1e-9)


@given(_FLOWS, _CAPACITIES)
def test_equal_flows_are_one_flow_that_takes_as_much(
    flows: list[dict[int, float]], capacity: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> None:
    twice = fair_rates(stack([_table(flows), _table(flows)]), capacity)
    merged = fair_rates(_table([{link: 2 * amount for link, amount in flow.items()} for flow in flows]), capacity)
    np.testing.assert_allclose(twice, np.concatenate([merged, merged]), rtol=1e-9)


def test_a_flow_of_small_amounts_beside_one_that_fills_the_link() -> None:
    rates = fair_rates(_table([{0: 1.0, 1: 1.0}, {1: 1e-9}, {1: 1.0}]), np.array([1.0, 3.0]))
    np.testing.assert_allclose(rates, [1.0, 2.0, 2.0], rtol=1e-6)
