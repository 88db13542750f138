"""Where the launcher's paths lie on a node.

In: the facts of a node, the job's folder, and the folders of the launcher that ranks write to (roots). Out: the command
and the start of a rank with the node's paths.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from maya.nodes.node_facts import NodeFacts
from rank_runtime.zygote.protocol import RankStart

_VARIABLES = ("MAYA_TRACE", "TORCHELASTIC_ERROR_FILE", "MAYA_TRACEBACKS")


@dataclass(frozen=True)
class NodePaths:
    """The paths of one node."""

    facts: NodeFacts
    folder: Path  # the job's, at the launcher
    roots: Sequence[Path]

    def rank(self, start: RankStart) -> RankStart:
        environment = dict(start.environment)
        for variable in _VARIABLES:
            if environment.get(variable):
                environment[variable] = self._written(environment[variable])
        if environment.get("MAYA_TRACEBACKS"):
            environment["MAYA_TRACEBACKS"] += f"-{self.facts.name}"  # one file a node: no two nodes write one file
        return RankStart(
            start.rank,
            self.command(start.command),
            environment,
            None if start.stdout is None else self._written(start.stdout),
            None if start.stderr is None else self._written(start.stderr),
        )

    def command(self, words: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.facts.python if word == sys.executable else self.read(word) for word in words)

    def read(self, word: str) -> str:
        """A path below the job's folder. Other relative paths are the same on all nodes."""
        if not Path(word).is_absolute() and not word.startswith(".."):
            return word
        path = Path(os.path.normpath(Path.cwd() / word))
        if not path.is_relative_to(self.folder):
            return word
        return str(Path(self.facts.working_folder) / path.relative_to(self.folder))

    def _written(self, path: str) -> str:
        """A file below one of the roots: it is written to the node's folder, and travels from there."""
        for number, root in enumerate(self.roots):
            if Path(path).is_relative_to(root):
                return str(Path(self.facts.folder) / str(number) / Path(path).relative_to(root))
        return path
