"""What a user is told of the nodes of a Ray cluster (`maya doctor --ray`), and the folder that a job needs there."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from maya.cli.doctor import print_machines
from maya.nodes.job_folder import choose_folder, digest_of_folder, size_of_folder
from maya.nodes.machine import Machine
from maya.version import __version__

GIB = 2**30


def machine(name: str, processors: int = 4, memory: int = 64 * GIB) -> Machine:
    return Machine(
        name, "10.0.0.1", processors, memory, platform.python_version(), __version__, "2.12.1", "gcc 12.2.0", "eth0", ""
    )


def test_the_table_counts_the_ranks_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    here = replace(machine("head"), is_here=True)
    assert print_machines([here, machine("b", 0)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "node address interface CPUs memory Maya torch compiler ranks"
    assert lines[1].startswith(f"head (here) 10.0.0.1 eth0 4 64 GiB {__version__} 2.12.1 gcc 12.2.0 ")
    assert lines[2].endswith(" 0")
    assert lines[-1] == "b gets no ranks: Ray hands out no CPUs there."


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"maya": ""}, f"has no usable Maya: install Maya {__version__} there"),
        ({"maya": "0.0.1"}, "has Maya 0.0.1, this machine has"),
        ({"torch": "2.8.0"}, "has torch 2.8.0, this machine has 2.12.1"),
        ({"python": "3.9.1"}, "has Python 3.9.1"),
        ({"compiler": ""}, "has no C compiler"),
    ],
)
def test_a_node_that_cannot_run_ranks_is_named(
    capsys: pytest.CaptureFixture[str], change: dict[str, str], problem: str
) -> None:
    odd = replace(machine("odd"), **change)  # type: ignore[arg-type]
    assert print_machines([replace(machine("head"), is_here=True), odd]) == 1
    assert f"FAIL  odd {problem}" in capsys.readouterr().out


# ---- the job's folder ----


def test_the_current_folder_travels_with_a_script_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    path = os.pathsep.join([f"{tmp_path}/lib", "relative", "/opt/lib"])
    found = choose_folder("sub/train.py", is_module=False, environment={"PYTHONPATH": path})
    assert found.path == tmp_path
    assert found.python_path_in("/there/job") == ["/there/job/lib", "relative", "/opt/lib"]


def test_the_folder_of_a_script_elsewhere_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "train.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    assert choose_folder("../there/train.py", is_module=False, environment={}).path == tmp_path / "there"


def test_runs_and_environments_do_not_belong_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    before = digest_of_folder(str(tmp_path))
    for name in ("maya-runs/train-0/rank0.trace", ".git/HEAD", ".venv/bin/python", "env/pyvenv.cfg", "env/lib.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("large")
    assert digest_of_folder(str(tmp_path)) == before
    assert size_of_folder(str(tmp_path)) == 5
    assert "/env/" in choose_folder("train.py", is_module=False, environment={}).excluded
    (tmp_path / "train.py").write_text("pass  # changed\n")
    assert digest_of_folder(str(tmp_path)) != before
