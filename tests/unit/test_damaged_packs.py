"""Packs of the user that are damaged: one message that names the file, before anything relies on it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from maya.cli.main import main
from maya.devices import load_device
from maya.estimators.estimator import Estimator
from maya.estimators.kernel import Kernel, KernelClass
from maya.estimators.pack import FOLDER, Pack, PackError
from maya.estimators.pack_check import checked_pack

GEMM = Kernel(KernelClass.GEMM, "bf16", 2e12, 3e8, 1e8, {"m": 4096, "n": 4096, "k": 4096}, "TN")
CONTENTS = "contents"

Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def good() -> Path:
    """The smallest pack of Maya with a model."""
    return min((path for path in FOLDER.glob("*.npz") if Pack(path).models), key=lambda path: path.stat().st_size)


@pytest.fixture(scope="module")
def arrays(good: Path) -> Arrays:
    with np.load(good) as file:
        return dict(file)


def test_every_pack_of_maya_passes() -> None:
    for path in FOLDER.glob("*.npz"):
        checked_pack(path)


def with_contents(arrays: Arrays, change: Callable[[dict[str, Any]], object]) -> Arrays:
    contents = json.loads(bytes(arrays[CONTENTS]))
    change(contents)
    return arrays | {CONTENTS: np.frombuffer(json.dumps(contents).encode(), dtype=np.uint8)}


def first_model(contents: dict[str, Any]) -> dict[str, Any]:
    model: dict[str, Any] = next(iter(contents["models"].values()))
    return model


def test_a_damaged_part_is_named(tmp_path: Path, arrays: Arrays) -> None:
    model = next(iter(json.loads(bytes(arrays[CONTENTS]))["models"]))
    damaged = {
        f'model "{model}" is damaged: leaves': arrays | {f"{model}/leaves": np.zeros((2, 3), dtype=np.float32)},
        "threshold: expected numbers, found NaN": arrays
        | {f"{model}/threshold": np.full_like(arrays[f"{model}/threshold"], np.nan)},
        "feature: expected numbers below": arrays | {f"{model}/feature": np.full_like(arrays[f"{model}/feature"], 200)},
        "KeyError": {name: array for name, array in arrays.items() if name != f"{model}/tree"},
        "spread: expected a positive number": with_contents(
            arrays, lambda contents: first_model(contents).update(spread="wide")
        ),
        "base: expected a number": with_contents(arrays, lambda contents: first_model(contents).update(base=None)),
        "models is damaged": with_contents(arrays, lambda contents: contents.update(models=5)),
    }
    for number, (expected, content) in enumerate(damaged.items()):
        path = tmp_path / f"{number}.npz"
        np.savez(path, **content)
        with pytest.raises(PackError) as caught:
            checked_pack(path)
        assert expected in str(caught.value)
        assert str(path) in str(caught.value)


def test_any_damage_is_reported_or_harmless(tmp_path: Path, good: Path) -> None:
    """A thousand mutations of one file: bytes changed, cut off, or doubled."""
    original = good.read_bytes()
    draw = random.Random(7)
    path = tmp_path / "mutant.npz"
    for _ in range(1000):
        mutant = bytearray(original)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(mutant))
            kind = draw.randrange(3)
            if kind == 0:
                mutant[at] = draw.randrange(256)
            elif kind == 1:
                del mutant[at : at + draw.randrange(1, 64)]
            else:
                mutant[at:at] = mutant[at : at + draw.randrange(1, 64)]
        path.write_bytes(mutant)
        with suppress(PackError):
            checked_pack(path)


def test_an_estimate_with_a_damaged_pack_is_one_message(tmp_path: Path, arrays: Arrays) -> None:
    model = next(iter(json.loads(bytes(arrays[CONTENTS]))["models"]))
    path = tmp_path / "damaged.npz"
    np.savez(path, **(arrays | {f"{model}/tree": np.array([70000], dtype=np.int64)}))
    with pytest.raises(PackError, match="tree: expected"):
        Estimator(load_device("h100"), [path]).estimate([GEMM])
    words = ["estimate", "--gpu", "h100", "--pack", str(path), "--op", "gemm", "--m", "8", "--n", "8", "--k", "8"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code != 0
    assert "tree: expected" in done.output
    assert isinstance(done.exception, SystemExit)
