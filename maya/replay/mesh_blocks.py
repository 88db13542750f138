"""Blocks of a mesh of ranks, each with the rank that represents it: the outcome of a survey, kept in a run's folder.

In: blocks from the search for representatives (representatives.py). Out: for each rank of the job its representative,
and survey.json, from which the replay and the reports read the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maya.util.arrays import Integers
from maya.util.files import damage_reported, read_versioned, write_atomically
from maya.util.ranks import MOST_RANKS

FILE = "survey.json"
VERSION = 1

Coordinates = tuple[int, ...]


@dataclass(frozen=True)
class MeshBlock:
    """The ranks whose coordinates lie between `first` and `last`, both included."""

    first: Coordinates
    last: Coordinates

    def split(self, dimension: int, index: int) -> tuple[MeshBlock, MeshBlock]:
        """The ranks below an index of a dimension, and the others."""
        below, above = list(self.last), list(self.first)
        below[dimension], above[dimension] = index - 1, index
        return replace(self, last=tuple(below)), replace(self, first=tuple(above))

    def clip(self, coordinates: Coordinates) -> Coordinates:
        """The closest coordinates inside the block."""
        return tuple(
            min(max(each, low), high) for each, low, high in zip(coordinates, self.first, self.last, strict=True)
        )

    def has(self, coordinates: Integers) -> NDArray[np.bool_]:
        """For each row of coordinates, whether it is inside."""
        inside = (coordinates >= np.array(self.first)) & (coordinates <= np.array(self.last))
        found: NDArray[np.bool_] = inside.all(axis=1)
        return found


@dataclass(frozen=True)
class SurveyResult:
    """Which ranks are alike, as a survey has found it."""

    sizes: tuple[int, ...]  # of the mesh
    blocks: Sequence[tuple[MeshBlock, int]]  # they cover the mesh; each with the rank that represents its ranks
    checked: tuple[int, ...]  # ranks drawn at random whose traces were compared with those of their representatives
    compared: tuple[int, ...]  # all ranks that were run
    rounds: int

    def representatives(self, coordinates: Integers) -> Integers:
        """For each rank its representative."""
        chosen = np.full(len(coordinates), -1, dtype=np.int64)
        for block, rank in self.blocks:
            chosen[block.has(coordinates)] = rank
        return chosen

    def save(self, folder: Path) -> None:
        content = {
            "version": VERSION,
            "mesh": self.sizes,
            "blocks": [[block.first, block.last, rank] for block, rank in self.blocks],
            "checked": self.checked,
            "compared": self.compared,
            "rounds": self.rounds,
        }
        write_atomically(folder / FILE, json.dumps(content) + "\n")

    @staticmethod
    def load(folder: Path) -> SurveyResult | None:
        """None: there was no survey."""
        content = read_versioned(folder / FILE, VERSION)
        if content is None:
            return None
        with damage_reported(folder / FILE):
            sizes = _whole_numbers(content["mesh"])
            blocks = [
                (MeshBlock(_whole_numbers(first), _whole_numbers(last)), _whole_numbers([rank])[0])
                for first, last, rank in content["blocks"]
            ]
            if any(len(block.first) != len(sizes) or len(block.last) != len(sizes) for block, _ in blocks):
                raise ValueError(f"a block has not {len(sizes)} dimensions")
            checked, compared = _whole_numbers(content["checked"]), _whole_numbers(content["compared"])
            return SurveyResult(sizes, blocks, checked, compared, _whole_numbers([content["rounds"]])[0])

    @property
    def ranks(self) -> set[int]:
        """The ranks that represent others."""
        return {rank for _, rank in self.blocks}


def _whole_numbers(values: Iterable[object]) -> tuple[int, ...]:
    found = tuple(value for value in values if type(value) is int and 0 <= value <= MOST_RANKS)
    values = list(values)
    if len(found) != len(values):
        raise ValueError(f"{values} are not all whole numbers")
    return found
