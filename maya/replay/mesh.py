"""The mesh that the process groups of a job form: for each rank its coordinates.

In: the members of all process groups. Out: a `Mesh`. The place of a rank in the groups of one kind (its k-th group) is
a coordinate. Groups that combine dimensions (data times context parallel, the whole world) add nothing to the
coordinates that the smaller groups give, or only what these leave open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from maya.util.arrays import Integers

_DEPENDS, _UNKNOWN, _SYMMETRIC = 1e6, 1e3, 1.0  # weights of dimensions


@dataclass(frozen=True, eq=False)
class Mesh:
    """The coordinates of all ranks."""

    coordinates: Integers  # a row for each rank, a column for each dimension
    sizes: tuple[int, ...]  # of the dimensions

    def weights(self, digests: Mapping[int, bytes]) -> Integers:
        """How much each dimension matters, by the traces of some ranks: most if the traces of two ranks differ that
        differ in this dimension only, least if those of all such ranks agree."""
        ranks = list(digests)
        rows = self.coordinates[ranks]
        weights = np.full(len(self.sizes), _UNKNOWN)
        for one in range(len(ranks)):
            differs = rows[one + 1 :] != rows[one]
            for other in np.flatnonzero(differs.sum(axis=1) == 1).tolist():
                dimension = int(np.argmax(differs[other]))
                if digests[ranks[one]] != digests[ranks[one + 1 + other]]:
                    weights[dimension] = _DEPENDS
                elif weights[dimension] == _UNKNOWN:
                    weights[dimension] = _SYMMETRIC
        return weights


def mesh_of(world_size: int, groups: Sequence[Sequence[int]]) -> Mesh:
    """The mesh of a job's process groups; without any, its ranks are in one row."""
    columns = _places(world_size, groups)
    columns.append((world_size, np.arange(world_size)))
    known = np.zeros(world_size, dtype=np.int64)  # equal for ranks with equal coordinates so far
    kept: list[Integers] = []
    for _, places in sorted(columns, key=lambda column: column[0]):
        residual = _order_within(known, places)
        if residual.any():
            kept.append(residual)
            _, known = np.unique(np.stack((known, residual)), axis=1, return_inverse=True)
            known = known.reshape(-1)
    coordinates = np.stack(kept, axis=1) if kept else np.zeros((world_size, 0), dtype=np.int64)
    return Mesh(coordinates, tuple((coordinates.max(axis=0, initial=0) + 1).tolist()))


def _places(world_size: int, groups: Sequence[Sequence[int]]) -> list[tuple[int, Integers]]:
    """For each k, the places of all ranks in their k-th group, and the size of the largest of these groups."""
    count = np.zeros(world_size, dtype=np.int64)  # groups of each rank so far
    columns: list[tuple[int, Integers]] = []
    for members in groups:
        ranks = np.array(members, dtype=np.int64)
        for ordinal in np.unique(count[ranks]).tolist():
            while len(columns) <= ordinal:
                columns.append((0, np.zeros(world_size, dtype=np.int64)))
            mine = count[ranks] == ordinal
            size, places = columns[ordinal]
            places[ranks[mine]] = np.flatnonzero(mine)
            columns[ordinal] = max(size, len(ranks)), places
        count[ranks] += 1
    return columns


def _order_within(known: Integers, places: Integers) -> Integers:
    """For each rank, the number of distinct smaller places among the ranks with the same known coordinates."""
    order = np.lexsort((places, known))
    ordered, group = places[order], known[order]
    starts = np.append(True, group[1:] != group[:-1])
    changes = np.append(True, ordered[1:] != ordered[:-1]) | starts
    steps = np.cumsum(changes)
    first = np.maximum.accumulate(np.where(starts, steps, 0))
    result = np.empty(len(places), dtype=np.int64)
    result[order] = steps - first
    return result
