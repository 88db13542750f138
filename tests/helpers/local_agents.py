"""Node agents on this machine, without Ray: `python local_agents.py NODES [maya-torchrun's words]`.

Every node has a folder for temporary files of its own. In: the number of nodes, and MAYA_TEST_NODES, a folder: the
process ids of the agents are written there, as `node-0.pid`. Out: the launcher's exit code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from maya.launcher import main
from maya.launcher.arguments import LaunchOptions
from maya.launcher.machines import JobMachines
from maya.nodes.job_nodes import JobNodes
from rank_runtime.build import Build

_FOLDER = "MAYA_TEST_NODES"


class LocalAgents:
    """Agents as child processes."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        for name, values in settings.items():
            folder = Path(os.environ[_FOLDER]) / name
            folder.mkdir()
            process = subprocess.Popen(
                [sys.executable, "-m", "coordinator.node_agent"],
                stdin=subprocess.PIPE,
                env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])},
                start_new_session=True,
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(dict(values)).encode() + b"\n")
            process.stdin.flush()
            self._processes[name] = process
            folder.with_suffix(".pid").write_text(str(process.pid))

    def ended(self) -> dict[str, str]:
        return {
            name: f"its agent ended with status {process.returncode}"
            for name, process in self._processes.items()
            if process.poll() is not None
        }

    def close(self) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _open(nodes: int) -> Callable[..., Any]:
    @contextmanager
    def open_machines(launch: LaunchOptions, build: Build, say: Callable[[str], None]) -> Iterator[JobMachines]:
        names = [f"node-{number}" for number in range(nodes)]
        with JobNodes(LocalAgents(), "127.0.0.1", names, build.torch_version, say) as running:
            yield JobMachines(running, _place_evenly, say)

    return open_machines


def _place_evenly(ranks: Sequence[int], nodes: Sequence[str]) -> dict[str, list[int]]:
    """Contiguous shares of the same size."""
    share, rest = divmod(len(ranks), len(nodes))
    placed, first = {}, 0
    for number, node in enumerate(nodes):
        last = first + share + (number < rest)
        placed[node] = list(ranks[first:last])
        first = last
    return placed


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], _open(int(sys.argv[1]))))
