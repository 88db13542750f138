"""Max-min fair rates of flows that share links.

In: flows, each with the links it uses, how much of each it takes per unit of its rate, and the most it can use; and the
links' capacities. Out: one rate per flow, such that no flow can get more without taking from one that has no more than
it: every flow has all it can use, or a link that is full and on which no other flow has a higher rate.

Progressive filling: all rates rise together; a link that is full stops the flows on it. Links that are full at a
lower rate than all their neighbours are found at once instead of one by one: what other links do can only leave them
more, so a few rounds of array operations do for thousands of flows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Levels that differ by less are the same: sums in another order must not make two bottlenecks out of one.
_TIE = 1e-12


@dataclass(frozen=True)
class FlowTable:
    """Flows as rows of a sparse matrix: row i has the entries `offsets[i]:offsets[i + 1]`, at least one."""

    offsets: NDArray[np.int64]
    links: NDArray[np.int64]
    amounts: NDArray[np.float64]  # capacity taken per unit of the flow's rate
    limits: NDArray[np.float64]  # of a row: the highest rate that it can use, or infinity

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
    """The rate of every flow. A flow of higher weight is one with smaller amounts, its rate counted in larger units."""
    rates = np.zeros(len(flows))
    left = capacity.astype(np.float64)
    level = np.zeros(len(left))
    names = np.arange(len(flows))  # of the flows still rising
    while len(names):
        taken = np.bincount(flows.links, flows.amounts, len(left))
        fills = np.full(len(left), np.inf)  # the rate at which the link is full
        np.divide(left, taken, out=fills, where=taken > 0)
        level = np.maximum(level, fills)  # flows that stopped elsewhere only leave more: what is below is rounding
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
