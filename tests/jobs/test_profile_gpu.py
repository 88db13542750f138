"""scripts/profile_gpu.py runs on virtual GPUs, where only its times mean nothing."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from helpers.script_run import MayaRun

from maya.cli.main import main
from maya.estimators.features import kernels_of
from maya.estimators.pack import key_of
from maya.estimators.training.measurements_file import read_measurements
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


def test_kernels_are_profiled_and_calibrated(maya_run: MayaRun, tmp_path: Path) -> None:
    out, other = tmp_path / "profile.csv", tmp_path / "other.csv"
    run = maya_run(DRIVER, "--gpu", "h100", script_arguments=[str(out), str(other)])
    assert run.exit_code == 0, run.output
    assert "left out: " not in run.stderr
    timed = read_measurements(out)
    assert {row.device for row in timed} == {"NVIDIA H100 80GB HBM3"}
    kinds = {row.kernel.kind.value for row in timed}
    assert kinds >= {
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

    # What the script says it measured is what a trace says that these calls launched: the two meet in calibration.
    launched = {key_of(item.kernel) for item in kernels_of(read(run.trace)).kernels}
    assert [row.kernel for row in timed if key_of(row.kernel) not in launched] == []

    # The second time, only what was missing was measured.
    first = read_measurements(out.with_suffix(".first"))
    assert f"3 to measure, {len(first) - 3} in " in run.stderr
    assert sorted(key_of(row.kernel) for row in timed) == sorted(key_of(row.kernel) for row in first)

    assert "has the columns name,age, not those of this script" in run.stdout
    assert other.read_text(encoding="utf-8") == "name,age\nada,36\n"
    assert "finds no CUDA device here; run it on the machine with the GPU" in run.stdout

    # And it becomes a pack, from which what was measured is answered as it was measured.
    pack = tmp_path / "own.npz"
    result = CliRunner().invoke(main, ["calibrate", str(out), "--gpu", "h100", "--out", str(pack)])
    assert result.exit_code == 0, result.output
    gemm = next(row.kernel for row in timed if row.kernel.kind.value == "gemm" and row.kernel.shape["batch"] == 1)
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
