"""The coordinator's conversions of narrow floats are those of torch, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.arithmetic import FORMATS, ITEM_BYTES
from rank_runtime.build import Build
from rank_runtime.messages import DataType

Array = npt.NDArray[Any]
NARROW = [DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT8_E4M3, DataType.FLOAT8_E5M2]


# ---- torch's conversions ----

_TORCH_CONVERSIONS = """
import sys
import numpy, torch

TYPES = {"6": torch.float16, "9": torch.bfloat16, "10": torch.float8_e4m3fn, "11": torch.float8_e5m2}
given = numpy.load(sys.argv[1])
answers = {}
for name, data_type in TYPES.items():
    size = data_type.itemsize
    bits = torch.uint8 if size == 1 else torch.int16
    codes = torch.from_numpy(numpy.arange(256**size, dtype=f"u{size}").view(f"i{size}"))
    answers["decoded" + name] = codes.view(data_type).float().numpy()
    values = torch.from_numpy(given["values" + name])
    answers["encoded" + name] = values.to(data_type).view(bits).numpy().view(f"u{size}")
numpy.savez(sys.argv[2], **answers)
"""
LARGEST = {
    DataType.FLOAT16: 65504.0,
    DataType.BFLOAT16: 3.3895e38,
    DataType.FLOAT8_E4M3: 448.0,
    DataType.FLOAT8_E5M2: 57344.0,
}


def _interesting_values(data_type: DataType) -> Array:
    """Numbers in the type's range, all its halves between neighbours, and the smallest ones."""
    random = np.random.default_rng(data_type)
    scales = 2.0 ** random.integers(-30, 17, 20_000)
    values = np.concatenate(
        [
            random.normal(size=20_000) * scales,
            np.arange(-1 << 12, 1 << 12) * 2.0**-20,
            np.arange(-1 << 12, 1 << 12) * 2.0**-9,
            np.arange(-1 << 12, 1 << 12) / 8.0,
        ]
    ).astype(np.float32)
    return values[np.abs(values) <= LARGEST[data_type]]


def test_conversions_are_those_of_torch(build: Build, tmp_path: Path) -> None:
    given_file, answer_file = tmp_path / "given.npz", tmp_path / "answers.npz"
    np.savez(given_file, **{f"values{int(each)}": _interesting_values(each) for each in NARROW})  # type: ignore[arg-type]
    subprocess.run(
        [sys.executable, "-c", _TORCH_CONVERSIONS, str(given_file), str(answer_file)],
        env={**os.environ, "LD_PRELOAD": ":".join(map(str, build.libraries))},
        check=True,
        timeout=120,
    )
    with np.load(answer_file) as answers:
        for data_type in NARROW:
            stored = FORMATS[data_type]
            codes = np.arange(256 ** ITEM_BYTES[data_type]).astype(f"u{ITEM_BYTES[data_type]}")
            np.testing.assert_array_equal(
                stored.widen(codes.view(stored.stored)), answers[f"decoded{int(data_type)}"], err_msg=data_type.name
            )
            np.testing.assert_array_equal(
                stored.narrow(_interesting_values(data_type)).view(codes.dtype),
                answers[f"encoded{int(data_type)}"],
                err_msg=data_type.name,
            )
