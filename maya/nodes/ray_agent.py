"""The Ray actor of a node: it starts the node's agent, and the agent ends with it.

In: the agent's settings, as an argument, so that keys are in memory only; the job's folder. Out: the exit code of the
agent and its last lines of output. The actor runs two methods at a time: `run` waits for the agent, `stop` ends it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from maya.nodes.job_folder import JobFolder

_LAST_LINES = 8
_LONGEST_LINE = 300
_END_SECONDS = 40.0  # a little more than the keeper takes to kill an agent
_OUTPUT_SECONDS = 1.0
_UNPACKED = "/runtime_resources/working_dir_files/"  # Ray puts the folder that it has unpacked on PYTHONPATH
# Ray sets these for its workers: they mean nothing to an agent or to its ranks.
_OF_RAY = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONBREAKPOINT", "RAY_JOB_ID", "RAY_CLIENT_MODE", "SPT_NOENV")


class AgentActor:
    """Owns the agent of a node."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()

    def ready(self) -> bool:
        """Ray answers when the actor has its place."""
        return True

    def run(
        self, settings: Mapping[str, Any], words: Sequence[str], folder: Mapping[str, Any], copy: str
    ) -> tuple[int, str]:
        """Run the agent to its end. `words`: its command after the interpreter. `copy`: empty if this machine has the
        job's folder at its own path; otherwise Ray has unpacked the folder as the actor's current one, and the agent
        gets a copy of that name, because Ray keeps what it has unpacked for later jobs."""
        job = JobFolder.from_fields(folder)
        source = str(Path.cwd() if copy else job.path)
        keeper = [sys.executable, "-m", "maya.nodes.agent_keeper", source, copy]
        last: deque[str] = deque(maxlen=_LAST_LINES)
        self._process = subprocess.Popen(
            [*keeper, sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=_environment(os.environ, job.python_path_in(source)),
        )
        reader = threading.Thread(target=self._read, args=[last], daemon=True)
        reader.start()
        with suppress(BrokenPipeError):  # it has ended; its output says why
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(dict(settings)).encode() + b"\n")
            self._process.stdin.flush()
        status = self._process.wait()
        reader.join(_OUTPUT_SECONDS)
        self._over.set()
        return status, "\n".join(last)

    def stop(self) -> None:
        """End the agent, and wait for its end."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._over.wait(_END_SECONDS)

    def _read(self, last: deque[str]) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            last.append(line.decode(errors="replace").rstrip()[:_LONGEST_LINE])


def _environment(own: Mapping[str, str], python_path: Sequence[str]) -> dict[str, str]:
    """The agent's environment: that of the node's Ray without what Ray sets for workers, and the user's PYTHONPATH
    before the node's."""
    environment = {name: value for name, value in own.items() if name not in _OF_RAY}
    entries = [entry for entry in own.get("PYTHONPATH", "").split(os.pathsep) if entry and _UNPACKED not in entry]
    path = dict.fromkeys([*python_path, *entries])
    return {**environment, "PYTHONPATH": os.pathsep.join(path)} if path else environment
