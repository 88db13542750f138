"""Install a framework into a folder, over the torch of .venv.

In: a `Framework` and a folder. Out: `prefix`, where the framework and what it requires are installed (torch and what
torch requires are those of .venv), and `data` with what its preparation makes. A stamp says what is installed; nothing
is done if it fits.

pip would install torch again, with gigabytes of NVIDIA's packages. So each package is installed without its
requirements, and what these lack is installed next, until nothing is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from framework_catalogue import PROGRAMS, Framework
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SHARED = ("torch", "triton")  # packages of .venv that no framework may replace
_NEVER = ("nvidia-", "cuda-")  # NVIDIA's libraries, which Maya replaces
_ROUNDS = 12


class InstallError(Exception):
    """A package could not be installed; the text says why and where the log is."""


def install(framework: Framework, folder: Path) -> dict[str, Path]:
    """Make the framework's folders, if they are not there. Returns them by name."""
    prefix, data = folder / "prefix", folder / "data"
    folders = {"packages": _packages_of(prefix), "prefix": prefix, "data": data, "programs": PROGRAMS}
    stamp = folder / "stamp.json"
    wanted = _wanted(framework)
    if not (stamp.exists() and json.loads(stamp.read_text(encoding="utf-8")) == wanted):
        print(f"frameworks: installing {framework.title} in {folder}", file=sys.stderr)
        stamp.unlink(missing_ok=True)
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(parents=True)
        _install_packages(framework, prefix, folder / "install.log")
        _prepare(framework, folders, folder / "install.log")
        stamp.write_text(json.dumps(wanted), encoding="utf-8")
    return folders


def environment_of(framework: Framework, folders: dict[str, Path]) -> dict[str, str]:
    """The environment of the framework's programs."""
    path = os.pathsep.join(filter(None, [str(folders["packages"]), os.environ.get("PYTHONPATH")]))
    programs = os.pathsep.join([str(VENV / "bin"), str(folders["prefix"] / "bin"), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PATH": programs,
        "CUDA_HOME": str(folders["data"] / "no-cuda-toolkit"),  # whatever this machine has
        "TORCH_EXTENSIONS_DIR": str(folders["data"] / "torch_extensions"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folders["data"] / "huggingface"),
        "WANDB_MODE": "offline",
        **{key: value.format(**folders) for key, value in framework.environment.items()},
    }


def _wanted(framework: Framework) -> dict[str, Any]:
    python = subprocess.run([PYTHON, "-VV"], capture_output=True, text=True, check=True).stdout.strip()
    files = [(PROGRAMS / word.removeprefix("{programs}/")) for word in shlex.split(framework.prepare)]
    contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    settings = (framework.packages, framework.constraints, framework.without, framework.prepare, contents)
    return {"python": python, "torch": _installed_torch(), "settings": json.loads(json.dumps(settings))}


def _installed_torch() -> str:
    return next(found.version for found in distributions(path=_site_packages()) if found.name == "torch")


def _site_packages() -> list[str]:
    return [str(path) for path in VENV.glob("lib/python3*/site-packages")]


def _packages_of(prefix: Path) -> Path:
    return prefix / Path(_site_packages()[0]).relative_to(VENV)


def _install_packages(framework: Framework, prefix: Path, log: Path) -> None:
    log.write_text("", encoding="utf-8")
    shutil.rmtree(prefix, ignore_errors=True)
    missing = {name_of(text): text for text in framework.packages}
    for _ in range(_ROUNDS):
        if not missing:
            return
        _pip(["install", "--no-deps", "--ignore-installed", "--prefix", str(prefix), *missing.values()], log)
        needed = _needed(framework, _packages_of(prefix))
        missing = {name: text for name, text in needed.items() if not _meets(text, [_packages_of(prefix)])}
        if not missing.keys().isdisjoint(_own(prefix)):  # start over: pip leaves the old version there
            shutil.rmtree(prefix)
            missing = {name_of(text): text for text in framework.packages} | needed
    raise InstallError(f"requirements of {framework.title} contradict each other: {', '.join(missing.values())}")


def name_of(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _own(prefix: Path) -> set[str]:
    return {canonicalize_name(found.name) for found in distributions(path=[str(_packages_of(prefix))])}


def _meets(requirement: str, folders: list[Path]) -> bool:
    """Whether a package in the folders, the first of its name, meets the requirement."""
    wanted = Requirement(requirement)
    for found in distributions(path=list(map(str, folders))):
        if canonicalize_name(found.name) == canonicalize_name(wanted.name):
            return wanted.specifier.contains(found.version, prereleases=True)
    return False


def _needed(framework: Framework, folder: Path) -> dict[str, str]:
    """What the packages in the folder require and .venv lacks: requirements by name."""
    own = {canonicalize_name(found.name): found for found in distributions(path=[str(folder)])}
    fixed = {name_of(text): Requirement(text).specifier for text in (*framework.constraints, *framework.packages)}
    without = {canonicalize_name(name) for name in (*framework.without, *SHARED)}
    extras = {canonicalize_name(item.name): set(item.extras) for item in map(Requirement, framework.packages)}
    needed: dict[str, SpecifierSet] = {}
    for _ in range(3):  # extras of requirements bring in more requirements
        needed = {}
        for found in own.values():
            for requirement in _requirements(found, extras.get(canonicalize_name(found.name), set())):
                name = canonicalize_name(requirement.name)
                extras.setdefault(name, set()).update(requirement.extras)
                needed[name] = needed.get(name, SpecifierSet()) & requirement.specifier
    wanted = {name: f"{name}{fixed.get(name, specifier)}" for name, specifier in sorted(needed.items())}
    places = [folder, *map(Path, _site_packages())]
    return {
        name: text
        for name, text in wanted.items()
        if name not in without and not name.startswith(_NEVER) and (name in own or not _meets(text, places))
    }


def _requirements(found: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for text in found.requires or []:
        requirement = Requirement(text)
        if requirement.url:
            continue
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in {"", *extras}):
            yield requirement


def _prepare(framework: Framework, folders: dict[str, Path], log: Path) -> None:
    if not framework.prepare:
        return
    words = [word.format(**folders) for word in shlex.split(framework.prepare)]
    _run([str(PYTHON), *words], log, environment_of(framework, folders))


def _pip(arguments: list[str], log: Path) -> None:
    _run([str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments], log, dict(os.environ))


def _run(command: list[str], log: Path, environment: dict[str, str]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        ended = subprocess.run(command, stdout=file, stderr=file, env=environment, check=False)
    if ended.returncode != 0:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
        raise InstallError(f"{' '.join(command[1:6])} … failed: {' '.join(last)} (whole log: {log})")


def versions_in(folder: Path) -> dict[str, str]:
    """Names and versions of the packages in a folder."""
    return {found.name: found.version for found in sorted(distributions(path=[str(folder)]), key=lambda d: d.name)}
