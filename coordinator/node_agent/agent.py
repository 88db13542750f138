"""The agent's loop: commands of the launcher go to the zygote; reports, files and console output go to the launcher.

In: messages of the launcher (maya/nodes/node_messages.py). Out: the same, and a zygote with the node's share of ranks.
The agent ends, and ends its ranks first, when the launcher says so or has been silent too long, or when its standard
input is closed because whoever started it has ended. The node's folder is removed.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from coordinator.node_agent.console import ConsoleStreams
from coordinator.node_agent.debugged_rank import DebuggedRank
from coordinator.node_agent.node_description import describe_node
from coordinator.node_agent.node_folder import NodeFolder
from coordinator.node_agent.rank_questions import RankQuestions
from maya.launcher.memory_kills import MemoryKills
from maya.launcher.zygote_process import ZygoteProcess
from maya.nodes.console_output import Console
from maya.nodes.curve_sockets import connect_with_keys
from maya.nodes.file_sender import FileSender
from maya.nodes.node_links import BEAT_SECONDS
from maya.nodes.node_messages import NodeMessageError, pack_message, unpack_message
from maya.nodes.run_keys import RunKeys
from rank_runtime.build import BuildError
from rank_runtime.zygote.protocol import Preparation, RankStart, Start

SUCCESS, FAILED = 0, 1
_STDIN = 0
_WINDOW = 8 << 20  # bytes of files and console output that the launcher has not written yet
_TURN_SECONDS = 0.2
_LAST_SECONDS = 0.5
_END_SECONDS = 5.0  # for the last messages


@dataclass(frozen=True)
class AgentSettings:
    """What an agent is told when it is started."""

    name: str
    launcher: str  # the endpoint of its link
    keys: RunKeys
    silence_seconds: float


class NodeAgent:
    """The agent of this machine, for one job."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._node_folder = NodeFolder()
        self._folder = self._node_folder.path
        self._files = FileSender(self._folder)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.IDENTITY, settings.name.encode()),
            (zmq.LINGER, round(1000 * _END_SECONDS)),
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, 0),
            (zmq.IPV6, int("[" in settings.launcher)),
            # The first packets may be lost, or the launcher may be busy: not an error before the silence is too long.
            (zmq.HANDSHAKE_IVL, 0),
        ):
            self._socket.set(option, value)
        connect_with_keys(self._socket, settings.keys)
        self._disconnects = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(settings.launcher)
        self._heard = time.monotonic()
        self._unwritten = 0  # bytes that the launcher has not said it has written
        self._described: list[tuple[str, dict[str, Any]]] = []  # what the describing thread has found
        self._memory_kills = MemoryKills()
        self._zygote: ZygoteProcess | None = None
        self._console: ConsoleStreams | None = None
        self._questions: RankQuestions | None = None
        self._coordinator = ""  # its endpoint, as the ranks know it
        self._debugged: DebuggedRank | None = None  # while the user has a debugger in it
        self._debugged_rank = -1
        self._running: dict[int, int] = {}  # rank -> process id
        self._exit_code: int | None = None  # of a zygote whose last output is still to be sent
        self._is_over = False
        self._beat_due = 0.0

    def run(self) -> int:
        """Until the job is over; returns an exit code."""
        describing = threading.Thread(target=self._describe, name="describe node", daemon=True)
        describing.start()
        try:
            while not self._is_over:
                self._turn()
            return SUCCESS
        except _LauncherGone as gone:
            print(f"node agent: {gone}", flush=True)
            return FAILED
        finally:
            self._end_ranks()
            self._end_questions()
            self._end_debugger()
            self._socket.disable_monitor()
            self._disconnects.close()
            self._socket.close()
            self._context.term()
            self._node_folder.remove()

    def _describe(self) -> None:
        """In a thread of its own, because a build takes a minute."""
        name, launcher = self._settings.name, self._settings.launcher
        try:
            facts = describe_node(name, launcher, self._folder, lambda text: self._described.append(_note(text)))
            self._described.append(("hello", {"facts": facts.as_fields()}))
        except (BuildError, OSError) as error:
            self._described.append(("refused", {"text": str(error)}))

    def _turn(self) -> None:
        """Wait for something to do, and do it."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._disconnects, zmq.POLLIN)
        poller.register(_STDIN, zmq.POLLIN)
        if self._zygote is not None and self._exit_code is None:
            poller.register(self._zygote.descriptor, zmq.POLLIN)
        if self._console is not None and self._room > 0:
            for descriptor in self._console.descriptors:
                poller.register(descriptor, zmq.POLLIN)
        if self._debugged is not None and self._debugged.descriptor is not None and self._room > 0:
            poller.register(self._debugged.descriptor, zmq.POLLIN)
        seconds = min(_TURN_SECONDS, self._files.seconds_until_due()) if self._room > 0 else _TURN_SECONDS
        ready = dict(poller.poll(math.ceil(1000 * seconds)))
        self._receive()
        if _STDIN in ready and not os.read(_STDIN, 4096):
            self._receive_last()
            if not self._is_over:
                raise _LauncherGone("the process that started it has ended")
        if self._disconnects in ready and not self._is_over:
            # ZeroMQ would connect again, but messages may be lost by then.
            raise _LauncherGone("the connection to the launcher is lost")
        while self._described:
            kind, fields = self._described.pop(0)
            self._send(kind, **fields)
        if self._zygote is not None and self._exit_code is None and self._zygote.descriptor in ready:
            self._relay_reports(self._zygote)
        if self._debugged is not None and self._debugged.descriptor in ready:
            self._send_debugger_output()
        self._send_output()
        now = time.monotonic()
        if now >= self._beat_due:
            self._beat_due = now + BEAT_SECONDS
            self._send("beat")
        if now - self._heard > self._settings.silence_seconds:
            raise _LauncherGone(f"the launcher has been silent for {now - self._heard:.0f} s")

    @property
    def _room(self) -> int:
        return max(0, _WINDOW - self._unwritten)

    def _send(self, kind: str, **fields: Any) -> None:
        self._socket.send(pack_message(kind, **fields))

    # ---- commands ----

    def _receive(self) -> None:
        while True:
            try:
                content = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard = time.monotonic()
            try:
                kind, fields = unpack_message(content)
            except NodeMessageError as error:
                raise _LauncherGone(f"a message of the launcher is wrong: {error}") from None
            self._obey(kind, fields)

    def _receive_last(self) -> None:
        """The launcher's last command may still be on its way."""
        until = time.monotonic() + _LAST_SECONDS
        while not self._is_over and self._socket.poll(max(0, round(1000 * (until - time.monotonic())))):
            self._receive()

    def _obey(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "prepare":
            self._prepare(fields["command"], fields["environment"], fields["preparation"], fields["console"])
        elif kind == "received":
            self._unwritten -= fields["size"]
        elif kind == "close_stream":
            if self._console is not None:
                self._console.close_stream(fields["stream"])
        elif kind == "end":
            self._is_over = True
        elif self._zygote is not None and self._exit_code is None:
            if kind == "start":
                self._coordinator = fields["endpoint"]
                self._answer_questions(fields["questions"], fields["endpoint"])
                self._start(fields["environment"], fields["ranks"])
            elif kind == "signal":
                self._zygote.signal(signal.Signals(fields["number"]))
            elif kind == "go_on":
                self._zygote.go_on()
            elif kind in ("attach", "input", "detach"):
                self._debug(kind, fields)
            elif kind == "kill":
                self._zygote.kill()
            elif kind == "finish":
                self._zygote.finish()

    def _prepare(
        self, command: list[str], environment: dict[str, str], preparation: dict[str, Any], console: dict[str, Any]
    ) -> None:
        lists = {name: tuple(preparation[name]) for name in ("modules", "rank_variables")}
        self._node_folder.clear()  # the launcher has the files of the attempt before
        self._files = FileSender(self._folder)
        self._console = ConsoleStreams(Console.from_fields(console))
        self._running.clear()
        self._zygote = ZygoteProcess(
            command,
            environment,
            Preparation(**{**preparation, **lists}),
            (self._console.stdout, self._console.stderr),
        )
        self._console.close_writers()

    def _start(self, environment: dict[str, str], ranks: list[dict[str, Any]]) -> None:
        assert self._zygote is not None
        starts = [RankStart(**{**rank, "command": tuple(rank["command"])}) for rank in ranks]
        for start in starts:
            for path in (start.stdout, start.stderr, *map(start.environment.get, ("MAYA_TRACE", "MAYA_TRACEBACKS"))):
                if path and Path(path).is_relative_to(self._folder):
                    Path(path).parent.mkdir(parents=True, exist_ok=True)
            error_file = start.environment.get("TORCHELASTIC_ERROR_FILE")
            if error_file:
                Path(error_file).parent.mkdir(parents=True, exist_ok=True)
        self._zygote.start(Start(environment, starts))

    def _answer_questions(self, questions: str, coordinator: str) -> None:
        """Let the coordinator ask about the ranks. It asks nowhere if it does not watch for hangs."""
        self._end_questions()
        if questions:
            self._questions = RankQuestions(questions, self._settings.keys, self._settings.name, coordinator)
            self._questions.start()

    def _end_questions(self) -> None:
        if self._questions is not None:
            self._questions.close()
            self._questions = None

    # ---- a debugger ----

    def _debug(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "input":
            if self._debugged is not None:
                self._debugged.write(fields["content"])
            return
        rank = fields["rank"]
        self._end_debugger()
        if kind == "attach" and rank in self._running:
            self._debugged, self._debugged_rank = DebuggedRank(self._running[rank], self._coordinator), rank
        if kind == "attach" and (self._debugged is None or self._debugged.descriptor is None):
            self._send("debugger", rank=rank, content=b"")

    def _send_debugger_output(self) -> None:
        if self._debugged is not None and self._debugged.descriptor is not None:
            content = self._debugged.read()
            self._unwritten += len(content)
            self._send("debugger", rank=self._debugged_rank, content=content)

    def _end_debugger(self) -> None:
        if self._debugged is not None:
            self._debugged.close()
            self._debugged = None

    # ---- reports ----

    def _relay_reports(self, zygote: ZygoteProcess) -> None:
        for line in zygote.reports():
            self._note_ranks(line)
            self._send("report", line=line)
        if zygote.ended:
            zygote.close()
            zygote.kill_groups(self._running.values())
            self._exit_code = zygote.exit_code or 0
            if self._console is not None:
                self._console.expect_end()

    def _note_ranks(self, line: Mapping[str, Any]) -> None:
        if "started" in line:
            rank, process = line["started"]["rank"], line["started"]["pid"]
            self._running[rank] = process
            if self._questions is not None:
                self._questions.started(rank, process)
        elif "exited" in line:
            rank, status = line["exited"]["rank"], line["exited"]["status"]
            self._running.pop(rank, None)
            if self._questions is not None:
                self._questions.exited(rank)
            explained = self._memory_kills.explain(f"rank {rank}", status)
            if explained is not None:
                self._send("note", text=explained)

    # ---- output ----

    def _send_output(self) -> None:
        """Send files and console output, as far as the launcher keeps up; after the last of it, that all has ended."""
        if self._console is not None and self._room > 0:
            for stream, content in self._console.read():
                self._unwritten += len(content)
                self._send("console", stream=stream, content=content)
        parts = self._files.poll(self._room) if self._exit_code is None else self._files.finish(self._room)
        for part in parts:
            self._unwritten += part.wire_bytes
            self._send("file", part=part.as_fields(), size=part.wire_bytes)
        if self._exit_code is not None and self._files.is_finished and (self._console is None or self._console.ended):
            self._send("ended", exit_code=self._exit_code)
            if self._console is not None:
                self._console.close()
            self._zygote = self._console = self._exit_code = None
            self._end_questions()
            self._end_debugger()

    def _end_ranks(self) -> None:
        zygote = self._zygote
        if zygote is None or self._exit_code is not None:
            return
        with zygote:  # ends it
            pass
        zygote.kill_groups(self._running.values())


class _LauncherGone(Exception):
    """Nobody is there to run ranks for."""


def _note(text: str) -> tuple[str, dict[str, Any]]:
    return "note", {"text": text}
