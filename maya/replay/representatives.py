"""Which ranks represent a job: found from its process groups, and checked by comparing traces.

In: the process groups of a job, and the digests of the ranks that have been run so far. Out: the ranks to run next,
until none is missing; then blocks of the mesh, each with a representative. No I/O: maya/launcher/survey.py runs the
ranks.

The process groups form a mesh (mesh.py). It is divided into blocks where traces change along the lines through one
rank, the base. A block is split further where two ranks of it that differ in one coordinate have different traces:
between them if they are neighbours; otherwise ranks between them are run first. This ends with blocks whose known ranks
agree.

Along a long dimension, ranks mostly differ because a tensor is divided among them whose length is no multiple of their
number: the last ones get less of it, or nothing. So the ranks where such shares change, for the lengths of all tensors
in the traces, are tried before others.

Which ranks are run: a base, whose coordinates are 1, because rank 0 may do more than others (log, save); along each
dimension through the base the first and the last rank; the corners of the mesh, such as the first rank of the last
pipeline stage, which may log as well; the ranks next to these, so that an odd rank is told from a dimension that
matters; and a few ranks drawn at random by a seed, as a check. In every block are run as well: the ends along
dimensions that matter somewhere, and the ranks in the places of odd ones. Ranks that send to each other, such as the
stages of a pipeline, are run together in every round: what they receive may decide what they do.
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
_MOST_AT_ONCE = 16  # an interval of at most this many ranks is run as a whole; of a longer one ...
_PARTS = 8  # ... the ranks that divide it into this many parts
_MOST_SHARES = 24  # changes of shares in an interval that are tried
_MOST_ODD = 8  # ranks of a block that differ from others and whose neighbours are run at once
_LONGEST_CHAIN = 64  # ranks that send to each other and are run together
_MOST_CORNERS = 16  # of a mesh, that are run
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

    def __init__(self, job: RepresentedJob, p2p: Collection[Sequence[int]] = (), lengths: Collection[int] = ()) -> None:
        """`p2p`: members of communicators with send/recv; `lengths`: of tensors that ranks may have shares of."""
        self._job = job
        self._mesh = job.mesh.coordinates
        self._sizes = job.mesh.sizes
        self._coordinates: list[Coordinates] = list(map(tuple, self._mesh.tolist()))
        self._rank_at = {row: rank for rank, row in enumerate(self._coordinates)}
        self._shapes = np.array(job.shapes)
        self._changes = [changes_of_shares(size, lengths) for size in self._sizes]
        self._base = self._near(tuple(min(1, size - 1) for size in self._sizes))
        chained = self._chain_dimensions(p2p)
        self._chains = self._lines(self._base, chained)
        self.stages = prod(self._sizes[dimension] for dimension in chained)  # ranks that send to each other
        chosen = {
            0,
            self._base,
            job.world_size - 1,
            *self._ends(self._whole(), range(len(self._sizes))),
            *self._between_ranks(self._base, 0),
            *self._corners(),
            *self._chains,
            *self._lines(0, chained),
            *self._next_to_last_corners(chained),
        }
        self._checks = _draw(sorted(set(range(job.world_size)) - chosen))
        self._required = chosen.union(self._checks)

    @property
    def together(self) -> set[int]:
        """The ranks that every round has to run, because what they send may decide what others do."""
        return {0, *self._chains}

    def next_ranks(self, digests: Mapping[int, bytes]) -> list[int]:
        """The ranks that are still missing, in order; none: `result` is known."""
        missing = self._required.difference(digests)
        if not missing:
            missing = self._divide(digests)[1]
        return sorted(missing)

    def result(self, digests: Mapping[int, bytes], rounds: int) -> SurveyResult:
        """The blocks of the mesh. Each is represented by a rank with the trace of its ranks: one of a chain if
        possible, because these are needed anyway; otherwise the one that is least likely to do more than others later
        on."""
        found, _ = self._divide(digests)
        chains = set(self._chains)
        by_label: dict[_Label, int] = {}
        for rank in sorted(digests, key=lambda rank: (rank == 0, rank not in chains, self._oddness(rank), rank)):
            by_label.setdefault(self._label(rank, digests), rank)
        blocks = [(block, by_label[self._label(rank, digests)]) for block, rank in found]
        return SurveyResult(self._sizes, blocks, self._checks, tuple(sorted(digests)), rounds)

    def present(self, result: SurveyResult) -> tuple[int, ...]:
        """The ranks to run: rank 0, all representatives, and the chains that steer them."""
        return tuple(sorted(self.together.union(rank for _, rank in result.blocks)))

    def _oddness(self, rank: int) -> tuple[int, int]:
        """How likely a rank is to log or save at the end of a job: the first rank of a stage or of all groups often
        does, and the last one sometimes."""
        place = self._coordinates[rank]
        return place.count(0), sum(index == size - 1 for index, size in zip(place, self._sizes, strict=True))

    # ---- blocks ----

    def _divide(self, digests: Mapping[int, bytes]) -> tuple[list[tuple[MeshBlock, int]], set[int]]:
        """Blocks whose known ranks agree, each with one of them; and ranks that have to be run before more is known."""
        found: list[tuple[MeshBlock, int]] = []
        missing: set[int] = set()
        known = sorted(digests)
        cuts = self._cuts(known, digests, missing)
        blocks = [] if missing else self._grid(cuts)[::-1]
        odd = [rank for block in blocks for rank in self._odd(block, self._inside(block, known), digests)]
        while blocks:
            block = blocks.pop()
            inside = block.has(self._mesh)
            if not inside.any():  # the mesh is irregular
                continue
            mine = [rank for rank in known if inside[rank]]
            wanted = self._samples(block, inside.nonzero()[0], cuts).union(
                self._existing(block.clip(self._coordinates[rank]) for rank in odd),
                self._next_to(self._odd(block, mine, digests), block),
            )
            wanted.difference_update(mine)
            if wanted:
                missing |= wanted
            elif len({self._label(rank, digests) for rank in mine}) == 1:
                found.append((block, mine[0]))
            else:
                split = self._split(block, mine, digests, missing)
                blocks += reversed(split)
        return found, missing

    def _cuts(self, known: Sequence[int], digests: Mapping[int, bytes], missing: set[int]) -> dict[int, set[int]]:
        """The indices of each dimension from which on traces differ, along the lines through the base. Ranks that have
        to be run to decide are added to `missing`."""
        base = self._coordinates[self._base]
        lines = {dimension: self._moved(base, dimension, 0) for dimension in range(len(base))}
        cuts: dict[int, set[int]] = {}
        for step in self._steps(known, digests):
            if self._moved(self._coordinates[step.rank], step.dimension, 0) == lines[step.dimension]:
                between = self._between(step)
                missing.update(between)
                if not between:
                    cuts.setdefault(step.dimension, set()).add(step.high)
        return cuts

    def _grid(self, cuts: Mapping[int, Collection[int]]) -> list[MeshBlock]:
        """The mesh, divided at all cuts."""
        axes = []
        for dimension, size in enumerate(self._sizes):
            starts = [0, *sorted(cuts.get(dimension, ()))]
            axes.append(list(zip(starts, (*(start - 1 for start in starts[1:]), size - 1), strict=True)))
        return [
            MeshBlock(tuple(low for low, _ in ranges), tuple(high for _, high in ranges)) for ranges in product(*axes)
        ]

    def _odd(self, block: MeshBlock, known: Sequence[int], digests: Mapping[int, bytes]) -> list[int]:
        """The known ranks of a block that differ from its middle."""
        middle = self._rank_at.get(self._middle(block), -1)
        if middle not in digests:
            return []
        return [rank for rank in known if self._label(rank, digests) != self._label(middle, digests)]

    def _next_to(self, odd: Sequence[int], block: MeshBlock) -> list[int]:
        """The ranks next to odd ones of a block, on the way to its middle."""
        middle = self._middle(block)
        places: list[Coordinates] = []
        for place in (self._coordinates[rank] for rank in odd[:_MOST_ODD]):
            for dimension, (mine, its) in enumerate(zip(place, middle, strict=True)):
                if mine != its:
                    places.append(self._moved(place, dimension, mine + (1 if mine < its else -1)))
        return self._existing(places)

    def _samples(self, block: MeshBlock, inside: Iterable[int], matters: Iterable[int]) -> set[int]:
        """The ranks of a block that have to be known: one in its middle, one for each kind of process groups, and the
        ends along the dimensions that matter somewhere."""
        ranks = np.array(inside)
        middle = self._rank_at.get(self._middle(block), int(ranks[0]))
        _, firsts = np.unique(self._shapes[ranks], return_index=True)
        return {middle, *ranks[firsts].tolist(), *self._ends(block, matters)}

    def _inside(self, block: MeshBlock, ranks: Sequence[int]) -> list[int]:
        return [ranks[at] for at in block.has(self._mesh[list(ranks)]).nonzero()[0].tolist()]

    def _middle(self, block: MeshBlock) -> Coordinates:
        """The place of a block that is closest to the base."""
        return block.clip(self._coordinates[self._base])

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
        middle = self._rank_at.get(self._middle(block), known[0])
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
        """Ranks between the two of a step: those next to the two, and those where shares change. If none do, and not at
        the two either: all ranks of a short step, or some at even distances."""
        low, high = step.low, step.high
        changes = self._changes[step.dimension]
        indices = {index for index in changes if low < index < high}
        if len(indices) > _MOST_SHARES or changes.isdisjoint(range(low, high + 1)):
            parts = high - low if high - low <= _MOST_AT_ONCE else _PARTS
            indices = {low + (high - low) * part // parts for part in range(1, parts)}
        indices = (indices | {low + 1, high - 1}) - {low, high}
        return self._existing(
            self._moved(self._coordinates[step.rank], step.dimension, index) for index in sorted(indices)
        )

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
        middle = self._middle(block)
        return self._existing(
            self._moved(middle, dimension, end)
            for dimension in dimensions
            for end in (block.first[dimension], block.last[dimension])
        )

    def _corners(self) -> list[int]:
        """The ranks at the ends of all dimensions; in a mesh of many dimensions, only those that differ from the first
        or the last rank in one coordinate."""
        first, last = self._whole().first, self._whole().last
        if 2 ** len(first) <= _MOST_CORNERS:
            return self._existing(product(*zip(first, last, strict=True)))
        dimensions = range(len(first))
        return self._existing(
            place
            for dimension in dimensions
            for place in (
                self._moved(first, dimension, last[dimension]),
                self._moved(last, dimension, first[dimension]),
            )
        )

    def _chain_dimensions(self, p2p: Collection[Sequence[int]]) -> list[int]:
        """The dimensions of send/recv."""
        found: set[int] = set()
        for members in p2p:
            varies = np.ptp(self._mesh[list(members)], axis=0) > 0
            found.update(np.flatnonzero(varies).tolist())
        return sorted(dimension for dimension in found if self._sizes[dimension] <= _LONGEST_CHAIN)

    def _lines(self, through: int, dimensions: Iterable[int]) -> list[int]:
        """All ranks along dimensions, through a rank."""
        return self._existing(
            self._moved(self._coordinates[through], dimension, index)
            for dimension in dimensions
            for index in range(self._sizes[dimension])
        )

    def _next_to_last_corners(self, chained: Iterable[int]) -> set[int]:
        """The ranks next to the first and the last rank at the end of a chain, one of which logs in many jobs."""
        found: set[int] = set()
        for dimension in chained:
            last = self._sizes[dimension] - 1
            of_base, *corners = self._existing(
                self._moved(self._coordinates[rank], dimension, last)
                for rank in (self._base, 0, self._job.world_size - 1)
            ) or [self._base]
            found.update(*(self._between_ranks(of_base, corner) for corner in corners))
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


def changes_of_shares(ranks: int, lengths: Iterable[int]) -> set[int]:
    """The ranks whose share of a tensor differs from that of the rank before, for tensors of these lengths that are
    divided as by torch.chunk: into parts of one size as far as the length reaches, then a smaller one, then none."""
    found: set[int] = set()
    for length in lengths:
        if length > 0:
            part = -(-length // ranks)
            found |= {length // part, -(-length // part)}
    return {rank for rank in found if 0 < rank < ranks}
