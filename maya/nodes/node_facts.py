"""What the launcher has to know of a node before it places ranks there, and how it makes the ranks' environment.

In: an agent's own environment, its build of the fake libraries. Out: `NodeFacts`, as plain values in a message.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from maya.nodes.node_messages import NodeMessageError
from rank_runtime.build import Build

# Variables that describe a machine rather than a job: a rank gets those of its own node, and all others from the
# launcher's environment.
_OF_MACHINE = (
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "HOME", "USER", "LOGNAME", "SHELL", "PWD",
    "OLDPWD", "HOSTNAME", "TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_*", "XDG_*", "SSH_*",
    "RAY_*", "CUDA_HOME", "CUDA_PATH", "CC", "CXX", "_",
)  # fmt: skip


@dataclass(frozen=True)
class NodeFacts:
    """A node on which an agent runs."""

    name: str
    host: str  # its host name
    folder: str  # where its ranks write what the launcher's run folder is to get
    working_folder: str
    python: str
    environment: Mapping[str, str]
    build_folder: str
    libraries: tuple[str, ...]
    observer: str
    zmq_library: str
    interface: str  # the network interface by which it reaches the launcher; empty: unknown
    maya_version: str
    torch_version: str
    python_version: str

    def as_fields(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_fields(values: Mapping[str, Any]) -> NodeFacts:
        names = {field.name for field in fields(NodeFacts)}
        if values.keys() != names or not all(
            isinstance(value, dict if name == "environment" else list if name == "libraries" else str)
            for name, value in values.items()
        ):
            raise NodeMessageError("the facts of the node are incomplete: install the same Maya on all nodes")
        return NodeFacts(**{**values, "libraries": tuple(values["libraries"])})

    @property
    def build(self) -> Build:
        observer = Path(self.observer) if self.observer else None
        libraries = tuple(map(Path, self.libraries))
        return Build(Path(self.build_folder), libraries, observer, None, self.torch_version, "")


def environment_on(facts: NodeFacts, launcher: Mapping[str, str]) -> dict[str, str]:
    """The environment that a command on a node starts with: the launcher's, but the node's own where it describes the
    machine. Gloo connects by the interface that leads to the launcher, unless the user names another."""
    own = {name: value for name, value in facts.environment.items() if _is_of_machine(name)}
    job = {name: value for name, value in launcher.items() if not _is_of_machine(name)}
    gloo = {"GLOO_SOCKET_IFNAME": facts.interface} if facts.interface else {}
    return {**gloo, **own, **job}


def _is_of_machine(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _OF_MACHINE)
