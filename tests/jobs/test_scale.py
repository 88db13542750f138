"""`maya scale` on real jobs: interrupted, resumed with a size that fails, and finished."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import maya
from rank_runtime.build import Build

TRAIN = """
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rows, folder = int(sys.argv[1]), Path(__file__).parent
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
if dist.get_world_size() == 2 and (folder / "hold").exists():
    (folder / "held").touch()
    signal.pause()
if dist.get_world_size() == 2 and (folder / "broken").exists():
    raise RuntimeError("no room for two")
table = torch.nn.Embedding(512, 256)
model = DistributedDataParallel(torch.nn.Sequential(table, torch.nn.Linear(256, 256)).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(rows, 64, dtype=torch.long, device="cuda")).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
WORDS = (
    "train.py",
    "--nproc",
    "1,2",
    "--represent",
    "0",
    "--cluster",
    "dgx-h100",
    "--out",
    "study",
    "--",
    "{8//nproc}",
)


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "maya.cli", "scale", *WORDS]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def sizes_in(folder: Path) -> dict[str, str]:
    """The problem of every size in the CSV file."""
    with (folder / "study" / "scale.csv").open(encoding="utf-8") as file:
        return {row["nproc"]: row["problem"] for row in csv.DictReader(file)}


def test_study_goes_on_where_it_stopped(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "hold").touch()
    with start(tmp_path) as study:
        while not (tmp_path / "held").exists() and study.poll() is None:
            time.sleep(0.1)
        study.send_signal(signal.SIGINT)
        output, errors = study.communicate(timeout=120)
    assert study.returncode == 1, errors
    assert "nproc-1 (" in output
    assert "interrupted; to go on: the same command with --out study" in errors
    assert sizes_in(tmp_path) == {"1": ""}
    first_run = (tmp_path / "study" / "nproc-1" / "run.json").stat().st_mtime_ns

    (tmp_path / "hold").unlink()
    (tmp_path / "broken").touch()
    with start(tmp_path) as study:
        output, errors = study.communicate(timeout=300)
    assert study.returncode == 1, errors
    assert "(finished before)" in errors
    assert "2 ranks failed: RuntimeError: no room for two (train.py:18)" in output
    assert (tmp_path / "study" / "scale.html").is_file()

    (tmp_path / "broken").unlink()
    monkeypatch.chdir(tmp_path)
    found = maya.scale(
        "train.py", ["{8//nproc}"], nproc=[1, 2], represent="0", cluster="dgx-h100", out="study", quiet=True
    )
    assert (found.failed, found.mode.kind, sizes_in(tmp_path)) == ((), "strong", {"1": "", "2": ""})
    assert (tmp_path / "study" / "nproc-1" / "run.json").stat().st_mtime_ns == first_run
    assert [row.samples_per_step for row in found.rows] == [512, 512]
    assert found.run(2).settings.world_size == 2
