"""The machines of a job on several: where its ranks run, and how they reach the launcher's machine.

In: agents that are ready (maya/nodes), and what a rank needs. Out: the zygotes of an attempt, and the settings of
ranks and of the coordinator that differ from those of a job on one machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from maya.launcher.arguments import UsageError
from maya.launcher.worker_environment import RendezvousAddress
from maya.nodes.job_nodes import JobNodes, NodesError, Say
from maya.nodes.node_facts import NodeFacts, environment_on
from maya.nodes.node_zygotes import NodeZygotes
from rank_runtime.build import Build
from rank_runtime.zygote.protocol import Preparation

CommonEnvironment = Callable[[Build, Mapping[str, str]], dict[str, str]]


class Placement(Protocol):
    """Decides which ranks run on which node."""

    def __call__(self, ranks: Sequence[int], nodes: Sequence[str]) -> dict[str, list[int]]: ...


class JobMachines:
    """The machines of a job."""

    def __init__(self, nodes: JobNodes, placement: Placement, say: Say) -> None:
        self._nodes = nodes
        self._placement = placement
        self._say = say
        self._shares: dict[str, list[int]] = {}  # the ranks of each machine in the next attempt

    def check(self, ranks: Sequence[int]) -> None:
        """Wait for all machines, and place the ranks. Raises UsageError."""
        try:
            self._nodes.wait_until_ready()
            self._place(ranks)
        except NodesError as error:
            raise UsageError(str(error)) from error

    def place_again(self, ranks: Sequence[int]) -> str | None:
        """Place the ranks on the machines that are left; why that is impossible, or None."""
        try:
            self._place(ranks)
        except NodesError as error:
            return str(error)
        return None

    def _place(self, ranks: Sequence[int]) -> None:
        if not self._nodes.alive:
            raise NodesError("no node is left")
        self._shares = {node: share for node, share in self._placement(ranks, self._nodes.alive).items() if share}

    def rendezvous(self, known: RendezvousAddress) -> RendezvousAddress:
        return replace(known, store_address=self._nodes.address, keys=self._nodes.keys.variable())

    def coordinator_settings(self) -> dict[str, str]:
        """The settings of a coordinator that ranks on other machines reach."""
        address = self._nodes.address
        host = f"[{address}]" if ":" in address else address
        return {
            "endpoint": f"tcp://{host}:*",
            "store_address": address,
            "keys": json.dumps(self._nodes.keys.as_json()),
        }

    def environment(self, inherited: Mapping[str, str], common: CommonEnvironment, facts: NodeFacts) -> dict[str, str]:
        """The environment that all ranks of a node share. `inherited`: the launcher's."""
        return common(facts.build, environment_on(facts, inherited))

    def zygotes(
        self,
        command: Sequence[str],
        environment_of: Callable[[NodeFacts], Mapping[str, str]],
        own_environment: Mapping[str, str],
        preparation: Preparation,
        roots: Sequence[Path],
    ) -> NodeZygotes:
        """The zygotes of one attempt. `own_environment`: that of a rank on this machine, for the coordinator."""
        return NodeZygotes(
            self._nodes,
            self._shares,
            command,
            environment_of,
            own_environment,
            preparation,
            tuple(RendezvousAddress(0).variables()),
            roots,
            self._say,
        )
