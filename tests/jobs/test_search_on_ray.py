"""`maya search --ray`: trials on two machines of a Ray cluster, of which one is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.ray_namespaces import RayNamespaces, missing

from rank_runtime.build import Build

_WHY_NOT = missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)]

TRAIN = """
import os
import socket
import sys
import time
from pathlib import Path

import torch

print("machine", socket.gethostname(), flush=True)
Path(f"/tmp/begun-{sys.argv[1]}").touch()
while Path("/tmp/hold").exists():
    time.sleep(0.1)
model = torch.nn.Sequential(torch.nn.Embedding(512, 256), torch.nn.Linear(256, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(int(sys.argv[1]), 512, dtype=torch.long, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_a_lost_machine_costs_its_trials_only(tmp_path: Path, build: Build) -> None:
    with RayNamespaces(tmp_path / "machines", 2) as cluster:
        head, other = cluster.machines
        job = head.tmp / "job"
        job.mkdir()
        (job / "train.py").write_text(TRAIN)
        (other.tmp / "hold").touch()
        words = ["--nproc", "1", "--ray", cluster.address, "--out", "/tmp/found", "--cluster", "dgx-h100"]
        process = head.start(
            [sys.executable, "-m", "maya.cli", "search", "train.py", *words, "--", "{rows:1,2}"],
            folder="/tmp/job",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        until = time.monotonic() + 120
        while not list(other.tmp.glob("begun-*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)
        cluster.kill(1)
        output, progress = process.communicate(timeout=200)
        assert process.returncode == 0, output + progress
        assert "2 run." in output  # Ray itself prints lines before
        assert len(list(head.tmp.glob("begun-*"))) == 2  # one of them for the second time
        found = head.tmp / "found"
        trials = [json.loads((found / f"trial-{number}.json").read_text())["trial"] for number in (0, 1)]
        assert [each["outcome"] for each in trials] == ["predicted", "predicted"]
        assert "machine machine0" in (found / "trial-0.log").read_text()
        assert (found / "trial-1" / "rank0.trace").is_file()
