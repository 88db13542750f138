"""Rows of published training runs become jobs of train_gpt.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from maya.devices import load_device
from maya.hosts import load_host

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from training_rows import NotExpressible, Row, job_of  # type: ignore[import-not-found]

ROW: Row = {
    "script/framework": "nanotron", "source": "", "model": "Llama-like 8B", "layers": "32", "hidden": "4096",
    "heads": "32", "kv_heads": "32", "ffn": "14336", "vocab": "131072", "seq": "4096", "micro_batch": "1",
    "global_batch": "256", "dtype": "bf16", "gpus": "8", "gpu_type": "H100", "tp": "2", "pp": "4", "cp": "1", "ep": "",
    "dp_kind": "zero-0 DP=1", "activation_ckpt": "", "float8": "", "metric": "tokens/s/GPU", "value": "6689",
    "peak_mem_GiB": "40.9", "notes": "",
}  # fmt: skip


def test_a_row_becomes_a_job() -> None:
    job = job_of(11, ROW)
    assert (job.gpus, job.micro_batches, job.stages) == (8, 256, 4)
    assert job.measured_ms == pytest.approx(1000 * 256 * 4096 / (8 * 6689))
    assert job.tokens_per_gpu == 256 * 4096 / 8
    assert "--sequence-parallel" in job.options


def test_a_job_has_the_host_of_its_nodes() -> None:
    old = job_of(0, {**ROW, "script/framework": "Megatron-DeepSpeed", "source": "ground_truth_single.csv"})
    assert job_of(11, ROW).host == "reference"
    assert load_host(old.host, load_device(old.gpu)).op > load_host("reference", load_device(old.gpu)).op


def test_the_first_rank_of_each_stage_represents_it() -> None:
    assert list(job_of(11, ROW).representatives) == [0, 2, 4, 6]
    assert list(job_of(11, {**ROW, "gpus": "128"}).representatives) == [0, 32, 64, 96]


def test_long_steps_follow_from_short_ones() -> None:
    job = job_of(11, ROW)
    assert job.counts == [4, 4, 8]
    assert job.step_ms([900.0, 110.0, 190.0]) == pytest.approx(110 + 20 * 252)


def test_incomplete_rows_are_refused_with_a_reason() -> None:
    with pytest.raises(NotExpressible, match="heads"):
        job_of(0, {**ROW, "heads": ""})
    with pytest.raises(NotExpressible, match="no mapping"):
        job_of(0, {**ROW, "script/framework": "of my own"})


def test_the_source_completes_a_row_of_bigscience() -> None:
    row = {**ROW, "script/framework": "Megatron-DeepSpeed", "source": "tr11-176B-ml/chronicles-prequel.md line 585"}
    row |= {"params": "187B", "layers": "", "hidden": "13824", "heads": "", "ffn": "55296", "vocab": "250k"}
    row |= {"gpus": "320", "tp": "8", "pp": "10", "dtype": "fp16"}
    options = " ".join(job_of(324, row).options)
    assert "--layers 80" in options
    assert "--heads 64" in options
    assert "--fill-stages" in options
    with pytest.raises(NotExpressible, match="hidden is not given"):
        job_of(340, {**row, "hidden": ""})
