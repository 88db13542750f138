"""Absent ranks in a recording: which present rank stands for each, and which communicators it has.

In: process_groups.json of a run's folder, which the coordinator writes if not every rank was a process
(coordinator/absent_ranks.py), and the digests of the present ranks' traces. Out: for each absent rank its
representative and its communicators.

Every process group gives its members a place. The places of a rank in all its groups are its coordinates in the mesh
that the job's parallelism forms (mesh.py). After a survey, an absent rank is represented as that has found
(mesh_blocks.py). If the user has named the present ranks, it is represented by the one whose coordinates agree with its
own where traces have been seen to depend on them, but by rank 0 only if no other does, because it may log or save;
elsewhere by the closest one before it. The k-th group of the representative corresponds to the k-th group of the absent
rank.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from maya.replay.mesh import UNKNOWN, Mesh, mesh_of
from maya.replay.mesh_blocks import FILE as SURVEY
from maya.replay.mesh_blocks import MeshBlock, SurveyResult
from maya.util.files import damage_reported, read_versioned, write_atomically
from maya.util.ranks import MOST_RANKS, format_strided, parse_strided, ranks_text

FILE = "process_groups.json"
VERSION = 1

_MOST_SHOWN = 6
_RANK_0, _FIRST = 1e8, 1e6  # larger than any sum of weights; a mismatch of unknown weight costs more than _RANK_0

Members = tuple[int, ...]


@dataclass(frozen=True)
class GroupOfCommunicator:
    """The process group of a communicator; `pair`: only these two places of it."""

    group: int  # position in RepresentedJob.groups
    pair: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class RepresentedJob:
    """The process groups of a job with absent ranks, and the origins of its communicators."""

    world_size: int
    present: tuple[int, ...]
    groups: Sequence[Members]  # in the order of creation
    communicators: Mapping[tuple[Members, int], GroupOfCommunicator]  # by members and instance
    filled: Sequence[str] = ()  # keys of the store that were set for absent ranks
    descriptions: Sequence[str] = ()  # of the groups, by torch
    survey: SurveyResult | None = None  # None: the user has named the present ranks

    # ---- the file ----

    def save(self, folder: Path) -> None:
        content = {
            "version": VERSION,
            "world_size": self.world_size,
            "present": format_strided(self.present),
            "groups": [format_strided(members) for members in self.groups],
            "communicators": [
                [format_strided(members), instance, origin.group, *(origin.pair or ())]
                for (members, instance), origin in self.communicators.items()
            ],
            "filled": list(self.filled),
            "descriptions": list(self.descriptions),
        }
        write_atomically(folder / FILE, json.dumps(content) + "\n")

    @staticmethod
    def load(folder: Path) -> RepresentedJob | None:
        """None: every rank of the run was a process."""
        content = read_versioned(folder / FILE, VERSION)
        if content is None:
            return None
        with damage_reported(folder / FILE):
            job = RepresentedJob(
                content["world_size"],
                parse_strided(content["present"]),
                [parse_strided(members) for members in content["groups"]],
                dict(map(_communicator_of_line, content["communicators"])),
                list(map(str, content["filled"])),
                list(map(str, content["descriptions"])),
            )
            job.check()
        survey = SurveyResult.load(folder)
        if survey is None:
            return job
        if not survey.ranks <= set(job.present):
            raise ValueError(f"{folder / SURVEY} is damaged: ranks that were no processes represent others")
        return replace(job, survey=survey)

    def check(self) -> None:
        """Raise a ValueError if ranks, groups and communicators do not belong together."""
        if type(self.world_size) is not int or not 0 < self.world_size <= MOST_RANKS:
            raise ValueError(f"world_size is {self.world_size!r}")
        for ranks in (self.present, *self.groups):
            if not ranks or min(ranks) < 0 or max(ranks) >= self.world_size or len(set(ranks)) != len(ranks):
                raise ValueError(f"a group of ranks that are not in the job: {ranks_text(ranks)}")
        if len(self.descriptions) > len(self.groups):
            raise ValueError(f"{len(self.descriptions)} descriptions of {len(self.groups)} groups")
        for (members, instance), origin in self.communicators.items():
            if type(instance) is not int or type(origin.group) is not int:
                raise ValueError(f"a communicator of {ranks_text(members)} without a group")
            group = self.groups[origin.group] if 0 <= origin.group < len(self.groups) else ()
            places = (0, 0) if origin.pair is None else origin.pair
            if not all(type(place) is int and 0 <= place < len(group) for place in places):
                raise ValueError(f"a communicator of group {origin.group}, which has no places {places}")

    def lines(self, classes: Sequence[Sequence[int]]) -> list[str]:
        """Sentences about the representation; `classes`: the ranks of each rank class."""
        mesh = f"{len(self.present):,} of {self.world_size:,} ranks were processes; mesh {self.mesh}"
        survey = self._fitting_survey
        if survey is None:
            counts = _shortened(self._represented_counts(classes))
            lines = [mesh, *counts, *self.warnings(classes)]
            lines += ["not checked: the ranks were named by hand"] if self.survey is None else []
        else:
            drawn = f", of which {ranks_text(survey.checked)} drawn at random" if survey.checked else ""
            compared = f"compared over the first steps: {ranks_text(survey.compared)}{drawn}"
            lines = [mesh, *_shortened(self._represented_blocks(survey)), compared]
            never = self.world_size - len({*survey.compared, *self.present})
            if never:
                lines.append(
                    f"{never:,} ranks were never run: one of them that differs, or a rank that differs after the first "
                    "steps, is not noticed"
                )
        if self.filled:
            lines.append(f"assumed for absent ranks: {', '.join(self.filled[:_MOST_SHOWN])}")
        return lines

    def warnings(self, classes: Sequence[Sequence[int]]) -> list[str]:
        """Sentences about representatives that were not compared with the ranks that they represent."""
        if self._fitting_survey is not None:
            return []
        found: list[str] = []
        if self.survey is not None:
            found.append(
                f"not checked: the survey ended before all process groups were created, and saw a mesh of "
                f"{' x '.join(map(str, self.survey.sizes))}; name one rank of each kind (--represent 0,8,16)"
            )
        present = set(self.present)
        alone = next((ranks for ranks in classes if present.intersection(ranks) == {0} and len(ranks) > 1), None)
        if alone is not None:
            other = next(rank for rank in alone if rank != 0)
            found.append(
                "rank 0 may do more than the ranks it represents (log, save, gather): add one of them to --represent, "
                f"such as {other}"
            )
        return found

    def _represented_counts(self, classes: Iterable[Sequence[int]]) -> list[str]:
        present = set(self.present)
        texts = []
        for ranks in classes:
            mine = present.intersection(ranks)
            if len(mine) < len(ranks):
                texts.append(f"{len(ranks) - len(mine):,} absent ranks are assumed to be like rank {min(mine)}")
        return texts

    def _represented_blocks(self, survey: SurveyResult) -> list[str]:
        blocks: dict[int, list[MeshBlock]] = {}
        for block, rank in survey.blocks:
            blocks.setdefault(rank, []).append(block)
        counts = Counter(survey.representatives(self.mesh.coordinates).tolist())
        return [
            f"{self.mesh.block_text(mine)}: {counts[rank]:,} ranks, assumed to be like rank {rank}"
            for rank, mine in blocks.items()
            if counts[rank] > 1
        ]

    # ---- places ----

    @cached_property
    def absent(self) -> list[int]:
        present = set(self.present)
        return [rank for rank in range(self.world_size) if rank not in present]

    @cached_property
    def groups_of(self) -> list[list[int]]:
        """For each rank, the groups that it is a member of, in the order of creation."""
        found: list[list[int]] = [[] for _ in range(self.world_size)]
        for number, members in enumerate(self.groups):
            for rank in members:
                found[rank].append(number)
        return found

    @cached_property
    def shapes(self) -> list[int]:
        """For each rank, a number that is equal for ranks with groups of the same sizes."""
        numbers: dict[tuple[int, ...], int] = {}
        sizes = [len(members) for members in self.groups]
        return [numbers.setdefault(tuple(sizes[group] for group in mine), len(numbers)) for mine in self.groups_of]

    @cached_property
    def _fitting_survey(self) -> SurveyResult | None:
        """The survey, unless it knew other process groups: a script may create some after the survey's steps."""
        return self.survey if self.survey is not None and self.survey.sizes == self.mesh.sizes else None

    @cached_property
    def mesh(self) -> Mesh:
        return mesh_of(self.world_size, self.groups, self.descriptions)

    # ---- representatives ----

    def representatives(self, digests: Mapping[int, bytes], peers: Collection[int] = ()) -> dict[int, int]:
        """Absent rank -> the present rank that stands for it. `digests`: of the present ranks' traces; `peers`: the
        ranks that rank 0 sends to or receives from."""
        survey = self._fitting_survey
        if survey is not None:
            chosen = survey.representatives(self.mesh.coordinates).tolist()
            return {rank: chosen[rank] for rank in self.absent}
        by_shape: dict[int, list[int]] = {}
        for rank in digests:
            by_shape.setdefault(self.shapes[rank], []).append(rank)
        absent: dict[int, list[int]] = {}
        for rank in self.absent:
            absent.setdefault(self.shapes[rank], []).append(rank)
        found: dict[int, int] = {}
        for shape, ranks in absent.items():
            if shape not in by_shape:
                raise ValueError(
                    f"no present rank has the same process groups as {ranks_text(ranks)}, so what they do is not "
                    f"known; add one of them to --represent"
                )
            found.update(zip(ranks, self._closest(ranks, by_shape[shape], digests, peers), strict=True))
        return found

    def communicators_of(
        self, rank: int, representative: int, communicators: Mapping[int, tuple[Members, int]]
    ) -> dict[int, tuple[Members, int]]:
        """The communicators of an absent rank, by number in its representative's trace: members and instance."""
        return {
            number: (self._translated(rank, representative, members, instance), instance)
            for number, (members, instance) in communicators.items()
        }

    def _closest(
        self, absent: Sequence[int], present: Sequence[int], digests: Mapping[int, bytes], peers: Collection[int]
    ) -> list[int]:
        """For each absent rank the closest present one."""
        coordinates = self.mesh.coordinates
        weights = self.mesh.weights({rank: digests[rank] for rank in present}, peers)
        mine, others = coordinates[list(absent)], coordinates[list(present)]
        best = np.zeros(len(absent), dtype=np.int64)
        best_score = np.full(len(absent), -np.inf)
        for at in range(len(present)):
            ahead = mine - others[at]
            # A mismatch costs the weight of its dimension, and a little more the farther away the present rank is, or
            # if it comes after the absent one.
            distance = np.where(ahead >= 0, ahead, 2 * self.world_size - ahead) / (4 * self.world_size)
            score = -(weights * ((ahead != 0) + distance)).sum(axis=1)
            # Mismatches where traces may differ decide first. Among equal ones, rank 0 comes last.
            score -= _FIRST * (weights * ((ahead != 0) & (weights >= UNKNOWN))).sum(axis=1)
            score -= _RANK_0 if present[at] == 0 else 0
            better = score >= best_score  # of equal ones the last: first ranks of dimensions are odd more often
            best[better], best_score[better] = at, score[better]
        return [present[at] for at in best.tolist()]

    def _translated(self, rank: int, representative: int, members: Members, instance: int) -> Members:
        origin = self._origin(members, instance)
        if origin is None:
            if members == (representative,):
                return (rank,)
            raise ValueError(
                f"rank {representative} has a communicator of {ranks_text(members)} that belongs to no process group "
                "of torch, so the absent ranks' communicators are not known: run the job with --represent all"
            )
        ordinal = self._ordinals(representative)[origin.group]
        number = self.groups_of[rank][ordinal]
        group = self.groups[number]
        if origin.pair is None:
            return group
        place = self._places(number)[rank]
        return self._pair(group, self._moved_pair(origin.pair, members.index(representative), place, len(group)))

    def _moved_pair(self, pair: tuple[int, int], end: int, place: int, size: int) -> tuple[int, int]:
        """The pair of places that a rank in `place` of its group has where its representative, one end of `pair`, has
        that one: the neighbours of a chain move with it, the root of a star does not."""
        step = place - pair[end]
        if step == 0:
            return pair
        low, high = sorted(((pair[0] + step) % size, (pair[1] + step) % size))
        first, last = sorted((pair[1 - end], place))
        is_star = (size, (low, high)) not in self._pairs and (size, (first, last)) in self._pairs
        return (first, last) if is_star and first != last else (low, high)

    @cached_property
    def _pairs(self) -> set[tuple[int, tuple[int, int]]]:
        """The pairs of places of which present ranks have communicators, with the sizes of their groups."""
        origins = self.communicators.values()
        return {(len(self.groups[origin.group]), origin.pair) for origin in origins if origin.pair is not None}

    def _origin(self, members: Members, instance: int) -> GroupOfCommunicator | None:
        """Found by the identity of the members: hashing those of a large communicator takes long."""
        key = (id(members), instance)
        known = self._known_origins.get(key)
        if known is None:
            known = self._known_origins[key] = members, self.communicators.get((members, instance))
        return known[1]

    def _ordinals(self, rank: int) -> dict[int, int]:
        known = self._known_ordinals.get(rank)
        if known is None:
            known = {group: place for place, group in enumerate(self.groups_of[rank])}
            self._known_ordinals[rank] = known
        return known

    def _places(self, group: int) -> dict[int, int]:
        known = self._known_places.get(group)
        if known is None:
            known = self._known_places[group] = {rank: place for place, rank in enumerate(self.groups[group])}
        return known

    def _pair(self, group: Members, pair: tuple[int, int]) -> Members:
        """The same object for the same pair: times of collectives are kept by members."""
        key = (id(group), *pair)
        return self._known_pairs.setdefault(key, (group[pair[0]], group[pair[1]]))

    @cached_property
    def _known_origins(self) -> dict[tuple[int, int], tuple[Members, GroupOfCommunicator | None]]:
        return {}  # with the members, so that no other tuple gets their identity

    @cached_property
    def _known_ordinals(self) -> dict[int, dict[int, int]]:
        return {}

    @cached_property
    def _known_places(self) -> dict[int, dict[int, int]]:
        return {}

    @cached_property
    def _known_pairs(self) -> dict[tuple[int, int, int], Members]:
        return {}


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_SHOWN
    return lines if more <= 1 else [*lines[:_MOST_SHOWN], f"{more} more kinds: survey.json"]


def _communicator_of_line(line: list[Any]) -> tuple[tuple[Members, int], GroupOfCommunicator]:
    members, instance, group, *pair = line
    return (parse_strided(members), instance), GroupOfCommunicator(group, (pair[0], pair[1]) if pair else None)
