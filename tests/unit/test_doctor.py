"""`maya doctor`: the verdict for each finding, and the command as a whole."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from click.testing import CliRunner

from maya import doctor
from maya.cli.main import main
from maya.doctor import Check, Verdict
from rank_runtime.build.errors import BuildError
from rank_runtime.build.toolchain import Compiler
from rank_runtime.build.torch_install import TorchInstall, read_torch

GIB = 2**30
UNLIMITED = resource.RLIM_INFINITY


def torch(version: str) -> TorchInstall:
    return TorchInstall(Path("torch"), version, "13.0", "")


@pytest.mark.parametrize(
    ("check", "verdict", "advice"),
    [
        (doctor.check_python((3, 9)), Verdict.FAIL, "3.10 or later"),
        (doctor.check_python((3, 10)), Verdict.OK, ""),
        (doctor.check_platform("Darwin", "arm64", ""), Verdict.FAIL, "Linux with glibc"),
        (doctor.check_platform("Linux", "x86_64", ""), Verdict.FAIL, "glibc"),
        (doctor.check_platform("Linux", "x86_64", "glibc"), Verdict.OK, ""),
        (doctor.check_torch(torch("2.12.1+cu130")), Verdict.OK, ""),
        (doctor.check_torch(torch("2.10.0")), Verdict.WARN, "tested with 2.8, 2.12, 2.15"),
        (doctor.check_torch(torch("2.5.1")), Verdict.FAIL, "2.8 or later"),
        (doctor.check_torch(BuildError("torch is not installed.")), Verdict.FAIL, "scripts/setup"),
        (doctor.check_plain_torch(None), Verdict.OK, ""),
        (doctor.check_plain_torch("ImportError: libcudnn.so.9: cannot open"), Verdict.WARN, "maya setup-torch"),
        (doctor.check_compiler("C", "gcc", Compiler(("gcc",), "gcc 12")), Verdict.OK, ""),
        (doctor.check_compiler("C", "gcc", None), Verdict.FAIL, "apt-get install gcc"),
        (doctor.check_compiler("C++", "g++", None), Verdict.FAIL, "apt-get install g++"),
        (doctor.check_compiler("C++", "g++", BuildError("$CXX does not run")), Verdict.FAIL, "$CXX does not run"),
        (doctor.check_open_files(1024, 4096), Verdict.OK, ""),
        (doctor.check_open_files(UNLIMITED, UNLIMITED), Verdict.OK, ""),
        (doctor.check_open_files(512, 4096), Verdict.WARN, "ulimit -n 4096"),
        (doctor.check_open_files(512, UNLIMITED), Verdict.WARN, "ulimit -n unlimited"),
        (doctor.check_open_files(128, 128), Verdict.FAIL, "limits.conf"),
        (doctor.check_processes(UNLIMITED, UNLIMITED), Verdict.OK, ""),
        (doctor.check_processes(1000, 8192), Verdict.WARN, "ulimit -u 8192"),
        (doctor.check_processes(32, 32), Verdict.FAIL, "limits.conf"),
        (doctor.check_address_space(UNLIMITED), Verdict.OK, ""),
        (doctor.check_address_space(64 * GIB), Verdict.FAIL, "ulimit -v unlimited"),
        (doctor.check_overcommit(0), Verdict.OK, ""),
        (doctor.check_overcommit(1), Verdict.OK, ""),
        (doctor.check_overcommit(2), Verdict.FAIL, "sysctl vm.overcommit_memory=0"),
        (doctor.check_overcommit(None), Verdict.OK, ""),
        (doctor.check_maps(65530), Verdict.OK, ""),
        (doctor.check_maps(1000), Verdict.WARN, "sysctl vm.max_map_count=65530"),
        (doctor.check_memory(8 * GIB), Verdict.OK, ""),
        (doctor.check_memory(2 * GIB), Verdict.WARN, "one small rank"),
        (doctor.check_memory(GIB // 2), Verdict.FAIL, "about 1 GiB"),
        (doctor.check_shared_memory(GIB), Verdict.OK, ""),
        (doctor.check_shared_memory(64 * 2**20), Verdict.WARN, "--shm-size"),
        (doctor.check_shared_memory(None), Verdict.WARN, "tmpfs"),
    ],
)
def test_a_finding_gets_its_verdict_and_advice(check: Check, verdict: Verdict, advice: str) -> None:
    assert check.verdict is verdict
    assert advice in check.advice
    assert bool(check.advice) == (verdict is not Verdict.OK)


def test_a_cpu_only_torch_fails(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    with pytest.raises(BuildError) as problem:
        read_torch(tmp_path)
    check = doctor.check_torch(problem.value)
    assert check.verdict is Verdict.FAIL
    assert "2.13.0+cpu" in check.advice
    assert "CPU-only" in check.advice
    assert "pip install --no-deps torch" in check.advice


def test_a_failed_check_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Check("memory", Verdict.FAIL, "none", "buy some")
    monkeypatch.setattr(doctor, "examine", lambda: iter([failed]))
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "FAIL  memory" in result.output
    assert "buy some" in result.output
