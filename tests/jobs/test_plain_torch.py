"""torch in plain Python without NVIDIA's packages: `maya setup-torch` adds stub libraries that ranks never load."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.environments import Environment, make_environment

from rank_runtime.build import Build
from rank_runtime.build.elf import read_imports
from rank_runtime.build.libraries import KNOWN_LIBRARIES, soname_stem
from rank_runtime.build.plain_torch import MARK, VERSION_QUERIES

ROOT = Path(__file__).parents[2]
FEWEST_STUBS = 10

LOADED = """
import json, re, torch
with open("/proc/self/maps") as maps:
    paths = {line.split()[-1] for line in maps if re.search(r"/lib(cu|nv|nccl)[^/]*$", line.rstrip())}
try:
    refusal = str(torch.zeros(1, device="cuda"))
except RuntimeError as error:
    refusal = str(error)
print(json.dumps({
    "libraries": sorted(paths),
    "is_available": torch.cuda.is_available(),
    "devices": torch.cuda.device_count(),
    "sum": torch.ones(3).sum().item(),
    "refusal": refusal,
    "cudnn": torch.backends.cudnn.version(),
    "nccl": torch.cuda.nccl.version(),
}))
"""
GLOO_PROGRAM = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
values = torch.full((4,), float(dist.get_rank() + 1))
dist.all_reduce(values)
print(f"sum {values.tolist()} GPUs {torch.cuda.device_count()}\\n", end="")
dist.destroy_process_group()
"""
NCCL_PROGRAM = """
import re, torch, torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
values = torch.full((4,), float(dist.get_rank() + 1), device="cuda")
dist.all_reduce(values)
with open("/proc/self/maps") as maps:
    stubs = {line.split()[-1] for line in maps if re.search("torch/lib/lib(cu|nv|nccl)", line)}
print(f"sum {values.tolist()} GPUs {torch.cuda.device_count()} stubs {len(stubs)}\\n", end="")
dist.destroy_process_group()
"""


def setup_torch(environment: Environment, *options: str) -> str:
    ended = environment.run("python", "-m", "maya.cli", "setup-torch", *options)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def stubs_of(environment: Environment) -> set[str]:
    """File names of the stub libraries in the environment's torch."""
    return {path.name for path in environment.torch_libraries.glob("lib*.so.*") if not path.is_symlink()}


def imported(environment: Environment) -> dict[str, Any]:
    """What a program finds that imports torch; a warning is an error."""
    ended = environment.run("python", "-W", "error", "-c", LOADED)
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def by_name(libraries: list[str]) -> dict[str, Path]:
    """NVIDIA libraries that torch has loaded, by file name."""
    return {Path(text).name: Path(text) for text in libraries}


def add_packages(environment: Environment, donor: Environment, sonames: set[str]) -> Path:
    """Libraries where NVIDIA's packages would put them. What is in them does not matter: they only have to load."""
    folder = environment.site_packages / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    for soname in sonames:
        shutil.copy(donor.torch_libraries / soname, folder / soname)
    return folder


def run_ranks(environment: Environment, folder: Path) -> str:
    script = folder / "train.py"
    script.write_text(NCCL_PROGRAM)
    ended = environment.run(
        "python", "-m", "maya.launcher", "--nproc", "2", "--out", folder / "run", "--no-timeline", script, cwd=folder
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def ready(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment after `maya setup-torch`. Tests leave it as it is."""
    environment = make_environment(tmp_path_factory.mktemp("ready") / "env", [ROOT])
    assert "`import torch` works\n" in setup_torch(environment)
    return environment


@pytest.fixture
def fresh(build: Build, tmp_path: Path) -> Callable[[], Environment]:
    """Makes an environment without NVIDIA's libraries."""
    return lambda: make_environment(tmp_path / "env", [ROOT])


@pytest.fixture(scope="module")
def found(ready: Environment) -> dict[str, Any]:
    return imported(ready)


def test_torch_sees_no_gpu_and_gives_no_warning(found: dict[str, Any]) -> None:
    assert (found["is_available"], found["devices"], found["sum"]) == (False, 0, 3.0)


def test_using_a_gpu_is_an_error(found: dict[str, Any]) -> None:
    assert "No CUDA GPUs are available" in found["refusal"]


def test_versions_are_those_that_torch_was_built_for(found: dict[str, Any]) -> None:
    assert found["cudnn"] >= 90000
    assert found["nccl"][0] == 2


def test_every_library_comes_from_the_folder_of_torch(ready: Environment, found: dict[str, Any]) -> None:
    """Even where a CUDA toolkit is installed for the whole machine."""
    loaded = by_name(found["libraries"])
    assert len(loaded) >= FEWEST_STUBS
    assert {path.parent for path in loaded.values()} == {ready.torch_libraries}


def test_every_function_returns_an_error(ready: Environment, tmp_path: Path) -> None:
    results = {library.soname_stem: library for library in KNOWN_LIBRARIES}
    calls = []
    for soname in sorted(stubs_of(ready)):
        library = results[soname_stem(soname)]
        answered = VERSION_QUERIES.get(library.stem, (frozenset[str](), ""))[0]
        exported = read_imports(ready.torch_libraries / soname).exported
        calls += [
            (str(ready.torch_libraries / soname), name)
            for name in sorted(exported - answered)
            if library.prefix_length(name) > 0 and library.result_of(name) == library.unsupported
        ]
    script = tmp_path / "calls.py"  # too long for a command line
    script.write_text(f"import ctypes\nprint([name for path, name in {calls!r} if ctypes.CDLL(path)[name]() == 0])")
    ended = ready.run("python", script)
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
    assert len(calls) > 500


def test_torchrun_on_the_cpu(ready: Environment, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(GLOO_PROGRAM)
    ended = ready.run("torchrun", "--standalone", "--nproc-per-node", "2", script, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "sum [3.0, 3.0, 3.0, 3.0] GPUs 0\n" * 2


def test_ranks_have_virtual_gpus_and_load_no_stub(ready: Environment, tmp_path: Path) -> None:
    assert run_ranks(ready, tmp_path) == "sum [3.0, 3.0, 3.0, 3.0] GPUs 8 stubs 0\n" * 2


def test_a_second_run_changes_nothing(ready: Environment) -> None:
    before = {path: path.stat().st_mtime_ns for path in ready.torch_libraries.iterdir()}
    assert setup_torch(ready) == "`import torch` works; nothing had to be added\n"
    assert {path: path.stat().st_mtime_ns for path in ready.torch_libraries.iterdir()} == before


def test_stubs_need_no_other_file_of_ours(ready: Environment) -> None:
    """They survive an emptied cache and the removal of Maya."""
    for name in stubs_of(ready):
        imports = read_imports(ready.torch_libraries / name)
        assert imports.needed == ()
        assert sum(symbol.startswith(MARK) for symbol in imports.exported) == 1


def test_packages_that_come_later_win(ready: Environment, fresh: Callable[[], Environment]) -> None:
    environment = fresh()
    setup_torch(environment)
    packages = add_packages(environment, ready, {"libcudnn.so.9"})
    loaded = by_name(imported(environment)["libraries"])
    assert loaded["libcudnn.so.9"].parent == packages
    assert loaded["libnccl.so.2"].parent == environment.torch_libraries

    said = "removing stub libraries that torch no longer needs: libcudnn.so.9"
    assert setup_torch(environment).splitlines()[-2:] == [said, "`import torch` works"]
    assert stubs_of(environment) == stubs_of(ready) - {"libcudnn.so.9"}


def test_an_environment_with_all_packages_is_left_alone(
    ready: Environment, fresh: Callable[[], Environment], tmp_path: Path
) -> None:
    environment = fresh()
    add_packages(environment, ready, stubs_of(ready))
    assert setup_torch(environment) == "`import torch` works; nothing had to be added\n"
    assert stubs_of(environment) == set()
    assert run_ranks(environment, tmp_path) == "sum [3.0, 3.0, 3.0, 3.0] GPUs 8 stubs 0\n" * 2


def test_outdated_stubs_are_replaced(ready: Environment, fresh: Callable[[], Environment]) -> None:
    """As after an update of torch."""
    environment = fresh()
    for name in stubs_of(ready):
        shutil.copy(ready.torch_libraries / "libcurand.so.10", environment.torch_libraries / name)
    shutil.copy(ready.torch_libraries / "libcurand.so.10", environment.torch_libraries / "libcurand.so.9")
    assert "`import torch` works\n" in setup_torch(environment)
    assert stubs_of(environment) == stubs_of(ready)


def test_stubs_can_be_removed(ready: Environment, fresh: Callable[[], Environment]) -> None:
    environment = fresh()
    for name in stubs_of(ready):
        shutil.copy(ready.torch_libraries / name, environment.torch_libraries / name)
    assert setup_torch(environment, "--remove") == f"removed {len(stubs_of(ready))} stub libraries\n"
    assert stubs_of(environment) == set()


@pytest.mark.slow  # downloads 2 MB
def test_a_real_package_wins(fresh: Callable[[], Environment], tmp_path: Path) -> None:
    """NVIDIA's own CUDA runtime beside stubs of all other libraries."""
    environment = fresh()
    command = [sys.executable, "-m", "pip", "--python", str(environment.python), "install", "--no-deps"]
    ended = subprocess.run([*command, "nvidia-cuda-runtime==13.*"], capture_output=True, text=True, timeout=300)
    if ended.returncode != 0:
        pytest.skip("no package index that has nvidia-cuda-runtime")
    real = environment.site_packages / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
    content = real.read_bytes()
    setup_torch(environment)
    assert "libcudart.so.13" not in stubs_of(environment)
    found = imported(environment)
    assert by_name(found["libraries"])["libcudart.so.13"] == real
    assert found["devices"] == 0
    assert run_ranks(environment, tmp_path) == "sum [3.0, 3.0, 3.0, 3.0] GPUs 8 stubs 0\n" * 2
    assert real.read_bytes() == content
