"""Train a model of convolutions, with its cross-validated error.

In: measurements of one device, dtype and direction. Out: a `Model`. There are few shapes, and one fifth of them may be
easy by chance: so each fifth is predicted by a model of the other four, and the error is over all of them.
"""

from __future__ import annotations

import numpy as np

from maya.devices import Device
from maya.estimators.models import convolution
from maya.estimators.pack import Model
from maya.estimators.training.model_training import FOLDS, Error, Size, fold_of, grow
from maya.estimators.training.sources import Measurements

FEW = Size(trees=60, leaves=6, rate=0.1, fewest_in_leaf=2)
MANY = Size(trees=80, leaves=31, rate=0.12, fewest_in_leaf=8)
_MANY_ROWS = 1000


def train_convolutions(device: Device, measured: Measurements) -> Model:
    """A model of all measurements, with its error on held-out channels, filters and windows."""
    batch, seconds = measured.columns()
    size = MANY if len(batch) > _MANY_ROWS else FEW
    bound, columns = convolution.describe(device, batch)
    features = np.stack(list(columns.values()), axis=1).astype(np.float32)
    slowdown = np.log(seconds / bound)
    parts = np.array([fold_of(group) for group in measured.groups])
    predicted = np.zeros(len(batch))
    for part in range(FOLDS):
        held = parts == part
        if held.any():
            trees = grow(features[~held], slowdown[~held], size)
            held_columns = {name: values[held] for name, values in columns.items()}
            predicted[held] = bound[held] * Model(tuple(columns), trees).slowdown(held_columns)
    residual = np.log(predicted / seconds)
    about = {
        "source": measured.source.name,
        "licence": measured.source.licence,
        "date": measured.source.date,
        "rows": len(batch),
        "grouped_by": measured.grouped_by,
        "held_out": vars(Error.of(predicted, seconds)),
        "spread": round(min(float(np.sqrt(np.mean(residual**2))), 1.0), 4),
    }
    return Model(tuple(columns), grow(features, slowdown, size), about)
