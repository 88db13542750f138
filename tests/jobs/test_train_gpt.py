"""scripts/examples/train_gpt.py: the ways to cut a model train alike; and rows of published runs as its jobs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from helpers.parallel_launch import EXAMPLES, ROOT, Launched, maya_torchrun

from maya.devices import load_device
from maya.hosts import load_host

sys.path.insert(0, str(ROOT / "scripts"))

from training_rows import NotExpressible, Row, job_of  # type: ignore[import-not-found]

SMALL = "--family gpt --dtype fp32 --layers 2 --hidden 64 --heads 4 --vocabulary 64 --sequence 32 --lr 0.03"
COMPUTED = ("--compute", "all")


def train(folder: Path, ranks: int, options: str) -> Launched:
    words = f"{SMALL} --micro-batches 2 --steps 3 {options}".split()
    launched = maya_torchrun(folder, ranks, EXAMPLES / "train_gpt.py", *words, options=COMPUTED)
    assert launched.exit_code == 0, launched.output
    return launched


def losses(launched: Launched) -> list[str]:
    found = re.findall(r"loss (\S+)", launched.stdout)
    assert all(0 < float(loss) < 10 for loss in found)
    return found


def test_sequence_parallelism_and_where_gradients_are_added_up_change_no_value(tmp_path: Path) -> None:
    plain, split = (
        losses(train(tmp_path / name, 2, f"--data buckets --tensor 2 {options}"))
        for name, options in (("plain", ""), ("split", "--sequence-parallel --keep-gathered --accumulate-in-products"))
    )
    assert len(plain) == 3
    assert plain == split


def test_what_megatron_does_around_the_ops_changes_no_value(tmp_path: Path) -> None:
    plain, around = (
        losses(train(tmp_path / name, 2, f"--data buckets --tensor 2 --attention unfused --recompute all {options}"))
        for name, options in (("plain", ""), ("around", "--megatron"))
    )
    assert len(plain) == 3
    assert plain == around


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--data zero1", "--data fsdp", "--data ddp", "--pipeline 2 --data zero1"])
def test_every_kind_of_data_parallelism_runs_to_its_end(tmp_path: Path, options: str) -> None:
    launched = train(tmp_path, 4, options)
    assert len(losses(launched)) == 3
    assert "max memory" in launched.stdout


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


def test_long_steps_follow_from_short_ones() -> None:
    job = job_of(11, ROW)
    assert job.counts == [4, 4, 8]
    assert job.step_ms([900.0, 110.0, 190.0]) == pytest.approx(110 + 20 * 252)


def test_rows_that_say_too_little_are_refused_with_a_reason() -> None:
    with pytest.raises(NotExpressible, match="heads"):
        job_of(0, {**ROW, "heads": ""})
    with pytest.raises(NotExpressible, match="no mapping"):
        job_of(0, {**ROW, "script/framework": "of my own"})
