"""scripts/setup where it cannot succeed: each message names the remedy. A stand-in plays the interpreter."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Answers the few questions scripts/setup asks of Python and pip; FAKE_PIP and FAKE_TORCH are exit codes.
STAND_IN = """#!/bin/sh
case "$1 $2" in
    "-V "*) echo "Python 3.99.0" ;;
    "-VV "*) echo "Python 3.99.0 (stand-in)" ;;
    "-c import sys; print"*) echo "$0" ;;
    "-c "*) exit ${FAKE_VERSION:-0} ;;
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip") echo "pip says no"; exit ${FAKE_PIP:-0} ;;
    "-m rank_runtime.build") exit ${FAKE_BUILD:-0} ;;
    "- ") exit ${FAKE_TORCH:-0} ;;
    *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with nothing but scripts/setup and what it reads, and a folder of programs without any compiler."""
    root = tmp_path / "project"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup", root / "scripts" / "setup")
    shutil.copy(ROOT / "pyproject.toml", root / "pyproject.toml")
    programs = root / "programs"
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "flock", "sha256sum", "rm", "tail", "mkdir", "cp"):
        found = shutil.which(name)
        assert found is not None, name
        (programs / name).symlink_to(found)
    return root


def add_program(project: Path, name: str, text: str = "#!/bin/sh\n") -> None:
    path = project / "programs" / name
    path.write_text(text)
    path.chmod(0o755)


def add_compilers_and_python(project: Path) -> None:
    add_program(project, "gcc")
    add_program(project, "g++")
    add_program(project, "python3", STAND_IN)


def surroundings(project: Path) -> dict[str, str]:
    """An environment in which nothing of this machine is found."""
    cleared = dict.fromkeys(("CC", "CXX", "MAYA_PYTHON", "MAYA_TORCH_VERSION"), "")
    return {**os.environ, **cleared, "PATH": str(project / "programs"), "PYENV_ROOT": str(project / "pyenv")}


def setup(project: Path, **environment: str) -> tuple[int, str]:
    ended = subprocess.run(
        [str(project / "scripts" / "setup")],
        env={**surroundings(project), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stderr


def test_success_is_remembered(project: Path) -> None:
    add_compilers_and_python(project)
    code, said = setup(project)
    assert code == 0, said
    assert "installing torch 2.12.1" in said
    code, said = setup(project)
    assert (code, said) == (0, "setup: ready: .venv (torch 2.12.1)\n")
    code, said = setup(project, MAYA_TORCH_VERSION="2.8.0")
    assert code == 0
    assert "installing torch 2.8.0" in said
    assert "making .venv" not in said


def test_a_missing_c_compiler_is_reported(project: Path) -> None:
    code, said = setup(project)
    assert code == 1
    assert "no C compiler (gcc)" in said
    assert "Install gcc" in said


def test_a_missing_cxx_compiler_is_reported(project: Path) -> None:
    add_program(project, "gcc")
    code, said = setup(project)
    assert code == 1
    assert "no C++ compiler (g++)" in said


def test_without_python_the_message_names_the_remedy(project: Path) -> None:
    add_program(project, "gcc")
    add_program(project, "g++")
    code, said = setup(project)
    assert code == 1
    assert "no usable Python: need 3.10 or later with venv." in said
    assert "apt-get install python3 python3-venv" in said


def test_an_old_python_is_refused(project: Path) -> None:
    add_compilers_and_python(project)
    code, said = setup(project, MAYA_PYTHON="python3", FAKE_VERSION="1")
    assert code == 1
    assert "(MAYA_PYTHON=python3 is not)" in said


def test_an_unreachable_package_index_is_reported(project: Path) -> None:
    add_compilers_and_python(project)
    code, said = setup(project, FAKE_PIP="1")
    assert code == 1
    assert "pip says no" in said
    assert "pip install --no-deps torch==2.12.1 failed (whole log: .venv/maya-setup.log)" in said
    assert "Is the package index reachable" in said


def test_a_cpu_only_torch_is_refused(project: Path) -> None:
    add_compilers_and_python(project)
    code, said = setup(project, MAYA_TORCH_VERSION="2.13.0", FAKE_TORCH="1")
    assert code == 1
    assert "torch 2.13.0 as installed is a CPU-only build" in said
    assert "MAYA_TORCH_VERSION=2.12.1" in said
    code, said = setup(project, MAYA_TORCH_VERSION="2.13.0")
    assert "installing torch 2.13.0" in said, "a setup that failed must not count as done"


def test_a_failed_build_fails_the_setup(project: Path) -> None:
    add_compilers_and_python(project)
    code, said = setup(project, FAKE_BUILD="1")
    assert code == 1
    assert "the fake CUDA libraries were not built; see above" in said


def test_two_setups_wait_for_each_other(project: Path) -> None:
    add_compilers_and_python(project)
    with (project / ".setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = subprocess.Popen(
            [str(project / "scripts" / "setup")],
            env=surroundings(project),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "setup: waiting for another setup in this folder\n"
    _, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert "ready" in said


def test_a_python_of_pyenv_is_found(project: Path) -> None:
    add_compilers_and_python(project)
    (project / "pyenv" / "versions" / "3.13.0" / "bin").mkdir(parents=True)
    kept = project / "pyenv" / "versions" / "3.13.0" / "bin" / "python3.13"
    (project / "programs" / "python3").rename(kept)
    code, said = setup(project)
    assert code == 0, said
