"""A small GPT trained in parallel, everything computed: the losses are those of one process on the CPU.

So collectives, streams and values are right together: a sum that misses a rank, a bucket read before it was written, or
a shard that went to the wrong place would show in the second loss.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.parallel_launch import maya_torchrun, stock_environment

from rank_runtime.build import Build

DRIVER = Path(__file__).parent / "parallel_training_driver.py"


@dataclass(frozen=True)
class Job:
    """Ranks that train by several ways, one after the other."""

    ranks: int
    ways: tuple[str, ...]
    model: tuple[str, ...] = ("--layers", "8", "--steps", "3")


DATA_AND_TENSOR = ("ddp", "zero", "fsdp1", "fsdp2", "hsdp", "tp", "tp_sequence")
JOBS = (
    # Every stage of a pipeline has a layer at least: with two stages per rank, that is for up to 4 ranks.
    Job(2, (*DATA_AND_TENSOR, "pp", "pp_interleaved", "pp_zero_bubble")),
    Job(4, (*DATA_AND_TENSOR, "pp", "pp_interleaved", "pp_zero_bubble")),
    Job(8, (*DATA_AND_TENSOR, "pp")),
    *(Job(ranks, ("cp",), model=("--layers", "2", "--sequence", "256")) for ranks in (2, 4)),
)

Losses = dict[str, list[float]]  # by way


def losses(output: str) -> Losses:
    lines = (line.partition(": ") for line in output.splitlines())
    return {way: [float(word) for word in words.split()] for way, _, words in lines}


class Trainings:
    """Each job and each training by one process is run once, when it is first asked for."""

    def __init__(self, build: Build, folder: Path) -> None:
        self.environment = stock_environment(build)
        self.folder = folder
        self.of_jobs: dict[Job, Losses] = {}
        self.of_one_process: dict[tuple[str, ...], Losses] = {}

    def by_maya(self, job: Job) -> Losses:
        if job not in self.of_jobs:
            self.of_jobs[job] = {}
            run = maya_torchrun(
                self.folder / f"job{len(self.of_jobs)}",
                job.ranks,
                DRIVER,
                *job.ways,
                *job.model,
                options=("--compute", "all", "--no-trace"),
            )
            assert run.exit_code == 0, run.output
            assert "cannot be computed" not in run.stderr
            self.of_jobs[job] = losses(run.stdout)
        return self.of_jobs[job]

    def by_one_process(self, model: tuple[str, ...]) -> list[float]:
        if model not in self.of_one_process:
            command = [sys.executable, str(DRIVER), "alone", *model, "--device", "cpu"]
            ended = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
            assert ended.returncode == 0, ended.stderr
            self.of_one_process[model] = losses(ended.stdout)
        return self.of_one_process[model]["alone"]


@pytest.fixture(scope="module")
def trainings(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return Trainings(build, tmp_path_factory.mktemp("trainings"))


def _marks(job: Job) -> tuple[pytest.MarkDecorator, ...]:
    """What runs on four ranks is likely to run on two and on eight. A ring for context parallelism needs only two."""
    quick = 2 if job.ways == ("cp",) else 4
    return () if job.ranks == quick else (pytest.mark.slow,)


@pytest.mark.parametrize(
    ("job", "way"),
    [pytest.param(job, way, id=f"{way}-{job.ranks}", marks=_marks(job)) for job in JOBS for way in job.ways],
)
def test_losses_are_those_of_one_process(job: Job, way: str, trainings: Trainings) -> None:
    expected = trainings.by_one_process(job.model)
    assert expected[-1] < expected[0] - 0.2
    assert trainings.by_maya(job).get(way) == pytest.approx(expected, rel=1e-5)
