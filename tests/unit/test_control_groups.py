"""Memory limits of control groups, and processes that the kernel killed for memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from maya.launcher import memory_kills
from maya.launcher.memory_kills import MemoryKills
from maya.util.control_groups import MemoryLimit, killed_for_memory, memory_limits


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text, encoding="ascii")
    return folder


def test_the_limits_around_the_process_count(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/slice/job\n", encoding="utf-8")
    root = tmp_path / "cgroup"
    group(root, max="max\n", current="5000\n")
    slice_ = group(root / "slice", max="4000\n", current="3000\n", stat="anon 1\ninactive_file 500\n")
    job = group(root / "slice" / "job", max="2000\n", current="300\n", events="oom 3\noom_kill 2\n")
    group(root / "beside", max="1\n", current="1\n")
    assert memory_limits(own, root) == [MemoryLimit(job, 2000, 300), MemoryLimit(slice_, 4000, 2500)]
    assert [each.left for each in memory_limits(own, root)] == [1700, 1500]
    assert killed_for_memory(own, root) == 2


def test_version_1_and_paths_outside_of_a_container(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/\n7:cpu,cpuacct:/x\n4:memory:/docker/0123\n", encoding="utf-8")
    root = tmp_path / "cgroup"
    memory = group(
        root / "memory", limit_in_bytes="1000\n", usage_in_bytes="400\n", oom_control="under_oom 0\noom_kill 7\n"
    )
    assert memory_limits(own, root) == [MemoryLimit(memory, 1000, 400)]
    assert killed_for_memory(own, root) == 7
    group(root / "memory", limit_in_bytes=f"{2**63 - 4096}\n")
    assert memory_limits(own, root) == []


def test_without_control_groups_nothing_is_known(tmp_path: Path) -> None:
    assert memory_limits(tmp_path / "missing", tmp_path) == []
    assert killed_for_memory(tmp_path / "missing", tmp_path) is None
    assert (killed_for_memory() or 0) >= 0


def test_a_kill_for_memory_is_told_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    count = [4]
    monkeypatch.setattr(memory_kills, "killed_for_memory", lambda: count[0])
    kills = MemoryKills()
    assert kills.explain("rank 3", -9) is None
    count[0] = 5
    assert kills.explain("rank 3", 1) is None
    text = kills.explain("rank 3", -9) or ""
    assert text.startswith("the kernel killed rank 3 because memory ran out (out-of-memory killer)")
    assert "--represent auto" in text
    assert kills.explain("rank 4", -9) is None
