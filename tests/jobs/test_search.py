"""`maya search` on real jobs: killed, taken up again, replayed on other hardware, and finished."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import maya
from rank_runtime.build import Build

TRAIN = """
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rows, folder = int(sys.argv[1]), Path(__file__).parent
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
if rows == 2 and (folder / "hold").exists():
    (folder / "held").touch()
    signal.pause()
assert rows < 4, "no room for four"
table = torch.nn.Embedding(512, 256)
model = DistributedDataParallel(torch.nn.Sequential(table, torch.nn.Linear(256, 256)).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.zeros(rows, 512, dtype=torch.long, device="cuda")).sum().backward()
    optimizer.step()
"""
WORDS = (
    "train.py",
    "--nproc",
    "2",
    "--represent",
    "0",
    "--cluster",
    "{dgx-h100,dgx-b200}",
    "--out",
    "study",
    "--",
    "{rows:1,2,4}",
)


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "maya.cli", "search", *WORDS]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, f"no {file}"
        time.sleep(0.05)


def jobs_in(folder: Path) -> list[str]:
    """The commands of processes whose folder is this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended
            continue
    return found


@pytest.fixture
def folder(tmp_path: Path, build: Build) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_killed_search_goes_on(folder: Path) -> None:
    (folder / "hold").touch()
    killed = start(folder)
    wait_for(folder / "study" / "trial-0.json", killed)
    wait_for(folder / "held", killed)
    killed.kill()
    killed.communicate()
    until = time.monotonic() + 60
    while jobs_in(folder) and time.monotonic() < until:  # the job ends with its search
        time.sleep(0.1)
    assert jobs_in(folder) == []
    first = (folder / "study" / "trial-0.json").read_bytes()

    (folder / "hold").unlink()
    process = start(folder)
    output, progress = process.communicate(timeout=300)
    assert process.returncode == 0, output + progress
    assert (folder / "study" / "trial-0.json").read_bytes() == first
    assert "trial 0:" not in progress  # it did not run again
    assert "4 run, 2 replayed, 2 failed." in output
    assert "AssertionError: no room for four (train.py:" in output
    assert "Run it  maya-torchrun --cluster=dgx-" in output
    assert (folder / "study" / "search.html").is_file()

    trials = [json.loads((folder / "study" / f"trial-{number}.json").read_text())["trial"] for number in range(6)]
    runs = {tuple(each["configuration"].values()): each for each in trials}
    assert len(runs) == 6
    replay = runs["dgx-b200", 2]
    assert (replay["origin"], trials[replay["source"]]["configuration"]) == (
        "replay",
        {"cluster": "dgx-h100", "rows": 2},
    )
    assert not list((folder / "study").glob(".trial-*.lock"))


def test_a_replay_is_what_a_run_would_give(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"nproc": 2, "represent": "0", "quiet": True}
    monkeypatch.chdir(folder)
    found = maya.search("train.py", ["2"], cluster="{dgx-h100,dgx-b200}", out="one", **options)
    other = maya.search("train.py", ["2"], cluster="{dgx-b200,dgx-h100}", out="two", **options)
    replayed, run = (
        {row.configuration["cluster"]: row.figures for row in rows if row.origin == origin}
        for rows, origin in ((found.trials, "replay"), (other.trials, "run"))
    )
    figures, expected = replayed["dgx-b200"], run["dgx-b200"]
    assert figures is not None
    assert expected is not None
    assert (figures.step_time_ns, figures.class_ns) == (expected.step_time_ns, expected.class_ns)
    assert found.command().endswith(" --nproc=2 train.py 2")
    assert found.run().step_time_ns > 0
    assert len(found.to_pandas()) == 2


def test_an_interrupted_search_ends_its_jobs(folder: Path) -> None:
    (folder / "hold").touch()
    process = start(folder)
    wait_for(folder / "held", process)
    process.send_signal(signal.SIGINT)
    output, progress = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "interrupted; to go on: the same command with --out study" in progress
    assert jobs_in(folder) == []
    assert "run" in output


@pytest.mark.slow
def test_two_searches_at_once_share_the_trials(folder: Path) -> None:
    both = [start(folder), start(folder)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    begun = [re.findall(r"trial (\d+):", progress) for _, progress in outputs]
    assert sorted(number for each in begun for number in each) == sorted({number for each in begun for number in each})
    trials = [json.loads(file.read_text())["trial"] for file in (folder / "study").glob("trial-*.json")]
    assert len({tuple(each["configuration"].values()) for each in trials}) == len(trials) == 6
