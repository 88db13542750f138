"""Virtual environments for tests of the installation.

In: an empty folder. Out: an `Environment` made of links, in a second and without a package index:
- `make_environment`: with a torch folder of its own, so that a test may add libraries to it, whose files are links to
  the installed torch; all other packages are those of the environment that runs the tests;
- `make_minimal_environment`: only with the packages that are named.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from rank_runtime.build.torch_install import NVIDIA_SONAME, find_torch


@dataclass(frozen=True)
class Environment:
    """One virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder)}))

    @property
    def torch_libraries(self) -> Path:
        return self.site_packages / "torch" / "lib"

    def run(
        self, *command: str | Path, cwd: Path | None = None, timeout: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's programs, with no module search path from outside."""
        inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_PRELOAD")}
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *map(str, command[1:])],
            cwd=cwd or self.folder,
            env={**inherited, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def make_environment(folder: Path, search_path: Iterable[Path] = ()) -> Environment:
    """An environment in `folder` that has torch, without any NVIDIA library, and finds modules in `search_path`."""
    venv.create(folder, symlinks=True, with_pip=False)
    environment = Environment(folder)
    installed = find_torch()
    _link(installed.folder, environment.site_packages / "torch", except_for={"lib"})
    nvidia = {path.name for path in installed.library_folder.iterdir() if NVIDIA_SONAME.match(path.name)}
    _link(installed.library_folder, environment.torch_libraries, except_for=nvidia)
    for metadata in installed.folder.parent.glob("torch-*.dist-info"):
        (environment.site_packages / metadata.name).symlink_to(metadata)
    paths = [*search_path, Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))]
    (environment.site_packages / "others.pth").write_text("".join(f"{path}\n" for path in paths))
    _write_program(environment, "torchrun", "torch.distributed.run")
    return environment


def make_minimal_environment(folder: Path, distributions: Iterable[str]) -> Environment:
    """An environment in `folder` that has these distributions and nothing else."""
    venv.create(folder, symlinks=True, with_pip=False)
    environment = Environment(folder)
    for name in distributions:
        found = distribution(name)
        for entry in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
            (environment.site_packages / entry).symlink_to(Path(str(found.locate_file(entry))))
    return environment


def install(environment: Environment, *wheels: Path | str) -> None:
    """Install wheels with the pip that is there, and nothing from a package index."""
    command = [sys.executable, "-m", "pip", "--python", str(environment.python), "install", "--no-index", "--quiet"]
    ended = subprocess.run([*command, *map(str, wheels)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def _link(source: Path, target: Path, except_for: set[str]) -> None:
    target.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name not in except_for:
            (target / entry.name).symlink_to(entry)


def _write_program(environment: Environment, name: str, module: str) -> None:
    """The script that pip would have written for an installed package."""
    path = environment.folder / "bin" / name
    path.write_text(f"#!{environment.python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
    path.chmod(0o755)
