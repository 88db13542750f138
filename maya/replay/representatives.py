"""Which ranks represent a job: found from its process groups, and checked by comparing traces.

In: the process groups of a job, and the digests of the ranks that have been run so far. Out: the ranks to run next,
until none is missing; then blocks of the mesh, each with a representative. No I/O: maya/launcher/survey.py runs the
ranks.

The process groups form a mesh (mesh.py). The whole mesh is one block at first. A block is split where two ranks of it
that differ in one coordinate have different traces: between them if they are neighbours; otherwise ranks between them
are run first. This ends with blocks whose known ranks agree.

Which ranks are run: a base, whose coordinates are 1, because rank 0 may do more than others (log, save); along each
dimension through the base the first and the last rank; the ranks between rank 0 and the base, so that a rank 0 of its
own kind is told from a dimension that matters; and a few ranks drawn at random by a seed, as a check. In every block,
the ends along dimensions that matter somewhere are run as well. Ranks that send to each other, such as the stages of a
pipeline, are run together from the start: what they receive may decide what they do.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

import numpy as np

from maya.replay.mesh_blocks import Coordinates, MeshBlock, SurveyResult
from maya.replay.represented_ranks import RepresentedJob

_CHECKS = 3  # ranks drawn at random
_MOST_AT_ONCE = 32  # an interval of at most this many ranks is run as a whole; of a longer one ...
_PARTS = 8  # ... the ranks that divide it into this many parts
_MOST_COMBINATIONS = 64  # ranks that are run at once because they may be needed
_LONGEST_CHAIN = 64  # ranks that send to each other and are run together
_SEED = 20260101

_Label = tuple[bytes, int]  # digest of a trace, and the rank's process groups: equal for ranks that are alike


@dataclass(frozen=True)
class _Step:
    """Two ranks that differ in one coordinate and have different labels."""

    dimension: int
    low: int  # the smaller coordinate
    high: int
    rank: int  # one of the two


class RepresentativeSearch:
    """Decides which ranks have to be run."""

    def __init__(self, job: RepresentedJob, p2p: Collection[Sequence[int]] = ()) -> None:
        """`p2p`: members of communicators with send/recv."""
        self._job = job
        self._mesh = job.mesh.coordinates
        self._sizes = job.mesh.sizes
        self._coordinates: list[Coordinates] = list(map(tuple, self._mesh.tolist()))
        self._rank_at = {row: rank for rank, row in enumerate(self._coordinates)}
        self._shapes = np.array(job.shapes)
        self._base = self._near(tuple(min(1, size - 1) for size in self._sizes))
        self._chains = self._ranks_in_chains(p2p)
        chosen = {
            0,
            self._base,
            job.world_size - 1,
            *self._ends(self._whole(), range(len(self._sizes))),
            *self._between_ranks(self._base, 0),
            *self._chains,
        }
        self._checks = _draw(sorted(set(range(job.world_size)) - chosen))
        self._required = chosen.union(self._checks)

    def next_ranks(self, digests: Mapping[int, bytes]) -> list[int]:
        """The ranks that are still missing, in order; none: `result` is known."""
        missing = self._required.difference(digests)
        if not missing:
            missing = self._divide(digests)[1]
            missing |= self._combinations(digests).difference(digests) if missing else set()
        return sorted(missing)

    def result(self, digests: Mapping[int, bytes], rounds: int) -> SurveyResult:
        """The blocks of the mesh. Each is represented by a rank with the trace of its ranks: one of a chain if
        possible, because these are needed anyway; rank 0 only if no other rank is like it, because it may do more than
        others later on."""
        found, _ = self._divide(digests)
        chains = sorted(set(self._chains).intersection(digests))
        by_label: dict[_Label, int] = {}
        for rank in (*chains, *(known for _, known in found), *sorted(digests)):
            if rank != 0:
                by_label.setdefault(self._label(rank, digests), rank)
        by_label.setdefault(self._label(0, digests), 0)
        blocks = [(block, by_label[self._label(rank, digests)]) for block, rank in found]
        return SurveyResult(self._sizes, blocks, self._checks, tuple(sorted(digests)), rounds)

    def present(self, result: SurveyResult) -> tuple[int, ...]:
        """The ranks to run: rank 0, all representatives, and the chains that steer them."""
        return tuple(sorted({0, *self._chains, *(rank for _, rank in result.blocks)}))

    # ---- blocks ----

    def _divide(self, digests: Mapping[int, bytes]) -> tuple[list[tuple[MeshBlock, int]], set[int]]:
        """Blocks whose known ranks agree, each with one of them; and ranks that have to be run before more is known."""
        found: list[tuple[MeshBlock, int]] = []
        missing: set[int] = set()
        known = sorted(digests)
        matters = sorted({step.dimension for step in self._steps(known, digests)})
        blocks = [self._whole()]
        while blocks:
            block = blocks.pop()
            inside = block.has(self._mesh)
            if not inside.any():  # the mesh is irregular
                continue
            mine = [rank for rank in known if inside[rank]]
            wanted = self._samples(block, inside.nonzero()[0], matters).difference(mine)
            if wanted:
                missing |= wanted
            elif len({self._label(rank, digests) for rank in mine}) == 1:
                found.append((block, mine[0]))
            else:
                split = self._split(block, mine, digests, missing)
                blocks += reversed(split)
        return found, missing

    def _samples(self, block: MeshBlock, inside: Iterable[int], matters: Sequence[int]) -> set[int]:
        """The ranks of a block that have to be known: one in its middle, one for each kind of process groups, and the
        ends along the dimensions that matter somewhere."""
        ranks = np.array(inside)
        middle = self._rank_at.get(block.clip(self._coordinates[self._base]), int(ranks[0]))
        _, firsts = np.unique(self._shapes[ranks], return_index=True)
        return {middle, *ranks[firsts].tolist(), *self._ends(block, matters)}

    def _split(
        self, block: MeshBlock, known: Sequence[int], digests: Mapping[int, bytes], missing: set[int]
    ) -> Sequence[MeshBlock]:
        """The two parts of a block whose known ranks disagree; none if ranks are missing to decide."""
        steps = self._steps(known, digests)
        if not steps:
            return self._split_without_steps(block, known, digests, missing)
        shortest = min(step.high - step.low for step in steps)
        steps = [step for step in steps if step.high - step.low == shortest]
        between = {rank for step in steps for rank in self._between(step)} if shortest > 1 else set()
        if between:
            missing |= between
            return ()
        parts = {(step.dimension, step.high): block.split(step.dimension, step.high) for step in steps}
        return min(parts.values(), key=lambda each: self._impurity(each, known, digests))

    def _split_without_steps(
        self, block: MeshBlock, known: Sequence[int], digests: Mapping[int, bytes], missing: set[int]
    ) -> Sequence[MeshBlock]:
        """No two known ranks that disagree differ in one coordinate only: ask for ranks between such two. An irregular
        mesh may have none: split anywhere between the two."""
        middle = self._rank_at.get(block.clip(self._coordinates[self._base]), known[0])
        other = next(rank for rank in known if self._label(rank, digests) != self._label(middle, digests))
        between = self._between_ranks(middle, other).difference(digests)
        if between:
            missing |= between
            return ()
        one, two = self._coordinates[middle], self._coordinates[other]
        dimension = next(each for each, (mine, its) in enumerate(zip(one, two, strict=True)) if mine != its)
        return block.split(dimension, max(one[dimension], two[dimension]))

    def _impurity(self, blocks: Iterable[MeshBlock], known: Sequence[int], digests: Mapping[int, bytes]) -> int:
        """How many known ranks disagree with most of the others in their block."""
        rows = self._mesh[list(known)]
        total = 0
        for block in blocks:
            labels = [self._label(known[at], digests) for at in block.has(rows).nonzero()[0].tolist()]
            total += len(labels) - max(map(labels.count, set(labels)), default=0)
        return total

    def _combinations(self, digests: Mapping[int, bytes]) -> set[int]:
        """The ranks at all combinations of the indices where traces have been seen to differ, unless there are many:
        most of them will be asked for, and every round runs the others again."""
        indices: dict[int, set[int]] = {}
        for step in self._steps(sorted(digests), digests):
            between = (self._coordinates[rank][step.dimension] for rank in self._between(step))
            ends = (0, self._sizes[step.dimension] - 1)
            indices.setdefault(step.dimension, set()).update((step.low, step.high, *between, *ends))
        if prod(map(len, indices.values())) > _MOST_COMBINATIONS:
            return set()
        base = self._coordinates[self._base]
        axes = [sorted(indices.get(dimension, {base[dimension]})) for dimension in range(len(self._sizes))]
        return set(self._existing(product(*axes)))

    def _label(self, rank: int, digests: Mapping[int, bytes]) -> _Label:
        return digests[rank], int(self._shapes[rank])

    # ---- ranks between others ----

    def _steps(self, known: Sequence[int], digests: Mapping[int, bytes]) -> list[_Step]:
        """Known ranks next to each other along a dimension, with no known rank between them, whose labels differ."""
        found: list[_Step] = []
        for dimension in range(len(self._sizes)):
            lines: dict[Coordinates, list[tuple[int, int]]] = {}
            for rank in known:
                place = self._coordinates[rank]
                lines.setdefault((*place[:dimension], *place[dimension + 1 :]), []).append((place[dimension], rank))
            for line in lines.values():
                line.sort()
                for (low, one), (high, other) in pairwise(line):
                    if self._label(one, digests) != self._label(other, digests):
                        found.append(_Step(dimension, low, high, one))
        return found

    def _between(self, step: _Step) -> list[int]:
        """Ranks between the two of a step."""
        length = step.high - step.low
        parts = length if length <= _MOST_AT_ONCE else _PARTS
        inside = sorted({step.low + length * part // parts for part in range(1, parts)} - {step.low})
        return self._existing(self._moved(self._coordinates[step.rank], step.dimension, index) for index in inside)

    def _between_ranks(self, one: int, other: int) -> set[int]:
        """Ranks that have all coordinates of `other` but one of `one`, and those on the way from `one` to `other`, one
        coordinate after the other."""
        start, end = self._coordinates[one], self._coordinates[other]
        dimensions = range(len(self._sizes))
        places = [self._moved(end, dimension, start[dimension]) for dimension in dimensions]
        places += [(*end[:dimension], *start[dimension:]) for dimension in dimensions]
        return set(self._existing(places)).difference((one, other))

    def _ends(self, block: MeshBlock, dimensions: Iterable[int]) -> list[int]:
        """The first and the last rank of a block along dimensions, through its middle."""
        middle = block.clip(self._coordinates[self._base])
        return self._existing(
            self._moved(middle, dimension, end)
            for dimension in dimensions
            for end in (block.first[dimension], block.last[dimension])
        )

    def _ranks_in_chains(self, p2p: Collection[Sequence[int]]) -> list[int]:
        """The ranks along the dimensions of send/recv, through rank 0."""
        found: list[int] = []
        for members in p2p:
            varies = np.ptp(self._mesh[list(members)], axis=0) > 0
            for dimension in np.flatnonzero(varies).tolist():
                size = self._sizes[dimension]
                if size <= _LONGEST_CHAIN:
                    places = (self._moved(self._coordinates[0], dimension, index) for index in range(size))
                    found += self._existing(places)
        return found

    def _whole(self) -> MeshBlock:
        return MeshBlock(tuple(0 for _ in self._sizes), tuple(size - 1 for size in self._sizes))

    def _near(self, wanted: Coordinates) -> int:
        """The rank at these coordinates, or, in an irregular mesh, the first rank after 0."""
        return self._rank_at.get(wanted, min(1, self._job.world_size - 1))

    def _existing(self, places: Iterable[Coordinates]) -> list[int]:
        found = map(self._rank_at.get, places)
        return [rank for rank in found if rank is not None]

    @staticmethod
    def _moved(place: Coordinates, dimension: int, index: int) -> Coordinates:
        return (*place[:dimension], index, *place[dimension + 1 :])


def _draw(ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(random.Random(_SEED).sample(ranks, min(_CHECKS, len(ranks)))))
