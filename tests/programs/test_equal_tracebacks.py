"""Equal tracebacks of several ranks are printed once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rank_runtime.zygote.equal_tracebacks import VARIABLE, alike_tracebacks

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os
from rank_runtime.zygote.equal_tracebacks import fold_equal_tracebacks

fold_equal_tracebacks(os.environ, lambda: None)
rank = int(os.environ["RANK"])
if rank in (2, 4):
    raise KeyError(f"{8 * rank} rows are too many")
raise ValueError(f"rank {rank} of 4 has failed")
"""


def printed(rank: int, file: str) -> str:
    environment = {**os.environ, "RANK": str(rank), VARIABLE: file, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    return ended.stderr


def test_the_first_rank_prints_a_traceback_for_all(tmp_path: Path) -> None:
    file = tmp_path / "tracebacks"
    shown = [printed(rank, str(file)) for rank in (3, 0, 2, 1, 4)]
    assert "ValueError: rank 3 of 4 has failed" in shown[0]
    assert "KeyError: '16 rows are too many'" in shown[2]
    assert "KeyError: '32 rows are too many'" in shown[4]
    assert shown[1] == shown[3] == ""
    found = alike_tracebacks(str(file))
    assert [(group.ranks, len(group.texts)) for group in found] == [([3, 0, 1], 1), ([2, 4], 2)]


def test_without_a_file_each_rank_prints_its_own(tmp_path: Path) -> None:
    for file in ("", str(tmp_path / "missing" / "tracebacks")):
        assert all("ValueError" in printed(rank, file) for rank in (0, 1))
    assert alike_tracebacks(str(tmp_path / "none")) == []
