"""The mesh that the process groups of a job form: for each rank its coordinates.

In: the members of all process groups. Out: a `Mesh`. The place of a rank in the groups of one kind is a coordinate.
Groups are of one kind if torch describes them with the same words, or else if they are the k-th ones of their members.
Groups that combine dimensions (data times context parallel, the whole world) add nothing to the coordinates that the
smaller groups give, or only what these leave open; so do groups that not every rank has one of (the embeddings of the
first and the last stage). A dimension has the name that torch's groups have in common, if any: "tp" for the groups of a
DeviceMesh that torch calls mesh_tp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat

import numpy as np
from numpy.typing import NDArray

from maya.replay.mesh_blocks import MeshBlock
from maya.util.arrays import Integers

_MOST_BLOCKS = 3  # named in a text
_UNNAMED = ("undefined", "default_pg")  # descriptions that torch gives to groups without one
_DEPENDS, _SOMEWHERE, UNKNOWN, _SYMMETRIC = 1e6, 1e5, 1e3, 1.0  # weights of dimensions


@dataclass(frozen=True, eq=False)
class Mesh:
    """The coordinates of all ranks."""

    coordinates: Integers  # a row for each rank, a column for each dimension
    sizes: tuple[int, ...]  # of the dimensions
    names: tuple[str, ...]  # of the dimensions; empty where torch does not know one

    def __str__(self) -> str:
        """As "pp 4 x dp 32 x tp 8", the dimension with the largest stride first."""
        parts = [f"{name} {size}".strip() for name, size in zip(self.names, self.sizes, strict=True)]
        return " x ".join(parts[dimension] for dimension in self._by_stride()) or "1"

    def block_text(self, blocks: Sequence[MeshBlock]) -> str:
        """The places of blocks, as "pp 3 of 4", or "all ranks"."""
        if any(all(map(self._is_whole, self._ranges(block))) for block in blocks):
            return "all ranks"
        return " or ".join(self._place_text(block) for block in blocks[:_MOST_BLOCKS]) + (
            f" or {len(blocks) - _MOST_BLOCKS} more places" if len(blocks) > _MOST_BLOCKS else ""
        )

    def _place_text(self, block: MeshBlock) -> str:
        texts = []
        for dimension in self._by_stride():
            first, last = block.first[dimension], block.last[dimension]
            if not self._is_whole((dimension, first, last)):
                indices = str(first) if first == last else f"{first}-{last}"
                name = self.names[dimension] or f"dimension {dimension + 1}"
                texts.append(f"{name} {indices} of {self.sizes[dimension]}")
        return ", ".join(texts)

    def _ranges(self, block: MeshBlock) -> list[tuple[int, int, int]]:
        return [(dimension, block.first[dimension], block.last[dimension]) for dimension in range(len(self.sizes))]

    def _is_whole(self, indices: tuple[int, int, int]) -> bool:
        dimension, first, last = indices
        return first == 0 and last == self.sizes[dimension] - 1

    def _by_stride(self) -> list[int]:
        """The dimensions, the one with the largest distance between neighbouring ranks first."""
        strides = [int(np.argmax(self.coordinates[:, each] > 0)) for each in range(len(self.sizes))]
        return sorted(range(len(self.sizes)), key=lambda each: -strides[each])

    def weights(self, digests: Mapping[int, bytes], peers: Collection[int] = ()) -> NDArray[np.float64]:
        """How much each dimension matters, by the traces of some ranks: most if the traces of all pairs differ that
        differ in this dimension only, less if only some do, least if none does. A rank 0 that is like no other may log
        or save: its differences count only along a dimension of send/recv. `peers`: the ranks that it sends to or
        receives from."""
        ranks = list(digests)
        rows = self.coordinates[ranks]
        is_chain = self._differs_along(peers)
        logs = list(digests.values()).count(digests.get(0, b"")) == 1
        alike, unlike = np.zeros(len(self.sizes), dtype=np.int64), np.zeros(len(self.sizes), dtype=np.int64)
        for one in range(len(ranks)):
            differs = rows[one + 1 :] != rows[one]
            for other in np.flatnonzero(differs.sum(axis=1) == 1).tolist():
                dimension = int(np.argmax(differs[other]))
                pair = ranks[one], ranks[one + 1 + other]
                is_odd = logs and 0 in pair and not is_chain[dimension]
                if digests[pair[0]] == digests[pair[1]] or is_odd:
                    alike[dimension] += 1
                else:
                    unlike[dimension] += 1
        weights = np.where(alike > 0, _SYMMETRIC, UNKNOWN)
        weights = np.where(unlike > 0, np.where(alike > 0, _SOMEWHERE, _DEPENDS), weights)
        # Among equal weights the largest dimension, which is data parallelism in most jobs, matters least.
        found: NDArray[np.float64] = weights * (1 + 1 / np.array(self.sizes))
        return found

    def _differs_along(self, peers: Collection[int]) -> NDArray[np.bool_]:
        """The dimension along which rank 0 exchanges with others; none if it exchanges with all kinds of ranks, as in a
        gather, or with itself, as in an all-to-all."""
        differs = self.coordinates[sorted(peers)] != self.coordinates[0]
        along: NDArray[np.bool_] = differs.any(axis=0)
        if not (differs.sum(axis=1) == 1).all() or along.sum() != 1:
            along[:] = False
        return along


def mesh_of(world_size: int, groups: Sequence[Sequence[int]], descriptions: Sequence[str] = ()) -> Mesh:
    """The mesh of a job's process groups; without any, its ranks are in one row. `descriptions`: torch's, for each
    group."""
    columns = _places(world_size, groups, descriptions)
    columns.append(_Column(world_size, np.arange(world_size), set(), world_size))
    names: list[str] = []
    known = np.zeros(world_size, dtype=np.int64)  # equal for ranks with equal coordinates so far
    kept: list[Integers] = []
    for column in sorted(columns, key=lambda column: (column.size == world_size, column.is_partial, column.size)):
        residual = _order_within(known, column.places)
        if residual.any():
            kept.append(residual)
            names.append(_name(column.descriptions) if column.size < world_size else "")
            _, known = np.unique(np.stack((known, residual)), axis=1, return_inverse=True)
            known = known.reshape(-1)
    coordinates = np.stack(kept, axis=1) if kept else np.zeros((world_size, 0), dtype=np.int64)
    return Mesh(coordinates, tuple((coordinates.max(axis=0, initial=0) + 1).tolist()), tuple(names))


@dataclass
class _Column:
    """The groups of one kind."""

    size: int  # of the largest one
    places: Integers  # of each rank in its group
    descriptions: set[str]
    ranks: int  # that have one

    @property
    def is_partial(self) -> bool:
        return self.ranks < len(self.places)


def _places(world_size: int, groups: Sequence[Sequence[int]], descriptions: Sequence[str]) -> list[_Column]:
    """A column for each kind of groups."""
    described = list(islice(chain(map(str, descriptions), repeat("")), len(groups)))
    times = Counter(described)
    count: dict[str, Integers] = {}  # for each description, the groups of each rank so far
    columns: dict[tuple[str, int], _Column] = {}
    for members, description in zip(groups, described, strict=True):
        ranks = np.array(members, dtype=np.int64)
        # A description that only one group has says nothing about others.
        name = description if times[description] > 1 and description not in _UNNAMED else ""
        before = count.setdefault(name, np.zeros(world_size, dtype=np.int64))
        for ordinal in np.unique(before[ranks]).tolist():
            new = _Column(0, np.zeros(world_size, dtype=np.int64), set(), 0)
            column = columns.setdefault((name, ordinal), new)
            mine = before[ranks] == ordinal
            column.places[ranks[mine]] = np.flatnonzero(mine)
            column.size = max(column.size, len(ranks))
            column.ranks += int(mine.sum())
            column.descriptions.add(description)
        before[ranks] += 1
    return list(columns.values())


def _name(descriptions: set[str]) -> str:
    """The name that groups have in common."""
    if len(descriptions) != 1:
        return ""
    name = next(iter(descriptions))
    return "" if name in _UNNAMED else name.removeprefix("mesh_")


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
