"""How ranks share what torch.compile has compiled: the lock that they wait for, and the move to another GPU."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

from rank_runtime.zygote.compile_lock import CompileLock
from rank_runtime.zygote.graph_relocation import relocate_text

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, time
from pathlib import Path
from rank_runtime.zygote.compile_lock import CompileLock

lock = CompileLock(Path(sys.argv[1]), 1.0)
print(lock.acquire("graph"), flush=True)
if sys.stdin.readline() == "release\\n":
    lock.release("graph")
    print("released", flush=True)
    sys.stdin.readline()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process, which has locked "graph"."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "free\n"
    return process


def test_a_locked_graph_is_not_locked_twice(tmp_path: Path) -> None:
    with holder(tmp_path) as other, closing(CompileLock(tmp_path, most_seconds=0.05)) as lock:
        assert lock.acquire("graph") is None
        assert lock.acquire("another graph") == "free"
        other.communicate("release\n")
        assert lock.acquire("graph") == "free"


def test_a_process_that_dies_releases_its_locks(tmp_path: Path) -> None:
    with holder(tmp_path) as other, closing(CompileLock(tmp_path, most_seconds=60)) as lock:
        other.kill()
        assert lock.acquire("graph") in ("free", "waited")
        other.communicate()


def test_a_process_that_holds_a_lock_does_not_wait_for_another(tmp_path: Path) -> None:
    """Two processes that wait for each other's graphs would never go on."""
    with holder(tmp_path) as other, closing(CompileLock(tmp_path, most_seconds=600)) as lock:
        assert lock.acquire("another graph") == "free"
        assert lock.acquire("graph") is None
        other.communicate("release\n")


def test_a_folder_that_cannot_be_written_means_no_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert CompileLock(tmp_path / "file", most_seconds=60).acquire("graph") is None


def test_generated_source_is_moved_to_another_gpu() -> None:
    source = """
        triton_meta={'device': DeviceProperties(type='cuda', index=1, multi_processor_count=132, cc=90, major=9)}
        with torch.cuda._DeviceGuard(1):
            torch.cuda.set_device(1)
            buf1 = torch.ops.aten.full.default([1, 1], 1, device=device(type='cuda', index=1))
            stream1 = get_raw_stream(1)
            kernel_1.run(buf1, 1, 11, stream=stream1)  # f32[1]cuda:1 cuda:11
            kernel_1.run(buf1, 1, 11, stream=raw_stream1)
    """
    assert relocate_text(source, 1, 12) == (
        """
        triton_meta={'device': DeviceProperties(type='cuda', index=12, multi_processor_count=132, cc=90, major=9)}
        with torch.cuda._DeviceGuard(12):
            torch.cuda.set_device(12)
            buf1 = torch.ops.aten.full.default([1, 1], 1, device=device(type='cuda', index=12))
            stream12 = get_raw_stream(12)
            kernel_1.run(buf1, 1, 11, stream=stream12)  # f32[1]cuda:12 cuda:11
            kernel_1.run(buf1, 1, 11, stream=raw_stream12)
    """
    )
