"""NCCL between several ranks: in random programs, every rank receives what numpy computes."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.script_run import MayaRun

_PROGRAM = (Path(__file__).parent / "nccl_programs.py").read_text()


@pytest.mark.parametrize(("ranks", "programs"), [(2, 40), (3, 40), pytest.param(8, 15, marks=pytest.mark.slow)])
def test_random_programs_receive_what_numpy_computes(maya_run: MayaRun, ranks: int, programs: int) -> None:
    run = maya_run(_PROGRAM, "--nproc", str(ranks), script_arguments=[str(100 * ranks), str(programs)])
    assert run.exit_code == 0, run.stdout + run.stderr
    assert run.stdout.count("operations") == programs
