"""scripts/examples/train_gpt.py: all ways to divide a model train alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.parallel_launch import EXAMPLES, ParallelRun, maya_torchrun

SMALL = "--family gpt --dtype fp32 --layers 2 --hidden 64 --heads 4 --vocabulary 64 --sequence 32 --lr 0.03"
COMPUTED = ("--compute", "all")


def train(folder: Path, ranks: int, options: str) -> ParallelRun:
    words = f"{SMALL} --micro-batches 2 --steps 3 {options}".split()
    launched = maya_torchrun(folder, ranks, EXAMPLES / "train_gpt.py", *words, options=COMPUTED)
    assert launched.exit_code == 0, launched.output
    return launched


def losses(launched: ParallelRun) -> list[str]:
    found = re.findall(r"loss (\S+)", launched.stdout)
    assert all(0 < float(loss) < 10 for loss in found)
    return found


def test_sequence_parallelism_and_fused_gradient_accumulation_change_no_value(tmp_path: Path) -> None:
    plain, split = (
        losses(train(tmp_path / name, 2, f"--data buckets --tensor 2 {options}"))
        for name, options in (("plain", ""), ("split", "--sequence-parallel --keep-gathered --accumulate-in-products"))
    )
    assert len(plain) == 3
    assert plain == split


@pytest.mark.slow
def test_the_host_work_of_megatron_changes_no_value(tmp_path: Path) -> None:
    plain, around = (
        losses(train(tmp_path / name, 2, f"--data buckets --tensor 2 --attention unfused --recompute all {options}"))
        for name, options in (("plain", ""), ("around", "--megatron"))
    )
    assert len(plain) == 3
    assert plain == around


def test_interleaved_pipeline_stages_change_no_value(tmp_path: Path) -> None:
    llama = "--family llama --kv-heads 2 --layers 6"
    interleaved = "--pipeline 2 --virtual-stages 4 --short-ends --recompute gate --accumulate-in-products"
    plain, cut = (
        losses(train(tmp_path / str(ranks), ranks, f"{llama} {options}"))
        for ranks, options in ((1, "--data buckets"), (2, interleaved))
    )
    assert len(plain) == 3
    assert plain == cut


def test_context_parallelism_changes_no_value_but_by_rounding(tmp_path: Path) -> None:
    llama = "--family llama --kv-heads 2 --dtype bf16 --data zero1"  # FlashAttention has no fp32
    plain, shared = (losses(train(tmp_path / str(ranks), ranks, f"{llama} --context {ranks}")) for ranks in (1, 2))
    assert len(plain) == 3
    assert list(map(float, plain)) == pytest.approx(list(map(float, shared)), abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--data zero1", "--data fsdp", "--data ddp", "--pipeline 2 --data zero1"])
def test_every_kind_of_data_parallelism_trains(tmp_path: Path, options: str) -> None:
    launched = train(tmp_path, 4, options)
    assert len(losses(launched)) == 3
    assert "max memory" in launched.stdout
