"""Runs trials on a Ray cluster.

In: the address of the cluster, and `TrialCommand`s. Out: processes of trials as `TrialProcess` has them; the run and
the output of a trial come back into the folder of the search when it ends.

Each trial is a Ray task with one processor. The current folder travels as the task's working directory. Maya, in the
same version, torch and a compiler have to be on every node. A trial whose node is lost runs again on another one.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from maya.api.job_launch import END_SECONDS
from maya.config_search.errors import SearchError
from maya.config_search.trial_process import TrialProcess
from maya.util.extras import MissingPackage, needs
from maya.version import __version__

_POLL_SECONDS = 0.2
_RETRIES = 3  # of a trial whose node is lost
_LOST = 1  # the exit code of a trial that every node lost
_HIDING = "CUDA_VISIBLE_DEVICES"  # Ray hides all GPUs from a task that asks for none
_PASSED = ("MAYA_", "NCCL_", "PET_", _HIDING)  # variables of the driver that change a prediction
# Ray sends a task elsewhere when the connection to its node breaks. A node that loses power breaks no connection: by
# default, it would be noticed after minutes.
_KEEPALIVE = {"RAY_grpc_client_keepalive_time_ms": "10000", "RAY_grpc_client_keepalive_timeout_ms": "10000"}
# What a working directory does not need: results, and what a version control system keeps.
_EXCLUDED = ["maya-runs/", ".git/", ".venv/", "**/trial-*/", "**/*.trace"]


class RayCluster:
    """A connection to a Ray cluster. `address`: as ray.init takes it; "auto" for the one of this machine."""

    def __init__(self, address: str) -> None:
        self._ray = _ray_library()
        try:
            self._ray.init(
                address=address,
                runtime_env={"working_dir": str(Path.cwd()), "excludes": _EXCLUDED},
                log_to_driver=False,
                configure_logging=False,
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise SearchError(f"--ray {address}: {str(error).splitlines()[0]}") from error
        # A task is sent by its source where its module is not the same everywhere; this one is part of Maya.
        self._task = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(run_trial)

    @property
    def processors(self) -> int:
        """Of all nodes."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(
        self, words: Sequence[str], run: Path, log: Path, environment: Mapping[str, str], lock: int | None = None
    ) -> RayTrial:
        """Begin a trial; as `TrialProcess`. Of the environment, nodes get what differs from this machine's, and what
        changes predictions."""
        variables = {
            name: value
            for name, value in environment.items()
            if name.startswith(_PASSED) or os.environ.get(name) != value
        }
        return RayTrial(self._ray, self._task.remote(__version__, list(words), variables), run, log)

    def close(self) -> None:
        self._ray.shutdown()


class RayTrial:
    """A trial on some node."""

    def __init__(self, library: Any, task: Any, run: Path, log: Path) -> None:
        self.run = run
        self.log = log
        self._ray = library
        self._task = task
        self._began = time.monotonic()
        self._exit_code: int | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def exit_code(self) -> int | None:
        """None: it still runs. When it has ended, its run and its output are here."""
        if self._exit_code is None and self._ray.wait([self._task], timeout=0)[0]:
            self._exit_code = self._fetch()
        return self._exit_code

    def interrupt(self) -> None:
        """Ask the job to end in order."""
        self._ray.cancel(self._task, force=False)

    def wait_for_end(self) -> None:
        """Wait after `interrupt`; a job that does not end is killed."""
        if not self._ray.wait([self._task], timeout=END_SECONDS)[0]:
            self._ray.cancel(self._task, force=True)

    def _fetch(self) -> int:
        try:
            exit_code, output, content = self._ray.get(self._task)
        except self._ray.exceptions.RayError as error:
            self.log.write_text(f"maya search: the trial was lost: {str(error).splitlines()[0]}\n", encoding="utf-8")
            return _LOST
        self.log.write_text(output, encoding="utf-8")
        if content:
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
                archive.extractall(self.run, filter="data")
        return int(exit_code)


def run_trial(version: str, words: list[str], environment: Mapping[str, str]) -> tuple[int, str, bytes]:
    """The task: run maya-torchrun on this node. Returns its exit code, its output, and its folder as a tar file."""
    if version != __version__:
        return 2, f"maya-torchrun: error: this node has Maya {__version__}, the search {version}\n", b""
    own = {name: value for name, value in os.environ.items() if name != _HIDING}
    folder = Path(tempfile.mkdtemp(prefix="maya-trial-"))
    try:
        run, log = folder / "run", folder / "log"
        process = TrialProcess(words, run, log, {**own, **environment})
        try:
            while (exit_code := process.exit_code()) is None:
                time.sleep(_POLL_SECONDS)
        except BaseException:  # the task is cancelled
            process.interrupt()
            process.wait_for_end()
            raise
        packed = io.BytesIO()
        if run.exists():
            with tarfile.open(fileobj=packed, mode="w:gz") as archive:
                for each in sorted(run.iterdir()):
                    archive.add(each, each.name)
        return exit_code, log.read_text(encoding="utf-8", errors="replace"), packed.getvalue()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ray_library() -> Any:
    for name, value in _KEEPALIVE.items():  # read when Ray is imported
        os.environ.setdefault(name, value)
    try:
        with needs("ray", "--ray"):
            import ray
    except MissingPackage as error:
        raise SearchError(str(error)) from error
    with suppress(AttributeError):
        import ray.exceptions
    return ray
