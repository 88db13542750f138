"""Fit the constants of recurrent layers (library_calls.RNN_CONSTANTS): DeepBench in, constants and held-out error
out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Floats, batches
from maya.estimators.models.library_calls import RNN_CONSTANTS, rnn_terms
from maya.estimators.training.model_training import FOLDS, fold_of
from maya.estimators.training.sources import deepbench
from maya.util.extras import needs

_SCALE = np.array([1e-6, 1.0, 1.0])


def fitted_constants(folder: Path, device: Device) -> dict[str, tuple[tuple[float, ...], float]]:
    """For each direction the constants, and the mean relative error on held-out cells and hidden sizes."""
    layers = [layer for dtype in deepbench.FILES for layer in deepbench.recurrent(folder, dtype)]
    found = {}
    for variant in RNN_CONSTANTS:
        chosen = [layer for layer in layers if layer.kernel.variant == variant]
        terms = np.zeros((len(chosen), 3))
        for positions, batch in batches([layer.kernel for layer in chosen]):
            terms[positions] = np.stack(rnn_terms(device, batch), axis=1)
        seconds = np.array([layer.seconds for layer in chosen])
        folds = np.array([fold_of(layer.group) for layer in chosen])
        errors = []
        for fold in range(FOLDS):
            held = folds == fold
            predicted = terms[held] @ _solve(terms[~held], seconds[~held])
            errors += np.abs(predicted / seconds[held] - 1.0).tolist()
        constants = tuple(float(value) for value in _solve(terms, seconds))
        found[variant] = (constants, float(np.mean(errors)))
    return found


def _solve(terms: Floats, seconds: Floats) -> Floats:
    """Relative least squares with constants that are not negative."""
    with needs("train", "Learning kernel times"):
        from scipy.optimize import nnls  # type: ignore[import-untyped]

    solution: Floats = nnls(terms / seconds[:, None] * _SCALE, np.ones(len(seconds)))[0] * _SCALE
    return solution
