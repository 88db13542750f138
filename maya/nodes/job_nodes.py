"""The nodes of a job: starts an agent on each, and waits until all are ready for ranks.

In: machines, and a way to start agents there (Ray). Out: `JobNodes`, which all attempts at the job share: the facts of
each node, a link to its agent, and the ranks that are placed there.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from maya.nodes.node_facts import NodeFacts
from maya.nodes.node_links import SILENCE_SECONDS, SILENCE_VARIABLE, NodeLinks, NodeListener
from maya.nodes.run_keys import RunKeys
from maya.version import __version__

Say = Callable[[str], None]


class NodesError(Exception):
    """The nodes cannot run the job; the text is for the user."""


class AgentStarter(Protocol):
    """Starts node agents, and ends them."""

    def start(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Start an agent on each of these nodes, with its settings."""
        ...

    def ended(self) -> Mapping[str, str]:
        """The nodes whose agents have ended, each with the reason. Does not block."""
        ...

    def close(self) -> None:
        """End all agents."""
        ...


class JobNodes:
    """The agents of a job. After close() none is left."""

    def __init__(
        self,
        starter: AgentStarter,
        address: str,
        nodes: Sequence[str],
        torch_version: str,
        say: Say,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`address`: that of this machine, as the nodes reach it. `torch_version`: of this machine. `folder`: what the
        agents have as their current folder, as its path is here; None: the current one."""
        self.folder = folder or Path.cwd()
        self.keys = RunKeys.make()
        self.address = address
        self.names = tuple(nodes)
        self._lost: dict[str, str] = {}  # why a node is lost
        self._facts: dict[str, NodeFacts] = {}
        self._problems: dict[str, str] = {}
        self._torch_version = torch_version
        self._say = say
        self._changed = threading.Condition()
        self._listener: NodeListener | None = None
        self._starter = starter
        seconds = _silence_seconds(environment if environment is not None else os.environ)
        self._links = NodeLinks(address, self.keys, nodes, seconds)
        keys = self.keys.for_clients().as_json()
        settings = {"launcher": self._links.endpoint, "keys": keys, "silence_seconds": seconds}
        try:
            starter.start({node: {**settings, "name": node} for node in nodes})
        except BaseException:
            self._links.close()
            starter.close()
            raise
        self._links.begin(self, starter.ended)

    def __enter__(self) -> JobNodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_until_ready(self) -> None:
        """Until the agents of all nodes have reported. Raises NodesError that names the nodes that cannot run ranks."""
        with self._changed:
            while not self._problems and len(self._facts) < len(self.names):
                self._changed.wait(0.5)  # not for ever, so that Ctrl-C is handled
        if self._problems:
            raise NodesError("\n".join(f"node {node}: {text}" for node, text in sorted(self._problems.items())))

    @property
    def alive(self) -> tuple[str, ...]:
        """The nodes that are not lost."""
        return tuple(node for node in self.names if node not in self._lost)

    @property
    def lost_nodes(self) -> Mapping[str, str]:
        """Why nodes are lost."""
        return dict(self._lost)

    def facts(self, node: str) -> NodeFacts:
        return self._facts[node]

    def listen(self, listener: NodeListener | None) -> None:
        """Send what agents say to a listener: that of the current attempt."""
        with self._changed:
            self._listener = listener

    def send(self, node: str, kind: str, **fields: Any) -> None:
        self._links.send(node, kind, **fields)

    def close(self) -> None:
        self._links.close()
        self._starter.close()

    # ---- called by the link's thread ----

    def heard(self, node: str, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "hello":
            facts = NodeFacts.from_fields(fields["facts"])
            self._note(node, self._difference(facts), facts)
        elif kind == "refused":
            self._note(node, fields["text"], None)
        elif kind == "note":
            self._say(f"node {node}: {fields['text']}")
        elif self._listener is not None:
            self._listener.heard(node, kind, fields)

    def lost(self, node: str, reason: str) -> None:
        self._lost[node] = reason
        self._note(node, f"the node is lost: {reason}", None)
        if self._listener is not None:
            self._listener.lost(node, reason)

    def turn(self) -> None:
        if self._listener is not None:
            self._listener.turn()

    def _note(self, node: str, problem: str | None, facts: NodeFacts | None) -> None:
        with self._changed:
            if problem is not None:
                self._problems[node] = problem
            if facts is not None:
                self._facts[node] = facts
            self._changed.notify_all()

    def _difference(self, facts: NodeFacts) -> str | None:
        """Why the software of a node does not fit that of the launcher."""
        for what, there, here in (
            ("Maya", facts.maya_version, __version__),
            ("torch", facts.torch_version, self._torch_version),
            ("Python", facts.python_version, platform.python_version()),
        ):
            if there != here:
                return f"it has {what} {there}, the launcher has {here}: install the same version on all nodes"
        return None


def _silence_seconds(environment: Mapping[str, str]) -> float:
    text = environment.get(SILENCE_VARIABLE) or str(SILENCE_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 5 <= seconds <= 86400:
        raise NodesError(f"{SILENCE_VARIABLE}={text}: expected 5 to 86400 seconds")
    return seconds
