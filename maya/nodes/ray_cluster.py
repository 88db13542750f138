"""The nodes of a Ray cluster: what they have, and the agents of a job on them.

In: the address of the cluster, the job's folder, the resources that its nodes must have. Out: `Machine`s; agents that
run until close(), which JobNodes starts and watches. maya/nodes/ray_driver.py speaks with Ray, in a child process.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from maya.nodes.job_folder import JobFolder
from maya.nodes.job_nodes import NodesError
from maya.nodes.machine import Machine
from maya.util.extras import MissingPackage, needs
from maya.version import __version__
from rank_runtime.zygote.protocol import Lines

# As `-m coordinator.node_agent`, but the modules of the job's folder, which is current, do not hide ours.
AGENT = (
    "-c",
    "import runpy, sys; sys.path[:] = [each for each in sys.path if each]; "
    "runpy.run_module('coordinator.node_agent', run_name='__main__', alter_sys=True)",
)
_LOG_PREFIX = re.compile(r"^\[[^]]*\] (\(\w+\) )?\S+:\d+: ")  # of Ray's lines: time, process, source
_LONGEST_LINE = 200
_CONNECT_SECONDS = 100.0  # more than the driver takes for its own time limits
_START_SECONDS = 200.0
_CLOSE_SECONDS = 45.0


class RayNodes:
    """A connection to a Ray cluster. `nodes()`, then start(); close() leaves nothing on any node."""

    def __init__(
        self,
        address: str,
        folder: JobFolder | None = None,
        resources: Mapping[str, float] | None = None,
        agent: Sequence[str] = AGENT,
    ) -> None:
        """`address`: "<host>:<port>" of the head, or "auto". `folder`: that of the job; None: only to look at nodes.
        `resources`: every agent reserves them, and nodes without them are left out. Raises NodesError."""
        _need_ray()
        self._given = address
        self._resources = dict(resources or {})
        self._agent = tuple(agent)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "maya.nodes.ray_driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            cwd="/",
            start_new_session=True,  # Ctrl-C on the terminal reaches the launcher only
        )
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdout.fileno())
        self._ended: dict[str, str] = {}
        self._started: tuple[str, ...] = ()
        try:
            self._tell({"address": address, "folder": None if folder is None else folder.as_fields()})
            found = self._answer("machines", _CONNECT_SECONDS)
        except BaseException:
            self.close()
            raise
        self.address: str = found["address"]  # that of this machine, as the nodes reach it
        self._machines = [Machine.from_fields(fields) for fields in found["machines"]]

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def nodes(self) -> list[Machine]:
        """The nodes that are alive, have the resources and lend processors; the launcher's first."""
        return [
            each
            for each in self._machines
            if each.processors > 0
            and all(each.resources.get(name, 0) >= amount for name, amount in self._resources.items())
        ]

    def all_nodes(self) -> list[Machine]:
        """All that are alive."""
        return list(self._machines)

    def usable(self, torch: str) -> list[Machine]:
        """`nodes()`, if all have what this machine has, and `torch`. Raises NodesError, which names the others."""
        nodes = self.nodes()
        if not nodes:
            wanted = ", ".join(f"{name}={amount:g}" for name, amount in self._resources.items())
            raise NodesError(
                f"--ray {self._given}: none of the {len(self._machines)} nodes has "
                + (f"{wanted} and at least one CPU" if wanted else "a CPU (ray start --num-cpus)")
            )
        problems = [(each.name, each.problem(platform.python_version(), __version__, torch)) for each in nodes]
        found = [f"node {name} {problem}" for name, problem in problems if problem is not None]
        if found:
            raise NodesError(f"--ray {self._given}: {'; '.join(found)}")
        return nodes

    def copied_to(self) -> list[str]:
        """The nodes that do not have the job's folder at the same path, and get a copy of it."""
        own = next((each.folder for each in self._machines if each.is_here), "")
        return [each.name for each in self.nodes() if not own or each.folder != own]

    def start(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Start an agent on each of these nodes; it gets its settings as a line of JSON on standard input."""
        self._started = tuple(settings)
        command = {"start": {name: dict(values) for name, values in settings.items()}}
        self._tell({**command, "resources": self._resources, "words": self._agent})
        self._answer("started", _START_SECONDS)

    def ended(self) -> dict[str, str]:
        """The nodes whose agents have ended or that are lost, each with the reason. Does not block."""
        while not self._lines.ended and select.select([self._lines.descriptor], [], [], 0)[0]:
            for line in self._lines.read():
                self._ended.update(line.get("ended", {}))
        if self._lines.ended:
            reason = f"the connection to Ray is lost{self._last_line()}"
            self._ended = {**dict.fromkeys(self._started, reason), **self._ended}
        return dict(self._ended)

    def close(self) -> None:
        """End all agents, and disconnect."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        self._process.stdin.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # Ray ends the agents of a driver that is gone
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._output.close()

    def _tell(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: its answer says why

    def _answer(self, kind: str, seconds: float) -> Any:
        """Wait for an answer. Raises NodesError."""
        until = time.monotonic() + seconds
        while not self._lines.ended:
            if not select.select([self._lines.descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
                raise NodesError(f"--ray {self._given}: Ray does not answer within {seconds:.0f} s{self._last_line()}")
            for line in self._lines.read():
                self._ended.update(line.get("ended", {}))
                if "failed" in line:
                    raise NodesError(f"--ray {self._given}: {line['failed']}")
                if kind in line:
                    return line
        raise NodesError(f"--ray {self._given}: the connection to Ray ended{self._last_line()}")

    def _last_line(self) -> str:
        """The last line that Ray has printed."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        last = _LOG_PREFIX.sub("", last)
        return f": {last[:_LONGEST_LINE]}" if last else ""


def _need_ray() -> None:
    """Raise NodesError unless Ray is installed."""
    try:
        with needs("ray", "--ray"):
            if importlib.util.find_spec("ray") is None:
                raise ModuleNotFoundError("No module named 'ray'", name="ray")
    except MissingPackage as error:
        raise NodesError(str(error)) from error
