"""Checks a user's pack before anything relies on it.

In: the path of a pack. Out: the `Pack`, in which every model, curve and measurement can be evaluated; or a `PackError`
that names the file, the place and what was expected there. Packs that come with Maya are not checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from maya.estimators.kernel import CLASS_TRAITS
from maya.estimators.models.curves import Curve
from maya.estimators.models.forest import LARGEST_LEAVES, Trees
from maya.estimators.pack import Model, Pack, PackError

_Part = TypeVar("_Part")


def checked_pack(path: Path) -> Pack:
    """Read everything in a pack."""
    pack = _read(path, "contents", lambda: Pack(path))
    for name in _read(path, "models", lambda: list(pack.models)):
        where = f'model "{name}"'
        problem = _model_problem(_read(path, where, lambda name=name: pack.model(name)))  # type: ignore[misc]
        if problem:
            raise _damaged(path, where, problem)
    for name, curve in _read(path, "curves", lambda: list(pack.curves.items())):
        where = f'curve "{name}"'
        problem = _curve_problem(_read(path, where, lambda curve=curve: Curve.from_json(curve)))  # type: ignore[misc]
        if problem:
            raise _damaged(path, where, problem)
    measured = _read(path, "measured", lambda: pack.measured)
    if any(not _is_positive(value) for value in measured.values()):
        raise _damaged(path, "measured", "expected positive nanoseconds")
    return pack


def _read(path: Path, where: str, read: Callable[[], _Part]) -> _Part:
    try:
        return read()
    except PackError:
        raise
    except Exception as error:  # numpy and zipfile raise whatever the damage leads to
        raise _damaged(path, where, f"{type(error).__name__}: {error}") from error


def _damaged(path: Path, where: str, problem: str) -> PackError:
    return PackError(f"{path}: {where} is damaged: {problem}; make the pack again with: maya calibrate")


def _model_problem(model: Model) -> str | None:
    trees = model.trees
    arrays = {name: np.asarray(getattr(trees, name)) for name in Trees.ARRAYS}
    count = len(arrays["leaves"]) if arrays["leaves"].ndim else 0
    if arrays["leaves"].shape != (count, LARGEST_LEAVES) or not _is_finite(arrays["leaves"]):
        return f"leaves: expected finite numbers in rows of {LARGEST_LEAVES}, found {_kind(arrays['leaves'])}"
    nodes = len(arrays["tree"]) if arrays["tree"].ndim else 0
    for name in ("tree", "feature", "first_leaf", "middle_leaf"):
        if arrays[name].shape != (nodes,) or arrays[name].dtype.kind != "u":
            return f"{name}: expected {nodes} unsigned integers, found {_kind(arrays[name])}"
    if arrays["threshold"].shape != (nodes,) or arrays["threshold"].dtype.kind != "f":
        return f"threshold: expected {nodes} floating-point numbers, found {_kind(arrays['threshold'])}"
    if np.isnan(arrays["threshold"]).any():
        return "threshold: expected numbers, found NaN"
    if not all(isinstance(name, str) for name in model.features):
        return "features: expected names"
    for name, most in (("tree", count), ("feature", len(model.features)), ("middle_leaf", LARGEST_LEAVES)):
        if nodes and int(arrays[name].max()) >= most:
            return f"{name}: expected numbers below {most}, found {int(arrays[name].max())}"
    if (arrays["first_leaf"] >= arrays["middle_leaf"]).any():
        return "first_leaf: expected numbers below middle_leaf"
    if not isinstance(trees.base, (int, float)) or not math.isfinite(trees.base):
        return f"base: expected a number, found {trees.base!r}"
    return None if _is_positive(model.about.get("spread")) else "spread: expected a positive number"


def _curve_problem(curve: Curve) -> str | None:
    axes = {traits.curve_axis for traits in CLASS_TRAITS.values()}
    if curve.axis not in axes:
        return f'axis "{curve.axis}": expected one of {", ".join(sorted(map(str, axes)))}'
    if not curve.knots or len(curve.knots) != len(curve.slowdown):
        return f"expected as many knots as slowdowns, found {len(curve.knots)} and {len(curve.slowdown)}"
    if not _is_finite(curve.knots) or any(np.diff(curve.knots) <= 0):
        return "knots: expected increasing numbers"
    if not _is_finite(curve.slowdown) or min(curve.slowdown) < 1:
        return "slowdown: expected numbers of at least 1"
    if not all(math.isfinite(value) and value >= 0 for value in (curve.start_seconds, curve.row_seconds)):
        return "start_ns, row_ns: expected numbers of at least 0"
    if not _is_positive(curve.about.get("spread", 1.0)):
        return "spread: expected a positive number"
    return None if curve.sm_count > 0 else f"sm_count: expected a positive number, found {curve.sm_count}"


def _is_finite(values: npt.NDArray[Any] | Sequence[float]) -> bool:
    array = np.asarray(values)
    return array.dtype.kind in "fiu" and bool(np.isfinite(array).all())


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def _kind(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
