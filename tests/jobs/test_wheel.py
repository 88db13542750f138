"""The wheel: what is in it, and that it works in environments that know nothing of this folder.

The names of our packages are also common names of modules, so the programs here have modules of the same names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from helpers.environments import Environment, install, make_environment, make_minimal_environment

import maya
from rank_runtime.build import Build

ROOT = Path(__file__).parents[2]
PACKAGES = ("coordinator", "maya", "netmodel", "rank_runtime")
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")

PROGRAM = """
import coordinator, maya, netmodel, rank_runtime
import torch, torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    loss = model(torch.ones(8, 64, device="cuda")).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
modules = coordinator, maya, netmodel, rank_runtime
print(f"rank {dist.get_rank()} {[module.OWNER for module in modules]}\\n", end="")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves files beside the sources, and would pack them the next time."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=IGNORED)
    (source / "maya-runs").mkdir()
    (source / "maya-runs" / "notes.py").write_text("")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    ended = subprocess.run([*command, "-w", str(folder), str(source)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A stock torch without NVIDIA's packages, and the wheel."""
    environment = make_environment(tmp_path_factory.mktemp("installed") / "env")
    install(environment, wheel)
    return environment


@pytest.fixture(scope="module")
def without_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel and the packages that it depends on."""
    dependencies = ["pyzmq", "msgpack", "numpy", "click", "psutil", *(["tomli"] if sys.version_info < (3, 11) else [])]
    environment = make_minimal_environment(tmp_path_factory.mktemp("minimal") / "env", dependencies)
    install(environment, wheel)
    return environment


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: a script, and modules of its own with the names of our packages."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text(PROGRAM)
    for name in PACKAGES:
        (folder / f"{name}.py").write_text('OWNER = "user"\n')
    return folder


@pytest.fixture(scope="module")
def run(build: Build, installed: Environment, program: Path) -> Path:
    """A finished job, started in the user's folder."""
    folder = program / "run"
    train(installed, program, folder)
    return folder


def train(environment: Environment, program: Path, folder: Path, **variables: str) -> None:
    words = ("maya-torchrun", "--nproc", "2", "--out", folder, "train.py")
    ended = environment.run(*words, cwd=program, timeout=600, **variables)
    assert ended.returncode == 0, ended.stderr
    ranks = [f"rank {rank} ['user', 'user', 'user', 'user']" for rank in range(2)]
    assert sorted(ended.stdout.splitlines()) == ranks


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    """Sources in C, catalogues, models of kernel times, the page of the report, py.typed; and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file())
    shipped = (path for path in files if "__pycache__" not in path.parts and not path.name.startswith("."))
    expected = {str(path.relative_to(ROOT)) for path in shipped}
    assert packed == expected


def test_wheel_is_for_every_python_and_platform(wheel: Path) -> None:
    assert wheel.name == f"maya_torchrun-{maya.__version__}-py3-none-any.whl"


def test_torch_and_training_are_extras(metadata: Message) -> None:
    requirements = metadata.get_all("Requires-Dist") or []
    always = {text.split(">")[0] for text in requirements if "extra ==" not in text}
    assert always == {"pyzmq", "msgpack", "numpy", "click", "psutil", "tomli"}
    assert set(metadata.get_all("Provides-Extra") or []) == {"torch", "train", "pandas", "search", "ray", "dev"}


def test_version_is_told_everywhere(installed: Environment, metadata: Message) -> None:
    assert metadata["Version"] == maya.__version__
    assert installed.run("maya", "--version").stdout == f"maya, version {maya.__version__}\n"


def test_libraries_have_the_same_sources(build: Build, installed: Environment) -> None:
    """A build is kept by a digest of all its sources."""
    ended = installed.run("python", "-c", "from rank_runtime.build import ensure_built; print(ensure_built().folder)")
    assert ended.stdout == f"{build.folder}\n", ended.stderr


@pytest.mark.slow  # compiles everything
def test_libraries_are_built_from_the_wheel(installed: Environment, program: Path, tmp_path: Path) -> None:
    train(installed, program, tmp_path / "run", MAYA_CACHE=str(tmp_path / "cache"))


def test_job_among_modules_with_our_names(run: Path) -> None:
    for name in ("rank0.trace", "rank1.trace", "summary.json", "cluster_trace.json.gz"):
        assert (run / name).stat().st_size > 0


def test_commands_among_modules_with_our_names(installed: Environment, program: Path, run: Path) -> None:
    for words in (["report", run, "--out", program / "report.html"], ["whatif", run, "--gpu", "a100-80"], ["gpus"]):
        ended = installed.run("maya", *words, cwd=program)
        assert ended.returncode == 0, ended.stderr
    assert (program / "report.html").stat().st_size > 0


def test_modules_with_our_names_on_the_search_path(
    installed: Environment, program: Path, run: Path, tmp_path: Path
) -> None:
    """All but `maya`, which hides the command itself."""
    for name in PACKAGES:
        if name != "maya":
            shutil.copy(program / f"{name}.py", tmp_path)
    (tmp_path / "train.py").write_text(
        "import coordinator, torch\nprint(coordinator.OWNER, torch.cuda.device_count())\n"
    )
    for words in (
        ["maya", "report", run, "--out", tmp_path / "report.html"],
        ["maya", "net", "bench", "dgx-h100", "--op", "all_reduce", "--gpus", "16"],
        ["maya-torchrun", "--no-timeline", "--out", tmp_path / "run", "train.py"],
    ):
        ended = installed.run(*words, cwd=tmp_path, PYTHONPATH=str(tmp_path))
        assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["user", "8"]
    assert (tmp_path / "report.html").read_bytes()


def test_results_without_torch(without_torch: Environment, program: Path, run: Path, tmp_path: Path) -> None:
    for words in (
        ["report", run, "--out", tmp_path / "report.html"],
        ["whatif", run, "--gpu", "a100-80"],
        ["trace", "show", "--summary", run / "rank0.trace"],
        ["net", "bench", "dgx-h100", "--op", "all_reduce", "--gpus", "16"],
    ):
        ended = without_torch.run("maya", *words, cwd=program)
        assert ended.returncode == 0, ended.stderr


def test_job_without_torch(without_torch: Environment, program: Path) -> None:
    ended = without_torch.run("maya-torchrun", "train.py", cwd=program)
    assert ended.returncode == 2
    assert "torch is not installed for this Python interpreter" in ended.stderr
    assert "pip install torch" in ended.stderr
