"""Starts a script file on several ranks, by maya-torchrun or by torch's own torchrun, for tests of parallel programs.

torch's own runs the ranks on the CPU with Gloo: the installed torch is a CUDA build and does not load without CUDA
libraries, so the fake ones are preloaded, but no GPU is visible.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from maya.devices import load_device
from rank_runtime.build import Build
from rank_runtime.environment import rank_environment

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "scripts" / "examples"


@dataclass(frozen=True)
class ParallelRun:
    """A finished run of several ranks."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def of_rank(self, rank: int) -> str:
        """What a rank printed, if the run was told to `--redirects 3`."""
        (file,) = (self.folder / "logs").glob(f"*/attempt_0/{rank}/stdout.log")
        return file.read_text(encoding="utf-8")


def maya_torchrun(
    folder: Path, ranks: int, script: Path, *arguments: str, options: tuple[str, ...] = ()
) -> ParallelRun:
    """On virtual GPUs."""
    words = ["-m", "maya.launcher", "--nproc", str(ranks), "--out", str(folder / "out"), *options]
    return _launch(folder, [*words, str(script), *arguments], with_examples(os.environ))


def stock_torchrun(
    build: Build, folder: Path, ranks: int, script: Path, *arguments: str, options: tuple[str, ...] = ()
) -> ParallelRun:
    """On the CPU, nothing of it emulated."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *options]
    return _launch(folder, [*words, str(script), *arguments], stock_environment(build))


def stock_environment(build: Build) -> dict[str, str]:
    """For a Python process that imports torch and sees no GPU."""
    properties = load_device("h100").cuda_properties()
    fakes = rank_environment(build, properties, {"MAYA_COMPUTE": "none", "MAYA_TRACE": ""}, os.environ)
    return {**with_examples(os.environ), **fakes, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def with_examples(environment: Mapping[str, str]) -> dict[str, str]:
    """In which scripts find the modules of the examples, as if they lay beside them."""
    path = os.pathsep.join(filter(None, [str(EXAMPLES), environment.get("PYTHONPATH", "")]))
    return {**environment, "PYTHONPATH": path}


def _launch(folder: Path, words: list[str], environment: dict[str, str]) -> ParallelRun:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *words]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return ParallelRun(ended.returncode, ended.stdout, ended.stderr, folder)
