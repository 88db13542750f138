"""The next hops of switches: from one switch towards another, the neighbours that lead nearer, and the cables to them.

In: the tables of a fabric (routing.py). Out: for pairs of switches, numbers under which `NextHops` keeps their ways and
cables. They are found once for each pair: the same few pairs serve the paths of all groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

_LARGEST_TABLE = 1 << 23  # pairs of switches whose numbers are kept in an array
_MOST_CABLES = 1 << 22  # that are kept


@dataclass(frozen=True)
class FabricTables:
    """Every switch's neighbours and the links to each: those to neighbour p of switch s start at links[first[s, p]]."""

    neighbours: Int32s  # [switch, place]; padded with the switch itself
    cables: Int32s  # [switch, place]: working parallel links; 0 in the padding
    costs: NDArray[np.int16]  # [switch, place]: cost of one of these links
    first: Int32s  # [switch, place] -> into `links`
    links: Int32s
    distance: NDArray[np.int16]  # [switch, switch]: least cost


class NextHops:
    """Ways from switch to switch. A way is a neighbour that leads nearer; it has one or several parallel cables."""

    def __init__(self, tables: FabricTables) -> None:
        self._tables = tables
        self._switches = len(tables.distance)
        self._is_kept = self._switches**2 <= _LARGEST_TABLE  # else a pair is found anew in each call
        self._clear()

    def _clear(self) -> None:
        self._number = np.full(self._switches**2 if self._is_kept else 0, -1, np.int32)  # [pair]
        # [pair]: its first way, and how many it has; the first cable of all its ways, and how many they have
        self._first_way, self._ways, self._first_cable, self._cables = (_Column() for _ in range(4))
        self._first_of_way, self._of_way = _Column(), _Column()  # [way]: its first cable, and how many it has
        self._link, self._neighbour = _Column(), _Column()  # [cable]

    def by_hash(self, pair: Int64s, hashed: NDArray[np.uint64]) -> tuple[Int64s, Int64s]:
        """The link and the next switch that a hash chooses among all cables, for pairs given by their numbers."""
        chosen = (hashed % self._cables.values[pair].astype(np.uint64)).astype(np.int64)
        return self._taken(self._first_cable.values[pair] + chosen)

    def by_destination(self, pair: Int64s, quotient: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """The link and the next switch that d-mod-k chooses, and what remains of the quotient."""
        ways = self._ways.values[pair]
        way = self._first_way.values[pair] + quotient % ways
        quotient = quotient // ways
        return *self._taken(self._first_of_way.values[way] + quotient % self._of_way.values[way]), quotient

    def _taken(self, cable: Int64s) -> tuple[Int64s, Int64s]:
        return self._link.values[cable], self._neighbour.values[cable]

    def numbers(self, here: Int64s, there: Int64s) -> Int64s:
        """The numbers of pairs of different switches."""
        pairs = here * self._switches + there
        if not self._is_kept:
            self._clear()
            distinct, inverse = np.unique(pairs, return_inverse=True)
            self._add(distinct)
            return np.asarray(inverse.reshape(-1), np.int64)
        if (self._number[pairs] < 0).any():
            if self._link.length > _MOST_CABLES:
                self._clear()
            unknown = np.unique(pairs[self._number[pairs] < 0])
            self._number[unknown] = np.arange(len(unknown)) + self._ways.length
            self._add(unknown)
        return np.asarray(self._number[pairs], np.int64)

    def _add(self, pairs: Int64s) -> None:
        tables = self._tables
        here, there = np.divmod(pairs, self._switches)
        left_over = tables.distance[tables.neighbours[here], there[:, None]] + tables.costs[here]
        nearer = left_over == tables.distance[here, there][:, None]
        pair, place = np.nonzero(nearer & (tables.cables[here] > 0))
        neighbour, first = tables.neighbours[here[pair], place], tables.first[here[pair], place]
        of_way = tables.cables[here[pair], place].astype(np.int64)
        ways = np.bincount(pair, minlength=len(pairs))
        cables = np.bincount(pair, of_way, len(pairs)).astype(np.int64)
        way = np.repeat(np.arange(len(of_way)), of_way)
        cable = np.arange(len(way)) - (np.cumsum(of_way) - of_way)[way]
        self._first_way.extend(self._of_way.length + np.cumsum(ways) - ways)
        self._ways.extend(ways)
        self._first_cable.extend(self._link.length + np.cumsum(cables) - cables)
        self._cables.extend(cables)
        self._first_of_way.extend(self._link.length + np.cumsum(of_way) - of_way)
        self._of_way.extend(of_way)
        self._link.extend(tables.links[first[way] + cable])
        self._neighbour.extend(neighbour[way])


class _Column:
    """An array that grows."""

    def __init__(self) -> None:
        self.length = 0
        self._buffer = np.zeros(1024, np.int64)

    @property
    def values(self) -> Int64s:
        return self._buffer[: self.length]

    def extend(self, values: NDArray[np.integer[Any]]) -> None:
        needed = self.length + len(values)
        if needed > len(self._buffer):
            grown = np.zeros(max(needed, 2 * len(self._buffer)), np.int64)
            grown[: self.length] = self.values
            self._buffer = grown
        self._buffer[self.length : needed] = values
        self.length = needed
