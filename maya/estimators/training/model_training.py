"""Train a model of the slowdown against the bound, with its error on held-out shapes.

In: a batch of kernels of one device, their times, and a group for each. Kernels of one group (the same n and k, the
same heads and head dimension) are all in the training set or all held out, so that the error is that of a new shape.
Out: a `Model` trained on everything, with the error of a model of the same kind that was trained without a fifth of the
groups. The same measurements give the same model, byte for byte. Only this module needs scikit-learn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.devices import Device
from maya.estimators.batch import Batch, Floats
from maya.estimators.models.forest import LARGEST_LEAVES, Trees
from maya.estimators.pack import Describe, Model
from maya.util.extras import needs

FOLDS = 5  # one of which is held out
FEWEST_GROUPS = 5
_TIMES_DRAWN_IN = 2
_DEVIATION = 1.48  # ratio of standard to median absolute deviation of a normal distribution


@dataclass(frozen=True)
class Size:
    """The size of a model, and other hyperparameters."""

    trees: int = 120
    leaves: int = 63
    rate: float = 0.16
    fewest_in_leaf: int = 8
    shrinkage: float = 0.1  # of leaves with few measurements
    # For measurements with outliers (GEMMs of 1 to 8 rows take the same time, but differ by 4 to 6 %): outliers are
    # drawn towards the others, so that a model learns the typical time and not a disturbance.
    draw_in: bool = False
    # The share of features that a node may choose from. Where all measurements have different shapes, trees that choose
    # from all features make the same errors; with fewer choices the errors partly cancel.
    choice: float = 1.0


@dataclass(frozen=True)
class Error:
    """Statistics of the errors of predictions."""

    rows: int
    mean: float  # of |predicted / measured - 1|
    median: float
    ninetieth: float
    total: float  # sum of predictions / sum of measurements

    @classmethod
    def of(cls, predicted: Floats, measured: Floats) -> Error:
        off = np.abs(predicted / measured - 1.0)
        return cls(
            len(off),
            round(float(off.mean()), 5),
            round(float(np.median(off)), 5),
            round(float(np.percentile(off, 90)), 5),
            round(float(predicted.sum() / measured.sum()), 5),
        )


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows and their predictions."""

    rows: npt.NDArray[np.intp]
    predicted: Floats
    measured: Floats

    @property
    def error(self) -> Error:
        return Error.of(self.predicted, self.measured)


def hold_out(
    device: Device, batch: Batch, seconds: Floats, groups: Sequence[str], describe: Describe, size: Size
) -> HeldOut:
    """Train without a fifth of the groups, and predict those."""
    held = np.array([fold_of(group) == 0 for group in groups])
    bound, columns = describe(device, batch)
    features = _matrix(columns)
    target = np.log(seconds / bound)
    trees = grow(features[~held], target[~held], size)
    predicted = bound[held] * Model(tuple(columns), trees).slowdown(
        {name: values[held] for name, values in columns.items()}
    )
    return HeldOut(np.flatnonzero(held), predicted, seconds[held])


def train(
    device: Device,
    batch: Batch,
    seconds: Floats,
    groups: Sequence[str],
    describe: Describe,
    *,
    source: str,
    licence: str,
    date: str,
    grouped_by: str,
    size: Size | None = None,
) -> Model:
    """A model of all measurements, with its held-out error."""
    size = size or Size()
    distinct = set(groups)
    if len(distinct) < FEWEST_GROUPS:
        raise ValueError(
            f"only {len(distinct)} different shapes ({grouped_by}) of {batch.kernel_class.value} {batch.dtype} "
            f"{batch.variant}: at least {FEWEST_GROUPS} are needed to train on some and check on others; measure more"
        )
    held_out = hold_out(device, batch, seconds, groups, describe, size)
    bound, columns = describe(device, batch)
    trees = grow(_matrix(columns), np.log(seconds / bound), size)
    residual = np.log(held_out.predicted / held_out.measured)
    about: dict[str, Any] = {
        "source": source,
        "licence": licence,
        "date": date,
        "rows": len(batch),
        "grouped_by": grouped_by,
        "held_out": vars(held_out.error),
        "shortest_bound": float(f"{bound.min():.4g}"),  # seconds; there are no shorter measurements
        "smallest": {name: float(np.nanmin(sizes)) for name, sizes in sorted(batch.shape.items())},
        "spread": round(float(np.sqrt(np.mean(residual**2))), 4),
    }
    return Model(tuple(columns), trees, about)


def fold_of(group: str) -> int:
    """The fold of a group, independent of the machine and of other groups."""
    return hashlib.sha256(group.encode()).digest()[0] % FOLDS


def grow(features: npt.NDArray[np.float32], target: Floats, size: Size) -> Trees:
    """Boosted trees for the logarithm of the slowdown."""
    with needs("train", "Learning kernel times"):
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

    if size.leaves > LARGEST_LEAVES:
        raise ValueError(f"trees of {size.leaves} leaves; a pack holds at most {LARGEST_LEAVES}")
    regressor = HistGradientBoostingRegressor(
        max_iter=size.trees,
        max_leaf_nodes=size.leaves,
        learning_rate=size.rate,
        min_samples_leaf=size.fewest_in_leaf,
        l2_regularization=size.shrinkage,
        max_features=size.choice,
        early_stopping=False,
        random_state=0,
    )
    with threadpool_limits(limits=1):
        regressor.fit(features, target)
        for _ in range(_TIMES_DRAWN_IN if size.draw_in else 0):
            learned = regressor.predict(features)
            off = target - learned
            usual = _DEVIATION * float(np.median(np.abs(off)))
            regressor.fit(features, learned + np.clip(off, -usual, usual))
    return _flatten(
        [stage[0].nodes for stage in regressor._predictors], float(np.ravel(regressor._baseline_prediction)[0])
    )


def _matrix(columns: dict[str, Floats]) -> npt.NDArray[np.float32]:
    return np.stack(list(columns.values()), axis=1).astype(np.float32)


def _flatten(trees: Sequence[npt.NDArray[Any]], base: float) -> Trees:
    """scikit-learn's trees as the arrays that a pack holds."""
    inner: list[tuple[int, int, float, int, int]] = []
    leaves = np.zeros((len(trees), LARGEST_LEAVES), dtype=np.float32)
    for number, nodes in enumerate(trees):
        found = 0

        def visit(position: int, number: int = number, nodes: npt.NDArray[Any] = nodes) -> None:
            nonlocal found
            node = nodes[position]
            if node["is_leaf"]:
                leaves[number, found] = node["value"]
                found += 1
                return
            first = found
            visit(int(node["left"]))
            inner.append((number, int(node["feature_idx"]), float(node["num_threshold"]), first, found))
            visit(int(node["right"]))

        visit(0)
    columns = list(zip(*inner, strict=True)) or [(), (), (), (), ()]
    return Trees(
        tree=np.array(columns[0], dtype=np.uint16),
        feature=np.array(columns[1], dtype=np.uint8),
        threshold=np.array(columns[2], dtype=np.float32),
        first_leaf=np.array(columns[3], dtype=np.uint8),
        middle_leaf=np.array(columns[4], dtype=np.uint8),
        leaves=leaves,
        base=base,
    )
