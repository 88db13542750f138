"""`maya search` gives slow trials up: by what rank 0 does alone, once, and not again after a kill."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest

import maya
from maya.config_search.trial_ledger import STUDY
from maya.launcher.giving_up import LeastStep
from rank_runtime.build import Build

GAVE_UP = 3
TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

width = int(sys.argv[1])
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
layers = [torch.nn.Linear(width, width) for _ in range(3)]
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(512, width), *layers).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(8, 512, dtype=torch.long, device="cuda")).sum().backward()
    optimizer.step()
"""
# Two stages; the second one does half of the work, and answers.
PIPELINE = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, half = dist.get_rank(), dist.get_world_size() // 2
torch.cuda.set_device(rank)
pipelines = [dist.new_group([first, first + half]) for first in range(half)]
group, other = pipelines[rank % half], (rank + half) % (2 * half)
weight = torch.nn.Parameter(torch.zeros(4096, 4096 if rank < half else 2048, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
tokens, values = torch.nn.Embedding(512, 4096).cuda(), torch.zeros(4096, 4096, device="cuda")
for _ in range(3):
    if rank < half:
        values = tokens(torch.zeros(8, 512, dtype=torch.long, device="cuda")).view(4096, 4096).detach()
        (values @ weight).sum().backward()
        dist.send(values, other, group)
        dist.recv(values, other, group)
    else:
        dist.recv(values, other, group)
        (values @ weight).sum().backward()
        dist.send(values, other, group)
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path, build: Build) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    return tmp_path


def start(folder: Path) -> subprocess.Popen[str]:
    words = ["--nproc", "2", "--cluster", "dgx-h100", "--jobs", "1", "--out", "study", "train.py"]
    command = [sys.executable, "-m", "maya.cli", "search", *words, "--", "{width:256,2048,4096}"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def states(folder: Path) -> list[str]:
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / 'study' / 'search.db'}")
    try:
        return [each.state.name for each in optuna.load_study(study_name=STUDY, storage=storage).trials]
    finally:
        storage.remove_session()
        storage.engine.dispose()


def test_a_killed_search_does_not_prune_again(folder: Path) -> None:
    killed = start(folder)
    until = time.monotonic() + 240
    while not (folder / "study" / "trial-1.json").exists():
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    first = (folder / "study" / "trial-1.json").read_bytes()

    process = start(folder)
    output, progress = process.communicate(timeout=300)
    assert process.returncode == 0, output + progress
    assert (folder / "study" / "trial-1.json").read_bytes() == first
    assert not re.search(r"trial [01]:", progress)
    assert "3 run, 2 pruned." in output
    assert "pruned, because they would be far behind: trial 1 (at least +" in output
    assert states(folder) == ["COMPLETE", "PRUNED", "PRUNED"]
    assert not list((folder / "study").glob(".trial-*.lock"))


@pytest.mark.slow
def test_two_searches_at_once_prune_each_trial_once(folder: Path) -> None:
    both = [start(folder), start(folder)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    ended = Counter(number for _, progress in outputs for number in re.findall(r"trial (\d+):", progress))
    assert ended == {"0": 1, "1": 1, "2": 1}
    trials = [json.loads((folder / "study" / f"trial-{number}.json").read_text())["trial"] for number in range(3)]
    # The second trial may have begun before the first one had ended, so there was nothing to compare it with.
    assert [trials[0]["outcome"], trials[2]["outcome"]] == ["predicted", "pruned"]


@pytest.mark.parametrize("script", ["train.py", "pipeline.py"])
def test_what_rank_0_needs_alone_is_no_more_than_the_prediction(
    folder: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    words = ["2048"] if script == "train.py" else []
    options: dict[str, Any] = {"nproc": 4, "cluster": "dgx-h100", "represent": "auto", "quiet": True}
    run = maya.launch(script, words, out="whole", give_up_above="3600s", **options)
    assert run.exit_code == 0
    given = ["--nproc", "4", "--cluster", "dgx-h100", "--represent", "auto", "--out", "given-up"]
    command = [sys.executable, "-m", "maya.launcher", *given, "--give-up-above", "1ns", script, *words]
    given_up = subprocess.run(command, capture_output=True, text=True, check=False)
    assert given_up.returncode == GAVE_UP, given_up.stderr
    least = LeastStep.load(folder / "given-up")
    assert least is not None
    assert 0.3 * run.step_time_ns < least.step_ns <= 1.05 * run.step_time_ns  # the second step is not quite the third
    assert f"gave up: {least.problem}" in given_up.stderr
