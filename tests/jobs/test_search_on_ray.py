"""`maya search --ray`: trials on two nodes of a Ray cluster, of which one is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rank_runtime.build import Build

pytestmark = pytest.mark.slow

TRAIN = """
import os
import sys
import time
from pathlib import Path

import torch

folder = Path(sys.argv[2])
print("node", os.environ["RAY_NODE"], flush=True)
(folder / f"begun-{sys.argv[1]}-{os.environ['RAY_NODE']}").touch()
while (folder / f"hold-{os.environ['RAY_NODE']}").exists():
    time.sleep(0.1)
model = torch.nn.Sequential(torch.nn.Embedding(512, 256), torch.nn.Linear(256, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(int(sys.argv[1]), 512, dtype=torch.long, device="cuda")).sum().backward()
    optimizer.step()
"""


class RayCluster:
    """A cluster of two nodes with one processor each: head and other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._line()

    def lose(self) -> None:
        """Kill the node that is not the head."""
        assert self._process.stdin is not None
        print("lose", file=self._process.stdin, flush=True)
        assert self._line() == "lost"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    helper = Path(__file__).parents[1] / "helpers" / "ray_cluster.py"
    environment = {**os.environ, "RAY_raylet_start_wait_time_s": "120"}
    with subprocess.Popen(
        [sys.executable, helper], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        yield RayCluster(process)
        process.communicate(timeout=60)  # closes its input


def test_a_lost_node_costs_its_trials_only(cluster: RayCluster, tmp_path: Path, build: Build) -> None:
    job, marks = tmp_path / "job", tmp_path / "marks"
    job.mkdir()
    marks.mkdir()
    (job / "train.py").write_text(TRAIN)
    (marks / "hold-other").touch()
    words = ["--nproc", "1", "--ray", cluster.address, "--out", "../found", "--cluster", "dgx-h100"]
    process = subprocess.Popen(
        [sys.executable, "-m", "maya.cli", "search", "train.py", *words, "--", "{rows:1,2}", str(marks)],
        cwd=job,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 120
    while not list(marks.glob("begun-*-other")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    cluster.lose()
    output, progress = process.communicate(timeout=200)
    assert process.returncode == 0, output + progress
    assert "2 run." in output  # Ray itself prints lines before
    assert len(list(marks.glob("begun-*-head"))) == 2  # one of them for the second time
    trials = [json.loads((tmp_path / "found" / f"trial-{number}.json").read_text())["trial"] for number in (0, 1)]
    assert [each["outcome"] for each in trials] == ["predicted", "predicted"]
    assert "node head" in (tmp_path / "found" / "trial-0.log").read_text()
    assert (tmp_path / "found" / "trial-1" / "rank0.trace").is_file()
