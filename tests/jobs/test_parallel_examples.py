"""The distributed programs of scripts/examples on several virtual GPUs: each runs to its end.

Few of their values are computed. That all would be right is for test_parallel_training to say.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.parallel_launch import EXAMPLES, ParallelRun, maya_torchrun, stock_torchrun

from maya.trace import RecordKind, read
from rank_runtime.build import Build

# What each prints besides its steps. Four ranks are enough for meshes of two by two and for pipelines of eight stages.
ON_FOUR_RANKS = {
    "ddp.py --find-unused-parameters --accumulate 2 --hook fp16": "",
    "zero.py --hidden 256": "the whole optimizer: state of 69 parameters",
    "fsdp1.py --sharding hybrid --mixed-precision --checkpointing": "8435200 of the parameters are on rank 0",
    "fsdp2.py --shards 2 --mixed-precision --accumulate 2": (
        "embedding of (4096, 512): (2048, 512) here, (Replicate(), Shard(dim=0))"
    ),
    "tensor_parallel.py --tensor-ranks 2 --sequence-parallel --loss-parallel --steps 2": (
        "weight of (2048, 512): (512, 512) here"
    ),
    "pipeline.py --schedule 1F1B --pipeline-ranks 2 --microbatches 8 --steps 2": "",
    "pipeline.py --schedule ZBVZeroBubble --microbatches 8 --steps 2": "",
    "context_parallel.py --attention flash": "256 of 1024 tokens a rank",
    "expert_parallel.py --layers 2 --steps 2 --expert-ranks 2": "64 of 128 tensors of experts here",
}
ON_EIGHT_RANKS = {
    "ddp.py": "",
    "ddp.py --find-unused-parameters --accumulate 2 --hook fp16": "",
    "ddp.py --static-graph --bucket-view --hook bf16": "",
    "ddp.py --hook powersgd --steps 4": "",
    "zero.py --hidden 256": "the whole optimizer: state of 69 parameters",
    "zero.py --overlap --steps 5": "",
    "fsdp1.py": "2108800 of the parameters are on rank 0",
    "fsdp1.py --sharding gradients --original-parameters": "the whole model: 69 tensors of 16870400 elements",
    "fsdp1.py --sharding hybrid --mixed-precision --checkpointing": "8435200 of the parameters are on rank 0",
    "fsdp2.py": "embedding of (4096, 512): (512, 512) here, (Shard(dim=0),)",
    "fsdp2.py --shards 4 --mixed-precision --accumulate 2": (
        "embedding of (4096, 512): (1024, 512) here, (Replicate(), Shard(dim=0))"
    ),
    "fsdp2.py --offload --reshard-after-forward partly --hidden 64": "embedding of (4096, 64): (512, 64) here",
    "tensor_parallel.py": "weight of (2048, 512): (256, 512) here, (Shard(dim=0),)",
    "tensor_parallel.py --tensor-ranks 4 --sequence-parallel --loss-parallel": "weight of (2048, 512): (256, 512) here",
    "pipeline.py --schedule GPipe": "",
    "pipeline.py --schedule 1F1B --pipeline-ranks 4": "",
    "pipeline.py --schedule Interleaved1F1B": "",
    "pipeline.py --schedule InterleavedZeroBubble": "",
    "pipeline.py --schedule ZBVZeroBubble": "",
    "context_parallel.py --attention flash": "128 of 1024 tokens a rank",
    "context_parallel.py --attention efficient --rotate alltoall --context-ranks 4": "256 of 1024 tokens a rank",
    "context_parallel.py --attention cudnn": "128 of 1024 tokens a rank",
    "expert_parallel.py --expert-ranks 4": "64 of 256 tensors of experts here",
}
CASES = [
    *(pytest.param(4, program, id=f"4 x {program}") for program in ON_FOUR_RANKS),
    *(pytest.param(8, program, id=f"8 x {program}", marks=pytest.mark.slow) for program in ON_EIGHT_RANKS),
]


def run_program(folder: Path, ranks: int, program: str, *options: str) -> ParallelRun:
    """A program that has to succeed, given as a command line whose first word is a file of scripts/examples."""
    name, *arguments = program.split()
    run = maya_torchrun(folder, ranks, EXAMPLES / name, *arguments, options=options)
    assert run.exit_code == 0, run.output
    assert "is not emulated" not in run.stderr
    return run


def losses(run: ParallelRun) -> list[float]:
    """Those of the steps that were reported."""
    return [float(loss) for loss in re.findall(r"^step \d+  loss (\d+\.\d+)", run.stdout, re.MULTILINE)]


@pytest.mark.parametrize(("ranks", "program"), CASES)
def test_a_program_runs_to_its_end(ranks: int, program: str, tmp_path: Path) -> None:
    run = run_program(tmp_path, ranks, program)
    asked = re.search(r"--steps (\d+)", program)
    assert len(losses(run)) == (int(asked.group(1)) if asked else 3)
    assert (ON_FOUR_RANKS if ranks == 4 else ON_EIGHT_RANKS)[program] in run.stdout
    for rank in range(ranks):
        trace = read(tmp_path / "out" / f"rank{rank}.trace")
        assert trace.complete, trace.problem
        assert len(trace.kernels()) > 100
        assert len(trace.select(RecordKind.COLLECTIVE)) > 3


def test_reads_that_wait_for_a_collective_are_reported_with_their_line(tmp_path: Path) -> None:
    run = run_program(tmp_path, 2, "ddp.py --steps 2")
    (line,) = (line for line in run.stderr.splitlines() if "reads placeholder values" in line)
    assert "small_gpt.py:" in line  # the loss, reduced over the ranks
    assert "ddp.py:" in line  # the norm of the reduced gradients
    assert "an unknown line" not in line


@pytest.mark.parametrize(
    ("way", "ranks"),
    [
        ("asynchronous", 4),
        pytest.param("asynchronous", 8, marks=pytest.mark.slow),
        pytest.param("synchronous", 8, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_is_resumed_by_half_the_ranks(way: str, ranks: int, build: Build, tmp_path: Path) -> None:
    """Everything computed, so that what is saved and loaded are values: training goes on as if nothing had happened."""
    model = "--layers 2 --hidden 64 --vocabulary 96 --sequence 16 --lr 0.02"
    script = EXAMPLES / "checkpoint.py"
    alone = f"{model} --batch 8 --steps 4 --device cpu --folder {tmp_path / 'other'}".split()
    expected = losses(stock_torchrun(build, tmp_path / "alone", 1, script, *alone))
    assert len(expected) == 4

    program = (
        f"{script.name} {model} --steps 2 --folder {tmp_path / 'saved'}{' --asynchronous' * (way == 'asynchronous')}"
    )
    run = run_program(tmp_path / "all", ranks, f"{program} --batch {8 // ranks}", "--compute", "all")
    assert losses(run) == pytest.approx(expected[:2], abs=2e-4)
    assert f"saved in step0002: {ranks} files" in run.stdout
    half = ranks // 2
    run = run_program(tmp_path / "half", half, f"{program} --batch {8 // half}", "--compute", "all")
    assert run.stdout.startswith(f"{half} ranks resume at step 2, saved by {ranks} ranks\nstep 2 ")
    assert losses(run) == pytest.approx(expected[2:], abs=2e-4)
    assert f"saved in step0004: {half} files" in run.stdout
