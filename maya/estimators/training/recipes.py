"""Which model is trained from which measurements: the contents of the packs that come with Maya.

In: the folder of public measurements (with a folder `kernels`, and in it one folder per source). Out: the measurements
of each recipe, read on demand. `scripts/train_packs` makes packs of them, `scripts/estimator_accuracy` reports their
accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from maya.devices import load_device
from maya.estimators.models import attention, gemm
from maya.estimators.pack import Describe, Model
from maya.estimators.training.model_training import Size, train
from maya.estimators.training.sources import Measurements, aiconfigurator, cudnn_frontend, neusight_gemm

SMALL = Size(trees=60, leaves=8, rate=0.2, fewest_in_leaf=2)  # for tens of measurements
NOISY = Size(trees=160, rate=0.12, fewest_in_leaf=30, draw_in=True)  # fp8 was measured once, bf16 twice
VARIED = Size(trees=300, rate=0.08, fewest_in_leaf=10, shrinkage=3.0, choice=0.5)  # shapes drawn at random


@dataclass(frozen=True)
class Recipe:
    """One model of one device."""

    device: str
    model: str  # its name in the pack
    title: str  # in tables
    read: Callable[[Path], Measurements]
    describe: Describe
    size: Size = Size()  # noqa: RUF009


def _recipes() -> list[Recipe]:
    recipes = []
    for device in ("a100-80", "h100", "h200", "b200", "gb200", "l40s"):
        for dtype in ("bf16",) if device == "a100-80" else ("bf16", "fp8"):
            read = partial(_gemm, device=device, dtype=dtype)
            size = NOISY if dtype == "fp8" else Size()
            recipes.append(Recipe(device, f"gemm/{dtype}", f"GEMM {dtype}", read, gemm.describe, size))
    for device in ("v100", "a100-40"):
        single = partial(_single_precision, device=device)
        recipes.append(Recipe(device, "gemm/fp32", "GEMM fp32, also batched", single, gemm.describe_closely, VARIED))
    for device, name, title, kernels in (
        ("a100-80", "flash", "FlashAttention 2 forward", ("flash_attention",)),
        ("l40s", "flash", "FlashAttention 2 forward (flashinfer)", ("flashinfer",)),
        ("h100", "flash3", "FlashAttention 3 forward", ("fa3", "flash_attention_v3")),
        ("h200", "flash3", "FlashAttention 3 forward", ("fa3", "flash_attention_v3")),
        ("b200", "flash4", "TensorRT-LLM / FlashAttention 4 forward", ("trtllm_mha", "flash_attention_v4")),
        ("gb200", "flash4", "TensorRT-LLM / FlashAttention 4 forward", ("trtllm_mha", "flash_attention_v4")),
    ):
        served = partial(_served_attention, device=device, implementation=name, kernels=kernels)
        recipes.append(Recipe(device, f"attention/bf16/{name}_forward", title, served, attention.describe))
    for device in ("h200", "gb200"):
        for dtype in ("bf16", "fp8"):
            for backward in (False, True):
                direction = "backward" if backward else "forward"
                cudnn = partial(_cudnn_attention, device=device, dtype=dtype, backward=backward)
                model, title = f"attention/{dtype}/cudnn_{direction}", f"cuDNN attention {dtype} {direction}"
                recipes.append(Recipe(device, model, title, cudnn, attention.describe, SMALL))
    return recipes


def _gemm(folder: Path, device: str, dtype: str) -> Measurements:
    return aiconfigurator.gemm(folder / "kernels" / "aiconfigurator", device, dtype)


def _single_precision(folder: Path, device: str) -> Measurements:
    return neusight_gemm.gemm(folder / "kernels" / "neusight", device)


def _served_attention(folder: Path, device: str, implementation: str, kernels: tuple[str, ...]) -> Measurements:
    return aiconfigurator.attention(folder / "kernels" / "aiconfigurator", device, implementation, kernels)


def _cudnn_attention(folder: Path, device: str, dtype: str, backward: bool) -> Measurements:
    return cudnn_frontend.attention(folder / "kernels" / "cudnn_frontend", device, dtype, backward)


RECIPES = _recipes()


def follow(recipe: Recipe, measured: Measurements) -> Model:
    """Train the model of a recipe."""
    batch, seconds = measured.columns()
    return train(
        load_device(recipe.device).in_bursts,
        batch,
        seconds,
        measured.groups,
        recipe.describe,
        source=measured.source.name,
        licence=measured.source.licence,
        date=measured.source.date,
        grouped_by=measured.grouped_by,
        size=recipe.size,
    )
