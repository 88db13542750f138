"""Ranks as plain processes on the fake libraries, with a real coordinator, for tests of NCCL without torch.

In: a program that drives NCCL by `nccl_driver`. Out: what each rank printed.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import zmq
from helpers.checks import Checks, problems_in, require

from maya.devices import load_device
from rank_runtime.build import Build
from rank_runtime.environment import rank_environment

HELPERS = Path(__file__).resolve().parent
REPOSITORY = HELPERS.parents[1]

Ranks = Callable[..., list[str]]


class Coordinator:
    """`python -m coordinator` for a number of ranks."""

    def __init__(self, world_size: int) -> None:
        self.secret = secrets.token_hex(16)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "coordinator",
                "--world-size",
                str(world_size),
                "--secret",
                self.secret,
                "--no-store",
            ],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.endpoint = json.loads(self._output.readline())["coordinator"]["endpoint"]

    @property
    def _output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


@pytest.fixture(name="ranks")
def ranks_fixture(build: Build, tmp_path: Path) -> Ranks:
    """Runs a program as `count` ranks and gives their outputs; their traces are rank<N>.trace in the test's folder."""
    return rank_runner(build, tmp_path)


@pytest.fixture(name="ranks_once", scope="module")
def ranks_once_fixture(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """As `ranks`, for a program that all tests of a module look at."""

    def run(count: int, program: str, **settings: Any) -> list[str]:
        return rank_runner(build, tmp_path_factory.mktemp("ranks"))(count, program, **settings)

    return run


def rank_runner(build: Build, folder: Path) -> Ranks:
    def run(
        count: int,
        program: str,
        *,
        exit_codes: Mapping[int, int] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> list[str]:
        coordinator = Coordinator(count)
        running: list[subprocess.Popen[str]] = []
        try:
            script = folder / "program.py"
            script.write_text("from nccl_driver import *\n" + textwrap.dedent(program))
            for rank in range(count):
                environment = {
                    **os.environ,
                    **rank_variables(build, coordinator.endpoint, coordinator.secret, rank, count, folder),
                    **(variables or {}),
                }
                running.append(
                    subprocess.Popen(
                        [sys.executable, "-u", str(script)],
                        env=environment,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            outputs = [process.communicate(timeout=120) for process in running]
            for rank, process in enumerate(running):
                assert process.returncode == (exit_codes or {}).get(rank, 0), f"rank {rank}: {outputs[rank]}"
        finally:
            for process in running:
                process.kill()
                process.communicate()
            coordinator.close()
        return [out + err for out, err in outputs]

    return run


@dataclass(frozen=True)
class RankOutcomes:
    """What became of checks that all ranks made together."""

    outputs: list[str]

    def require(self, check: str) -> None:
        for output in self.outputs:
            require(check, problems_in(output), output)


def run_checks(checks: Checks, ranks: Ranks, count: int, **settings: Any) -> RankOutcomes:
    return RankOutcomes(ranks(count, checks.program, **settings))


def rank_variables(build: Build, endpoint: str, secret: str, rank: int, count: int, folder: Path) -> dict[str, str]:
    chosen = {
        "MAYA_COORDINATOR": endpoint,
        "MAYA_COORDINATOR_SECRET": secret,
        "MAYA_ZMQ": zmq_library(),
        "MAYA_TRACE": str(folder / "rank%r.trace"),
    }
    runtime = next(path.name for path in build.libraries if path.name.startswith("libcudart"))
    return {
        **rank_environment(build, load_device("h100").cuda_properties(), chosen, os.environ),
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "CUDA_RUNTIME": runtime,
        "PYTHONPATH": str(HELPERS),
    }


def zmq_library() -> str:
    (library,) = (Path(zmq.__file__).parent.parent / "pyzmq.libs").glob("libzmq*")
    return str(library)
