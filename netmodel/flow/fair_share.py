"""Max-min fair rates of flows that share links.

In: flows, each with its links, the capacity it takes of each link per unit of its rate, and its rate limit; and the
capacities of the links. Out: one rate per flow, such that no flow can get more without taking from a flow whose rate is
no higher: every flow has reached its limit, or crosses a full link on which no other flow has a higher rate.

Progressive filling: all rates rise at the same pace; a full link stops the flows on it. One round finds all links that
fill up at a lower rate than all their neighbours, because other links can only leave them more capacity. A few rounds
of array operations suffice for thousands of flows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Smaller relative differences count as equal: a different order of summation must not split one bottleneck into two.
_TIE = 1e-12


@dataclass(frozen=True)
class FlowTable:
    """Flows as rows of a sparse matrix: row i has the entries `offsets[i]:offsets[i + 1]`, at least one."""

    offsets: NDArray[np.int64]
    links: NDArray[np.int64]
    amounts: NDArray[np.float64]  # capacity taken per unit of the flow's rate
    limits: NDArray[np.float64]  # per row: its rate limit, or infinity

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self) -> NDArray[np.int64]:
        """The row of every entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def select(self, keep: NDArray[np.bool_]) -> FlowTable:
        """The rows for which `keep` is true."""
        lengths = np.diff(self.offsets)
        entries = np.repeat(keep, lengths)
        return FlowTable(_offsets(lengths[keep]), self.links[entries], self.amounts[entries], self.limits[keep])


def stack(tables: Sequence[FlowTable]) -> FlowTable:
    """The rows of all tables, one table after the other."""
    if not tables:
        return FlowTable(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    return FlowTable(
        _offsets(np.concatenate([np.diff(table.offsets) for table in tables])),
        np.concatenate([table.links for table in tables]),
        np.concatenate([table.amounts for table in tables]),
        np.concatenate([table.limits for table in tables]),
    )


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def fair_rates(flows: FlowTable, capacity: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rate of every flow. A flow of higher weight has smaller amounts; its rate is in larger units."""
    rates = np.zeros(len(flows))
    left = capacity.astype(np.float64)
    level = np.zeros(len(left))
    names = np.arange(len(flows))  # the flows whose rates still rise
    while len(names):
        taken = np.bincount(flows.links, flows.amounts, len(left))
        fills = np.full(len(left), np.inf)  # the rate at which the link is full
        np.divide(left, taken, out=fills, where=taken > 0)
        # Flows that stopped elsewhere only free capacity: a lower value is a rounding error.
        level = np.maximum(level, fills)
        first_full = np.minimum.reduceat(level[flows.links], flows.offsets[:-1])
        reached = np.minimum(first_full, flows.limits)
        rows = flows.rows()
        held_back = reached[rows] < level[flows.links] * (1 - _TIE)
        full = np.bincount(flows.links[held_back], minlength=len(left)) == 0
        stopped_entries = full[flows.links]
        stopped = flows.limits <= first_full
        stopped[rows[stopped_entries]] = True
        rates[names[stopped]] = reached[stopped]
        if stopped.all():
            break
        gone = stopped[rows]
        left -= np.bincount(flows.links[gone], flows.amounts[gone] * reached[rows[gone]], len(left))
        names = names[~stopped]
        flows = flows.select(~stopped)
    return rates
