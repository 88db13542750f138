"""The zygotes of all nodes, seen from the launcher: behaves as the one zygote of a job on this machine does.

In: the job's nodes, which ranks run on which node, a `Preparation` and a `Start`. Out: the same reports as those of a
`ZygoteProcess`, on a pipe: the link's thread writes those of the nodes, and the coordinator, a child of the launcher,
its own. A rank of a lost node is reported as killed.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from maya.nodes.console_output import Console, ConsoleOutput
from maya.nodes.coordinator_child import CoordinatorChild
from maya.nodes.debugger_link import DebuggerLink
from maya.nodes.file_parts import FilePart, TransferError
from maya.nodes.file_receiver import FileReceiver
from maya.nodes.job_nodes import JobNodes, Say
from maya.nodes.node_facts import NodeFacts
from maya.nodes.node_paths import NodePaths
from maya.nodes.zygotes import Zygotes
from maya.util.ranks import ranks_text
from rank_runtime.zygote.protocol import Preparation, Start, write_line

_OF_COORDINATOR = ("coordinator", "coordinator_done", "coordinator_failed", "coordinator_exited")


@dataclass
class _Node:
    """What is known of one node's zygote."""

    facts: NodeFacts
    ranks: tuple[int, ...]
    running: dict[int, int] = field(default_factory=dict)  # rank -> process id on the node
    ready: bool = False
    forked: bool = False
    ended: bool = False


class NodeZygotes(Zygotes):
    """The zygotes of an attempt on all nodes."""

    def __init__(
        self,
        nodes: JobNodes,
        shares: Mapping[str, Sequence[int]],
        command: Sequence[str],
        environment_of: Callable[[NodeFacts], Mapping[str, str]],
        coordinator_environment: Mapping[str, str],
        preparation: Preparation,
        rendezvous_variables: Sequence[str],
        roots: Sequence[Path],
        say: Say,
    ) -> None:
        """`environment_of`: the environment that all ranks of a node share. `rendezvous_variables`: what else they get
        with the `Start`. `roots`: the folders of the launcher that ranks write to."""
        reports, self._write = os.pipe2(os.O_CLOEXEC)
        super().__init__(reports)
        self._links = nodes
        self._say = say
        self._rendezvous_variables = tuple(rendezvous_variables)
        self._reported: set[str] = set()  # reports about all nodes
        self._nodes = {name: _Node(nodes.facts(name), tuple(ranks)) for name, ranks in shares.items()}
        self._environments = {name: dict(environment_of(node.facts)) for name, node in self._nodes.items()}
        self._paths = {name: NodePaths(node.facts, nodes.folder, roots) for name, node in self._nodes.items()}
        self._receivers = {name: FileReceiver(roots, partial(self._say_of, name)) for name in self._nodes}
        self._refused: set[str] = set()  # nodes whose files were refused
        self._console = ConsoleOutput(
            written=lambda node, size: nodes.send(node, "received", size=size),
            closed=lambda stream: self._send_all("close_stream", stream=stream),
        )
        self._lock = threading.RLock()  # for all that both threads use
        self._finishing = False
        self._coordinator_ended = False
        self._questions = ""
        self._debugger: DebuggerLink | None = None
        self._debugged = -1  # rank
        settings = dict(preparation.coordinator_settings)
        self._coordinator = CoordinatorChild(settings, coordinator_environment, self._write)
        nodes.listen(self)
        share = replace(preparation, coordinator="", coordinator_settings={})
        for name, node in self._nodes.items():
            paths = self._paths[name]
            script = None if share.script is None else paths.read(share.script)
            nodes.send(
                name,
                "prepare",
                command=list(paths.command(command)),
                environment=self._environments[name],
                preparation=asdict(replace(share, processes=len(node.ranks), script=script)),
                console=Console.of_this_process().as_fields(),
            )
        for name, reason in nodes.lost_nodes.items():  # since the ranks were placed
            self.lost(name, reason)

    # ---- as all zygotes ----

    def reports(self) -> list[dict[str, Any]]:
        found = super().reports()
        for report in found:
            if "coordinator" in report:
                self._questions = report["coordinator"].get("questions") or ""
        return found

    def start(self, start: Start) -> None:
        ranks = {rank.rank: rank for rank in start.ranks}
        self._has_ranks = True
        for name, node in self._nodes.items():
            found = {key: start.environment[key] for key in self._rendezvous_variables}
            own = {**self._environments[name], **found, "MAYA_ZMQ": node.facts.zmq_library}
            self._links.send(
                name,
                "start",
                environment=own,
                ranks=[asdict(self._paths[name].rank(ranks[rank])) for rank in node.ranks],
                endpoint=found["MAYA_COORDINATOR"],
                questions=self._questions,
            )

    def signal(self, number: signal.Signals) -> None:
        self._send_all("signal", number=int(number))
        self._coordinator.tell({"stopping": {}})

    def go_on(self) -> None:
        self._send_all("go_on")
        self._coordinator.tell({"continued": {}})

    def attach(self, rank: int, process: int, endpoint: str) -> socket.socket | None:
        """The debugger runs on the rank's node; its socket here is the end of a link to it."""
        name = next((name for name, node in self._nodes.items() if rank in node.ranks), None)
        if name is None or self._nodes[name].ended:
            return None
        self._end_debugger()
        self._debugged = rank
        self._debugger = DebuggerLink(
            lambda content: self._links.send(name, "input", content=content),
            lambda size: self._links.send(name, "received", size=size),
        )
        self._links.send(name, "attach", rank=rank)
        return self._debugger.socket

    def detach(self, rank: int, process: int) -> None:
        for name, node in self._nodes.items():
            if rank in node.ranks:
                self._links.send(name, "detach", rank=rank)
        self._end_debugger()

    def _end_debugger(self) -> None:
        debugger, self._debugger, self._debugged = self._debugger, None, -1
        if debugger is not None:
            debugger.close()

    def kill(self) -> None:
        self._send_all("kill")
        self.finish()

    def finish(self) -> None:
        with self._lock:
            if self._finishing:
                return
            self._finishing = True
        self._send_all("finish")
        self._end_if_over()

    def close(self) -> None:
        self.finish()
        self._links.listen(None)
        self._end_debugger()
        self._coordinator.close()
        self._console.close()
        with self._lock:
            if self._write >= 0:
                os.close(self._write)
                self._write = -1
        os.close(self._reports.descriptor)
        self.exit_code = 0

    def kill_groups(self, running: Collection[int]) -> None:
        """Nothing: the agents have done so."""

    def _send_all(self, kind: str, **fields: Any) -> None:
        for name, node in self._nodes.items():
            if not node.ended:
                self._links.send(name, kind, **fields)

    # ---- called by the link's thread ----

    def heard(self, name: str, kind: str, fields: Mapping[str, Any]) -> None:
        node = self._nodes.get(name)
        if node is None or node.ended:
            return
        if kind == "report":
            self._on_report(name, node, fields["line"])
        elif kind == "console":
            self._console.write(name, fields["stream"], fields["content"])
        elif kind == "file":
            self._on_file(name, fields["part"])
            self._links.send(name, "received", size=fields["size"])
        elif kind == "debugger":
            debugger = self._debugger
            if debugger is not None and fields["rank"] == self._debugged:
                debugger.write(fields["content"])
            else:
                self._links.send(name, "received", size=len(fields["content"]))
        elif kind == "ended":
            self._on_end(name, node, fields["exit_code"])

    def lost(self, name: str, reason: str) -> None:
        node = self._nodes.get(name)
        with self._lock:
            if node is None or node.ended:
                return
            node.ended = True
        debugger = self._debugger
        if debugger is not None and self._debugged in node.ranks:
            debugger.write(b"")
        running = sorted(node.running)
        if running:
            self._say(f"node {name} is lost, and with it {ranks_text(running)}: {reason}")
        elif not self._finishing:
            self._report({"zygote_failed": f"node {name} is lost: {reason}"})
        for rank in running:
            self._on_exit(node, {"rank": rank, "status": -signal.SIGKILL, "private_bytes": 0}, lost=True)
        self._aggregate()
        self._end_if_over()

    def turn(self) -> None:
        status = self._coordinator.poll()
        with self._lock:
            if status is None or self._coordinator_ended:
                return
            self._coordinator_ended = True
        self._report({"coordinator_exited": {"pid": self._coordinator.pid, "status": status}})

    def _on_report(self, name: str, node: _Node, line: Mapping[str, Any]) -> None:
        for kind, content in line.items():
            if kind == "ready":
                node.ready = True
                self._aggregate()
            elif kind == "forked":
                node.forked = True
                self._aggregate()
            elif kind == "started":
                node.running[content["rank"]] = content["pid"]
                report = {"started": {**content, "node": name}}
                self._report(report)
                self._coordinator.tell(report)
            elif kind == "exited":
                self._on_exit(node, content)
            elif kind == "zygote_failed":
                self._report({kind: f"node {name}: {content}"})
            elif kind not in _OF_COORDINATOR and kind != "importing":
                self._report({kind: content})

    def _on_exit(self, node: _Node, content: Mapping[str, Any], *, lost: bool = False) -> None:
        node.running.pop(content["rank"], None)
        ended = {"rank": content["rank"], "status": content["status"]}
        self._coordinator.tell({"lost" if lost else "exited": ended})
        self._report({"exited": {**content, "host": node.facts.host}})

    def _on_file(self, name: str, part: Sequence[Any]) -> None:
        if name in self._refused:
            return
        try:
            self._receivers[name].write(FilePart.from_fields(part))
        except TransferError as error:
            self._refused.add(name)
            self._report({"zygote_failed": f"files of node {name} are refused: {error}"})

    def _on_end(self, name: str, node: _Node, exit_code: int) -> None:
        for rank in list(node.running):
            self._on_exit(node, {"rank": rank, "status": -signal.SIGKILL, "private_bytes": 0})
        node.ended = True
        for text in self._receivers[name].missing():
            self._say_of(name, text)
        if not self._finishing:
            status = f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
            self._report({"zygote_failed": f"node {name}: the zygote (the process that forks the ranks) {status}"})
        self._aggregate()
        self._end_if_over()

    def _say_of(self, name: str, text: str) -> None:
        self._say(f"node {name}: {text}")

    def _aggregate(self) -> None:
        """Report what holds for all nodes, once."""
        for kind, holds in (
            ("ready", all(node.ready and not node.ended for node in self._nodes.values())),
            ("forked", all(node.forked or node.ended for node in self._nodes.values())),
        ):
            if holds and kind not in self._reported:
                self._reported.add(kind)
                self._report({kind: True})

    def _end_if_over(self) -> None:
        """End the coordinator when the zygotes have ended; the reports end with it."""
        with self._lock:
            if not self._finishing or not all(node.ended for node in self._nodes.values()) or self._write < 0:
                return
            self._coordinator_ended = True  # its end is no news
            self._coordinator.finish()
            os.close(self._write)
            self._write = -1

    def _report(self, line: Mapping[str, Any]) -> None:
        with self._lock:
            if self._write >= 0:
                write_line(self._write, line)
