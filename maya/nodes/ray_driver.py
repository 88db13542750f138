"""`python -m maya.nodes.ray_driver`: the process that speaks with Ray for a launcher.

Ray's library ends its process when it loses the head of the cluster, prints lines of its own and takes over signals: a
launcher has to survive, so its driver is a process of its own. In: lines of JSON on standard input:

    {"address": ..., "folder": ...}                                  first
    {"start": {name: settings}, "resources": ..., "words": ...}      start agents on these nodes

Out: lines of JSON on standard output:

    {"machines": [...], "address": ...}    connected; the address of this machine in the cluster
    {"started": true}
    {"ended": {name: reason}}              an agent has ended, or its node is lost
    {"failed": "..."}                      instead of an answer

It ends all agents at the end of its standard input, and then ends itself. Ray ends the agents' actors if it is killed.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil
import ray
import ray.cloudpickle
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from maya.nodes import machine as machine_module
from maya.nodes.job_folder import JobFolder
from maya.nodes.machine import Machine, find_facts
from maya.nodes.ray_agent import AgentActor
from maya.version import __version__
from rank_runtime.zygote.protocol import Lines, write_line

_REACH_SECONDS = 5.0
_TASK_SECONDS = 60.0  # a node starts a Python process for the first task
_PLACE_SECONDS = 120.0  # Ray copies and unpacks the job's folder
_STOP_SECONDS = 20.0  # for agents, which have little left to do at the end of a job
_DISCONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.2
_LONGEST = 600  # characters of an error of Ray's
_HEAD_SECONDS = 5.0  # between two questions to the head
_HEAD_PATIENCE = 60.0  # as Ray's own: its nodes end without their head
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}  # other resources go by their name


class _Refusal(Exception):
    """What was asked for cannot be done; the text is for the user."""


class RayDriver:
    """A connection to a Ray cluster, and the agents that were started there."""

    def __init__(self, address: str, folder: JobFolder | None) -> None:
        self._address = address
        self._folder = folder
        self._nodes: dict[str, dict[str, Any]] = {}  # Ray's own facts, by name
        self._machines: dict[str, Machine] = {}
        self._actors: dict[str, Any] = {}
        self._running: dict[Any, str] = {}  # reference to the end of an agent -> name of the node
        self._head_answered = time.monotonic()
        _check_address(address)
        self._connect({})

    def _connect(self, runtime_environment: Mapping[str, Any]) -> None:
        try:
            ray.init(
                address=self._address,
                runtime_env=dict(runtime_environment),
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray has no common class
            what = f"{self._folder.path}: " if self._folder is not None and runtime_environment else ""
            raise _Refusal(what + _problem_of_connection(error)) from error

    def machines(self) -> dict[str, Any]:
        """All nodes that are alive, and the address of this one."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        if not alive:
            raise _Refusal("no node of the cluster is alive")
        own = ray.get_runtime_context().get_node_id()
        alive.sort(key=lambda node: (node["NodeID"] != own, _natural(node["NodeName"]), node["NodeID"]))
        self._nodes = dict(zip(_names(alive), alive, strict=True))
        # By its source: the node may not have Maya.
        ray.cloudpickle.register_pickle_by_value(machine_module)
        task = ray.remote(num_cpus=0, max_retries=1)(find_facts)
        folder = str(self._folder.path) if self._folder is not None else ""
        tasks = {
            task.options(scheduling_strategy=_on(node)).remote(__version__, node["NodeManagerAddress"], folder): name
            for name, node in self._nodes.items()
        }
        ready, late = ray.wait(list(tasks), num_returns=len(tasks), timeout=_TASK_SECONDS)
        if late:
            names = ", ".join(tasks[each] for each in late)
            raise _Refusal(f"no answer from {names} within {_TASK_SECONDS:.0f} s")
        found = {tasks[each]: self._facts(tasks[each], each) for each in ready}
        self._machines = {
            name: Machine(
                name=name,
                address=node["NodeManagerAddress"],
                processors=int(node["Resources"].get("CPU", 0)),
                resources={key: value for key, value in node["Resources"].items() if not key.startswith("node:")},
                is_here=node["NodeID"] == own,
                **found[name],
            )
            for name, node in self._nodes.items()
        }
        here = self._nodes[next(iter(self._nodes))]["NodeManagerAddress"]
        return {"machines": [each.as_fields() for each in self._machines.values()], "address": here}

    def _facts(self, name: str, task: Any) -> dict[str, Any]:
        try:
            facts: dict[str, Any] = ray.get(task)
        except ray.exceptions.RayError as error:
            raise _Refusal(f"node {name}: {_first_line(error)}") from error
        return facts

    def start(
        self, settings: Mapping[str, Mapping[str, Any]], resources: Mapping[str, float], words: Sequence[str]
    ) -> None:
        folder = self._folder
        assert folder is not None
        own = next((each.folder for each in self._machines.values() if each.is_here), "")
        sharing = {name: bool(own) and self._machines[name].folder == own for name in settings}
        if not all(sharing.values()):
            ray.shutdown()  # a folder travels with a connection
            self._connect({"working_dir": str(folder.path), "excludes": list(folder.excluded)})
        wanted: dict[str, Any] = {"num_cpus": 0, "resources": {}}
        for resource, amount in resources.items():
            if resource in _OPTIONS:
                wanted[_OPTIONS[resource]] = amount
            else:
                wanted["resources"][resource] = amount
        actor = ray.remote(max_restarts=0, max_concurrency=4, **wanted)(AgentActor)
        for name in settings:
            self._actors[name] = actor.options(scheduling_strategy=_on(self._nodes[name])).remote()
        self._wait_for_places(resources)
        copy = f"maya-folder-{secrets.token_hex(4)}/{folder.path.name or 'job'}"
        for name, values in settings.items():
            own_copy = "" if sharing[name] else copy
            end = self._actors[name].run.remote(dict(values), list(words), folder.as_fields(), own_copy)
            self._running[end] = name
        self._head_answered = time.monotonic()
        threading.Thread(target=self._ask_head, name="ask head", daemon=True).start()

    def _ask_head(self) -> None:
        """Ray may end this process when the head does not answer; RayNodes says so then."""
        while True:
            with suppress(Exception):  # Ray has no common class
                ray.nodes()
                self._head_answered = time.monotonic()
            time.sleep(_HEAD_SECONDS)

    def _wait_for_places(self, resources: Mapping[str, float]) -> None:
        ready = {actor.ready.remote(): name for name, actor in self._actors.items()}
        found, late = ray.wait(list(ready), num_returns=len(ready), timeout=_PLACE_SECONDS)
        if late:
            names = ", ".join(sorted(ready[each] for each in late))
            reserved = ", ".join(f"{name}={amount:g}" for name, amount in resources.items())
            reason = f"; other work may have its {reserved}" if reserved else ""
            raise _Refusal(f"Ray starts nothing on {names} within {_PLACE_SECONDS:.0f} s{reason}")
        for each in found:
            try:
                ray.get(each)
            except ray.exceptions.RayError as error:
                raise _Refusal(f"node {ready[each]}: {_cause(error)}") from error

    def ended(self) -> dict[str, str]:
        """Agents that have ended since the last call, with the reason."""
        if not self._running:
            return {}
        silent = time.monotonic() - self._head_answered
        if silent > _HEAD_PATIENCE:
            reason = f"the head of the Ray cluster has not answered for {silent:.0f} s"
            return {self._running.pop(each): reason for each in list(self._running)}
        ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        return {name: self._reason(name, each) for each in ready for name in [self._running.pop(each)]}

    def _reason(self, name: str, end: Any) -> str:
        try:
            status, output = ray.get(end)
        except ray.exceptions.RayError as error:
            return self._reason_of_loss(name, error)
        said = f": {output}" if output else ""
        return f"its agent ended with exit code {status}{said}"

    def _reason_of_loss(self, name: str, error: BaseException) -> str:
        identity = self._nodes[name]["NodeID"]
        node = next((each for each in ray.nodes() if each["NodeID"] == identity), None)
        if node is not None and node["Alive"]:
            return f"Ray's actor there ended: {_cause(error)}"
        return f"Ray has lost this machine: {(node or {}).get('DeathReasonMessage') or _cause(error)}"

    def close(self) -> None:
        """End all agents."""
        stopping = [actor.stop.remote() for actor in self._actors.values()]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_SECONDS)
        # Without the head, Ray waits for it. It ends the actors of a driver that is gone as well.
        ending = threading.Thread(target=self._disconnect, daemon=True)
        ending.start()
        ending.join(_DISCONNECT_SECONDS)

    def _disconnect(self) -> None:
        for actor in self._actors.values():
            ray.kill(actor)
        ray.shutdown()


def _check_address(address: str) -> None:
    """Ray itself tries for a minute or more before it says these things."""
    if "://" in address:
        raise _Refusal("Ray's client is not supported: run maya-torchrun on a node of the cluster, with its address")
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise _Refusal("expected <host>:<port> of the cluster's head, or auto")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
        except OSError as error:
            raise _Refusal(f"no Ray cluster answers there ({error.strerror or error})") from error
    if not any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        raise _Refusal(
            "this machine is not a node of a Ray cluster; join it (ray start --address=<head>:6379 --num-cpus=0, if no "
            "ranks are to run here), or run maya-torchrun on a node"
        )


def _names(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name that the user gave a node, or else its host's; with the address, if several have the same."""
    chosen = [
        node["NodeName"] if node["NodeName"] not in ("", node["NodeManagerAddress"]) else node["NodeManagerHostname"]
        for node in nodes
    ]
    chosen = [re.sub(r"[^\w.-]", "_", name) for name in chosen]
    count = Counter(chosen)
    full = [
        name if count[name] == 1 else f"{name}-{node['NodeManagerAddress']}"
        for name, node in zip(chosen, nodes, strict=True)
    ]
    count = Counter(full)
    return [
        name if count[name] == 1 else f"{name}-{node['NodeID'][:8]}" for name, node in zip(full, nodes, strict=True)
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts node9 before node10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _on(node: Mapping[str, Any]) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)


def _problem_of_connection(error: BaseException) -> str:
    """Ray's sentence, and what an exception behind it says of tokens: Ray's sentence leaves that out."""
    behind: BaseException | None = error
    while behind is not None:
        if "InvalidAuthToken" in str(behind):
            return (
                "the cluster asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, "
                "as on its nodes"
            )
        behind = behind.__cause__ or behind.__context__
    return " ".join(str(error).split())[:_LONGEST] or type(error).__name__


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _cause(error: BaseException) -> str:
    """The line of Ray's text that says why; the first ones name the actor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "because" in line or "cause" in line.lower()]
    return (telling or lines or [type(error).__name__])[-1]


def _serve(driver: RayDriver, commands: Lines, reports: int) -> None:
    """Obey until the end of standard input."""
    while True:
        if select.select([commands.descriptor], [], [], _POLL_SECONDS)[0]:
            for command in commands.read():
                driver.start(command["start"], command["resources"], command["words"])
                write_line(reports, {"started": True})
            if commands.ended:
                return
        ended = driver.ended()
        if ended:
            write_line(reports, {"ended": ended})


def main() -> int:
    reports = os.dup(1)
    os.dup2(2, 1)  # Ray prints there
    commands = Lines(0)
    first: dict[str, Any] = {}
    while not first:
        first = next(iter(commands.read()), {})
        if commands.ended:
            return 0
    driver: RayDriver | None = None
    try:
        driver = RayDriver(
            first["address"], None if first["folder"] is None else JobFolder.from_fields(first["folder"])
        )
        write_line(reports, driver.machines())
        _serve(driver, commands, reports)
    except _Refusal as refusal:
        write_line(reports, {"failed": str(refusal)})
        return 1
    finally:
        if driver is not None:
            driver.close()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # what is left of Ray waits for a head that is lost
