"""scripts/profile_gpu.py where torch cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "profile_gpu.py"


def test_a_missing_torch_is_reported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not here')", encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(SCRIPT)], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "profile_gpu.py: PyTorch cannot be imported (not here); run it where a CUDA build of PyTorch is installed\n"
    )
