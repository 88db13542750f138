"""Boosted regression trees, evaluated with numpy for many rows at a time.

In: the nodes of trees of at most 64 leaves, as plain arrays. Out: for each row of features the sum of the leaves it
reaches. A row is not walked down each tree. Instead, each (feature, interval between thresholds) has a 64-bit mask per
tree of the leaves that are still possible; the masks of a row's features are combined with AND, and the lowest bit left
is the leaf. (The method is known as QuickScorer, Lucchese et al., SIGIR 2015.) So a row costs one pass over contiguous
memory per feature, whatever the trees look like.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.estimators.batch import Floats

LARGEST_LEAVES = 64
_ROWS_AT_ONCE = 256  # keeps masks of a block of rows within the processor's cache
_EXPONENT_OF_ONE = 127  # of a float32, as it is stored


@dataclass(frozen=True)
class Trees:
    """All trees of one model, as stored: inner nodes in any order, leaves numbered from left to right in each tree."""

    tree: npt.NDArray[np.uint16]  # of each inner node
    feature: npt.NDArray[np.uint8]
    threshold: npt.NDArray[np.float32]  # to the left when the feature is not above it
    first_leaf: npt.NDArray[np.uint8]  # the leaves [first, middle) are to the left of the node
    middle_leaf: npt.NDArray[np.uint8]
    leaves: npt.NDArray[np.float32]  # (trees, 64): values of the leaves, padded with zeros
    base: float

    ARRAYS = ("tree", "feature", "threshold", "first_leaf", "middle_leaf", "leaves")


class Forest:
    """Trees made ready for evaluation."""

    def __init__(self, trees: Trees, features: int) -> None:
        self.features = features
        self._base = trees.base
        count = len(trees.leaves)
        self._leaves = np.ascontiguousarray(trees.leaves, dtype=np.float32).reshape(-1)
        self._offsets = (np.arange(count) * LARGEST_LEAVES - _EXPONENT_OF_ONE).astype(np.int32)
        self._thresholds: list[npt.NDArray[np.float32]] = []
        self._masks: list[npt.NDArray[np.uint64]] = []
        left = _leaf_range(trees.first_leaf, trees.middle_leaf)
        for feature in range(features):
            nodes = np.flatnonzero(trees.feature == feature)
            thresholds, which = np.unique(trees.threshold[nodes], return_inverse=True)
            masks = np.full((len(thresholds) + 1, count), ~np.uint64(0))
            # Above a node's threshold, the leaves to its left are excluded, as for all larger values.
            np.bitwise_and.at(masks, (which + 1, trees.tree[nodes].astype(np.intp)), ~left[nodes])
            self._thresholds.append(thresholds)
            self._masks.append(np.bitwise_and.accumulate(masks, axis=0))

    def evaluate(self, rows: npt.NDArray[np.float32]) -> Floats:
        """One value for each row; `rows` has a column for each feature."""
        if rows.ndim != 2 or rows.shape[1] != self.features:
            raise ValueError(f"rows of {self.features} features expected, not an array of shape {rows.shape}")
        result = np.full(len(rows), self._base)
        if not len(self._offsets):
            return result
        intervals = [
            np.searchsorted(thresholds, np.ascontiguousarray(rows[:, feature]), side="left")
            for feature, thresholds in enumerate(self._thresholds)
        ]
        asked = [feature for feature, masks in enumerate(self._masks) if len(masks) > 1]
        if not asked:
            return result + self._leaves[::LARGEST_LEAVES].sum(dtype=np.float64)
        first, *others = asked
        possible = np.empty((min(len(rows), _ROWS_AT_ONCE), len(self._offsets)), dtype=np.uint64)
        chosen = np.empty_like(possible)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            block = slice(start, start + _ROWS_AT_ONCE)
            left, of_feature = possible[: len(rows) - start], chosen[: len(rows) - start]
            np.take(self._masks[first], intervals[first][block], axis=0, out=left, mode="clip")
            for feature in others:
                np.take(self._masks[feature], intervals[feature][block], axis=0, out=of_feature, mode="clip")
                np.bitwise_and(left, of_feature, out=left)
            leaves = _exponent_of_lowest_bit(left, of_feature)
            leaves += self._offsets
            result[block] += np.take(self._leaves, leaves).sum(axis=1, dtype=np.float64)
        return result


def _leaf_range(first: npt.NDArray[np.uint8], end: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Bits [first, end) set; 0 <= first < end < 64."""
    one = np.uint64(1)
    bits: npt.NDArray[np.uint64] = (one << end.astype(np.uint64)) - (one << first.astype(np.uint64))
    return bits


def _exponent_of_lowest_bit(masks: npt.NDArray[np.uint64], scratch: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
    """The index of the lowest set bit, as the stored exponent of that bit as a float. `scratch` is overwritten."""
    np.negative(masks, out=scratch)
    np.bitwise_and(masks, scratch, out=scratch)
    exponents: npt.NDArray[np.int32] = scratch.astype(np.float32).view(np.int32)
    exponents >>= 23
    return exponents
