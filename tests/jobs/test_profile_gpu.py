"""scripts/profile_gpu.py runs on virtual GPUs, where only its times mean nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.script_run import MayaRun, ScriptRun

from maya.cli.main import main
from maya.estimators.features import kernels_of
from maya.estimators.kernel import KernelClass
from maya.estimators.pack import key_of
from maya.estimators.training.measurements_file import Timed, read_measurements
from maya.trace import read
from netmodel.calibration.measurements import read_measurements as read_collectives

SCRIPT = Path(__file__).parents[2] / "scripts" / "profile_gpu.py"
QUICK = ["--quick", "--repeats", "1", "--out"]

# Runs the script several times in one process, since a process with torch takes seconds to start.
DRIVER = f"""
import runpy
import sys
from pathlib import Path

import torch


def profile(*arguments):
    sys.argv = ["profile_gpu.py", *arguments]
    try:
        runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
    except SystemExit as ended:
        print(ended)


out, other = Path(sys.argv[1]), Path(sys.argv[2])
profile("--quick", "--repeats", "1", "--out", str(out))

# A row that was cut off while it was written, and two that are missing.
lines = out.read_text().splitlines()
out.with_suffix(".first").write_text(out.read_text())
out.write_text("\\n".join([*lines[:-3], lines[-3][:20]]))
profile("--quick", "--repeats", "1", "--out", str(out))

other.write_text("name,age\\nada,36\\n")
profile("--quick", "--out", str(other))

torch.cuda.is_available = lambda: False
profile("--out", "nowhere.csv")
"""


@dataclass(frozen=True)
class Profiled:
    """The run of DRIVER."""

    run: ScriptRun
    out: Path  # the measurements after the second profile
    other: Path  # a file that is not the script's

    @property
    def first(self) -> list[Timed]:
        """The measurements after the first profile."""
        return read_measurements(self.out.with_suffix(".first"))

    @property
    def timed(self) -> list[Timed]:
        return read_measurements(self.out)


@pytest.fixture(scope="module")
def profiled(maya_run_once: MayaRun, tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    folder = tmp_path_factory.mktemp("profile")
    out, other = folder / "profile.csv", folder / "other.csv"
    run = maya_run_once(DRIVER, "--gpu", "h100", script_arguments=[str(out), str(other)])
    assert run.exit_code == 0, run.output
    return Profiled(run, out, other)


def test_kernels_of_many_classes_are_measured(profiled: Profiled) -> None:
    assert "left out: " not in profiled.run.stderr
    assert {row.device for row in profiled.timed} == {"NVIDIA H100 80GB HBM3"}
    assert {row.kernel.kernel_class.value for row in profiled.timed} >= {
        "gemm",
        "attention",
        "elementwise",
        "norm",
        "softmax",
        "embedding",
        "optimizer",
        "copy",
        "transfer",
    }


def test_measured_kernels_are_those_of_a_trace(profiled: Profiled) -> None:
    """Calibration matches the script's description of a kernel with that of a launch in a trace."""
    launched = {key_of(item.kernel) for item in kernels_of(read(profiled.run.trace)).kernels}
    assert [row.kernel for row in profiled.timed if key_of(row.kernel) not in launched] == []


def test_a_second_profile_measures_only_missing_rows(profiled: Profiled) -> None:
    assert f"3 to measure, {len(profiled.first) - 3} in " in profiled.run.stderr
    once, again = (sorted(key_of(row.kernel) for row in rows) for rows in (profiled.first, profiled.timed))
    assert again == once


def test_a_file_of_another_program_is_left_alone(profiled: Profiled) -> None:
    assert "has the columns name,age, not those of this script" in profiled.run.stdout
    assert profiled.other.read_text(encoding="utf-8") == "name,age\nada,36\n"


def test_without_a_gpu_the_script_says_where_to_run_it(profiled: Profiled) -> None:
    assert "finds no CUDA device here; run it on the machine with the GPU" in profiled.run.stdout


def test_a_pack_of_the_measurements_answers_with_them(profiled: Profiled, tmp_path: Path) -> None:
    pack = tmp_path / "own.npz"
    result = CliRunner().invoke(main, ["calibrate", str(profiled.out), "--gpu", "h100", "--out", str(pack)])
    assert result.exit_code == 0, result.output
    kernels = [row.kernel for row in profiled.timed if row.kernel.kernel_class is KernelClass.GEMM]
    gemm = next(kernel for kernel in kernels if kernel.shape["batch"] == 1)
    shape = [word for name in ("m", "n", "k") for word in (f"--{name}", str(int(gemm.shape[name])))]
    words = ["estimate", "--op", "gemm", *shape, "--dtype", gemm.dtype, "--layout", gemm.variant, "--gpu", "h100"]
    assert "  measured " in CliRunner().invoke(main, [*words, "--pack", str(pack)]).output
    assert "  measured " not in CliRunner().invoke(main, words).output


def test_collectives_are_profiled_and_fitted(maya_run: MayaRun, tmp_path: Path) -> None:
    out = tmp_path / "profile.csv"
    text = SCRIPT.read_text(encoding="utf-8")
    run = maya_run(text, "--gpu", "h100", "--nproc", "2", script_arguments=[*QUICK, str(out)])
    assert run.exit_code == 0, run.output
    assert not out.exists()
    found = read_collectives(tmp_path / "profile-nccl.csv")
    operations = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv"}
    assert {(each.operation, each.ranks, each.nodes, each.size) for each in found} == {
        (operation, 2, 1, 2**20) for operation in operations
    }
