"""Which ranks represent a job: found from its process groups, and checked by comparing traces.

In: the process groups of a job, and the digests of the ranks that have been run so far. Out: the ranks to run next,
until none is missing; then the representatives. No I/O: maya/launcher/survey.py runs the ranks.

The mesh of the process groups (mesh.py) has dimensions. Rank 0 may do more than others (log, save), so dimensions are
compared at another rank, the base, whose coordinates are 1. A dimension is symmetric if the base's trace agrees with
those of the first and the last rank along it. Along other dimensions, such as the stages of a pipeline, ranks are run
until neighbours agree or nothing lies between them. Ranks that send to each other, such as a pipeline's, are run
together from the start: what they receive may decide what they do. All combinations of such dimensions are run. Finally
a few ranks, drawn at random by a seed, are compared with the ranks that would represent them; if they differ, ranks in
between show which dimension matters.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, product

import numpy as np

from maya.replay.represented_ranks import RepresentedJob

_CHECKS = 3  # ranks drawn at random
_MOST_AT_ONCE = 32  # ranks of a dimension that is run as a whole; in a larger one ...
_PARTS = 8  # ... each interval whose ends differ is divided into this many parts
_LONGEST_CHAIN = 64  # ranks that send to each other and are run together
_SEED = 20260101

Coordinates = tuple[int, ...]


class RepresentativeSearch:
    """Decides which ranks have to be run."""

    def __init__(self, job: RepresentedJob, p2p: Collection[Sequence[int]] = ()) -> None:
        """`p2p`: members of communicators with send/recv."""
        self._job = job
        self._sizes = job.mesh.sizes
        rows = list(map(tuple, job.mesh.coordinates.tolist()))
        self._coordinates: list[Coordinates] = rows
        self._rank_at = {row: rank for rank, row in enumerate(rows)}
        self._base = self._near(tuple(min(1, size - 1) for size in self._sizes))
        self._chains = self._ranks_in_chains(p2p)
        self.checks = self._draw_checks()

    def next_ranks(self, digests: Mapping[int, bytes]) -> list[int]:
        """The ranks that are still missing, in order; none: `representatives` are known."""
        wanted = {0, self._base, self._job.world_size - 1, *self._ends(), *self._chains}
        if wanted.issubset(digests):
            for dimension in range(len(self._sizes)):
                wanted.update(self._between(dimension, digests))
        if wanted.issubset(digests):
            wanted.update(self._combinations(digests))
        if wanted.issubset(digests):
            wanted.update(self.checks)
        if wanted.issubset(digests):
            wanted.update(self._steps_to_failed_checks(digests))
        return sorted(wanted.difference(digests))

    def representatives(self, digests: Mapping[int, bytes]) -> tuple[int, ...]:
        """The ranks to run: all that are needed to represent the others as the digests say."""
        needed = {0, self._base, self._job.world_size - 1, *self._chains, *self._combinations(digests)}
        for dimension in range(len(self._sizes)):
            needed.update(rank for _, rank in self._points(dimension, digests))
        needed = self._without_redundant(needed.intersection(digests), digests)
        return tuple(sorted(needed.union(self.failed_checks(digests))))

    def failed_checks(self, digests: Mapping[int, bytes]) -> list[int]:
        """The ranks drawn at random whose traces differ from those of their representatives."""
        others = {rank: digest for rank, digest in digests.items() if rank not in self.checks}
        checks = [rank for rank in self.checks if rank in digests and rank not in others]
        if not checks or not others:
            return []
        chosen = self._job.with_present(others).representatives(others)
        return [rank for rank in checks if digests[rank] != others[chosen[rank]]]

    # ---- dimensions ----

    def _ranks_in_chains(self, p2p: Collection[Sequence[int]]) -> list[int]:
        """The ranks along the dimensions of send/recv, through rank 0."""
        coordinates = self._job.mesh.coordinates
        found: list[int | None] = []
        for members in p2p:
            varies = np.ptp(coordinates[list(members)], axis=0) > 0
            for dimension in np.flatnonzero(varies).tolist():
                size = self._sizes[dimension]
                origin = self._coordinates[0]
                if size <= _LONGEST_CHAIN:
                    chain = ((*origin[:dimension], index, *origin[dimension + 1 :]) for index in range(size))
                    found += map(self._rank_at.get, chain)
        return [rank for rank in found if rank is not None]

    def _near(self, wanted: Coordinates) -> int:
        """The rank at these coordinates, or, in an irregular mesh, the first rank after 0."""
        return self._rank_at.get(wanted, min(1, self._job.world_size - 1))

    def _along(self, dimension: int, index: int) -> int | None:
        """The rank that differs from the base in one coordinate."""
        base = self._coordinates[self._base]
        return self._rank_at.get((*base[:dimension], index, *base[dimension + 1 :]))

    def _ends(self) -> list[int]:
        found = (self._along(dimension, end) for dimension, size in enumerate(self._sizes) for end in (0, size - 1))
        return [rank for rank in found if rank is not None]

    def _points(self, dimension: int, digests: Mapping[int, bytes]) -> list[tuple[int, int]]:
        """The ranks along a dimension that have been run: index and rank."""
        base = self._coordinates[self._base]
        found = [
            (self._coordinates[rank][dimension], rank)
            for rank in digests
            if all(
                mine == other or each == dimension
                for each, (mine, other) in enumerate(zip(self._coordinates[rank], base, strict=True))
            )
        ]
        return sorted(found)

    def _between(self, dimension: int, digests: Mapping[int, bytes]) -> list[int]:
        """Ranks between neighbouring points of a dimension whose traces differ."""
        found: list[int | None] = []
        points = self._points(dimension, digests)
        for (low, one), (high, other) in pairwise(points):
            if digests[one] == digests[other] or high - low < 2:
                continue
            parts = min(high - low, _PARTS if self._sizes[dimension] > _MOST_AT_ONCE else high - low)
            inside = sorted({low + (high - low) * part // parts for part in range(1, parts)})
            found += [self._along(dimension, index) for index in inside]
        return [rank for rank in found if rank is not None]

    def _indices(self, dimension: int, digests: Mapping[int, bytes]) -> list[int]:
        """The indices of a dimension from which on traces differ from those before; one if it is symmetric."""
        points = self._points(dimension, digests)
        starts = [points[0][0]] if points else [0]
        for (_, one), (index, other) in pairwise(points):
            if digests[one] != digests[other]:
                starts.append(index)
        return starts

    def _combinations(self, digests: Mapping[int, bytes]) -> list[int]:
        """The ranks at all combinations of the indices that matter."""
        base = self._coordinates[self._base]
        indices = [self._indices(dimension, digests) for dimension in range(len(self._sizes))]
        axes = [each if len(each) > 1 else [base[dimension]] for dimension, each in enumerate(indices)]
        found = (self._rank_at.get(coordinates) for coordinates in product(*axes))
        return [rank for rank in found if rank is not None]

    # ---- checks ----

    def _draw_checks(self) -> tuple[int, ...]:
        world = self._job.world_size
        return tuple(sorted(random.Random(_SEED).sample(range(world), min(_CHECKS, world))))

    def _steps_to_failed_checks(self, digests: Mapping[int, bytes]) -> list[int]:
        """For each check that failed, the ranks that differ from the base in one of its coordinates only: they show
        which dimension matters."""
        found: list[int | None] = []
        for rank in self.failed_checks(digests):
            found += [self._along(dimension, index) for dimension, index in enumerate(self._coordinates[rank])]
        return [rank for rank in found if rank is not None]

    def _without_redundant(self, ranks: set[int], digests: Mapping[int, bytes]) -> set[int]:
        """Leave out ranks that others represent with the same trace, the last ones first."""
        kept = set(ranks)
        for rank in sorted(ranks, reverse=True):
            others = {other: digests[other] for other in kept if other != rank}
            if rank == 0 or len(others) == 0:
                continue
            if self._represents(others, digests):
                kept.discard(rank)
        return kept

    def _represents(self, present: Mapping[int, bytes], digests: Mapping[int, bytes]) -> bool:
        """Whether `present` ranks represent all other ranks whose traces are known."""
        try:
            chosen = self._job.with_present(present).representatives(present, among=digests)
        except ValueError:
            return False
        return all(digests[rank] == present[chosen[rank]] for rank in digests if rank not in present)
