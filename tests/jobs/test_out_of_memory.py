"""A process of a job that the kernel kills because a control group (cgroup) has no memory left is reported as that.

The tests make a control group with a memory limit, which takes root and a machine that allows it; elsewhere they are
skipped. A rank fills the group's memory, and the kernel's preference (oom_score_adj) decides which process it kills.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rank_runtime.build import Build

ROOT = Path(__file__).parents[2]
LIMIT = 1200 << 20  # bytes

PROGRAM = """
import os, sys, time
from pathlib import Path

rank, zygote = int(os.environ["RANK"]), os.getppid()

def name(process):
    return Path(f"/proc/{process}/comm").read_text().strip()

children = [int(child) for child in Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()]
coordinators = [child for child in children if name(child) == "maya-coord"]
victim = {"rank": os.getpid(), "coordinator": coordinators[0], "zygote": zygote}[sys.argv[1]]
if rank == 1:
    time.sleep(60)
Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
filled = []
while len(filled) < 100 and Path(f"/proc/{victim}").exists():
    filled.append(bytearray(b"x") * (16 << 20))
time.sleep(60)
"""


def limited_group() -> Path | str:
    """A control group with a memory limit, version 1 or 2; or the reason why none can be made."""
    problem = "this machine has no control groups for memory"
    for root, limits in (
        ("/sys/fs/cgroup/memory", {"memory.limit_in_bytes": LIMIT, "memory.memsw.limit_in_bytes": LIMIT}),
        ("/sys/fs/cgroup", {"memory.max": LIMIT, "memory.swap.max": 0}),
    ):
        folder = Path(root) / f"maya-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError as error:
            problem = f"no control group can be made in {root}: {error.strerror}"
            continue
        try:
            for name, value in limits.items():
                (folder / name).write_text(str(value), encoding="ascii")
            return folder
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}"
            folder.rmdir()
    return problem


@pytest.fixture
def group() -> Iterator[Path]:
    folder = limited_group()
    if isinstance(folder, str):
        pytest.skip(folder)
    yield folder
    deadline = time.monotonic() + 10
    while folder.exists() and time.monotonic() < deadline:
        try:
            folder.rmdir()
        except OSError:  # a killed process is still ending
            time.sleep(0.1)


SAID = {
    "rank": "the kernel killed rank 0 because memory ran out (out-of-memory killer)",
    "coordinator": "the kernel killed the coordinator because memory ran out",
    "zygote": "the kernel killed the zygote (the process that forks the ranks) because memory ran out",
}


VICTIMS = ("rank", *(pytest.param(name, marks=pytest.mark.slow) for name in ("coordinator", "zygote")))


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_process_killed_for_memory_is_named(victim: str, group: Path, build: Build, tmp_path: Path) -> None:
    script = tmp_path / "fill.py"
    script.write_text(PROGRAM, encoding="utf-8")
    launch = [sys.executable, "-m", "maya.launcher", "--nproc", "2", "--no-trace", "--out", str(tmp_path / "out")]
    ended = subprocess.run(
        ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(group / "cgroup.procs"), *launch, str(script), victim],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1, ended.stderr
    assert SAID[victim] in ended.stderr
    assert f"the control group {group} may use 1.17 GiB" in ended.stderr
    assert "--represent auto" in ended.stderr
