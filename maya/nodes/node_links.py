"""The launcher's link to the node agents: one socket, which a thread of its own serves.

In: messages for agents, from any thread. Out: calls of a `NodeListener`, all from the link's thread: messages of agents
and lost nodes. A node is lost when its agent has been silent for a minute, or when whoever started the agent says so.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Protocol

import zmq

from maya.nodes.curve_sockets import ClientAuthentication, serve_with_keys
from maya.nodes.node_messages import NodeMessageError, pack_message, unpack_message
from maya.nodes.run_keys import RunKeys

BEAT_SECONDS = 2.0
SILENCE_SECONDS = 60.0
SILENCE_VARIABLE = "MAYA_NODE_TIMEOUT"
_START_SECONDS = 600.0  # for an agent to connect: Ray may have to unpack the environment of the job first
_TURN_SECONDS = 1.0
_LAST_SECONDS = 5.0  # for agents to receive their last message
_LARGEST = 256 << 20  # bytes of a message


class NodeListener(Protocol):
    """Whoever reacts to the agents. Its methods are called by the link's thread."""

    def heard(self, node: str, kind: str, fields: Mapping[str, Any]) -> None: ...

    def lost(self, node: str, reason: str) -> None: ...

    def turn(self) -> None:
        """Called once a second."""
        ...


class NodeLinks:
    """Connections to the agents of these nodes. After close() the socket is closed and the thread has ended."""

    def __init__(
        self,
        address: str,
        keys: RunKeys,
        nodes: Collection[str],
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """`address`: that of this machine, as the nodes reach it."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authentication = ClientAuthentication(self._context, keys)
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.LINGER, round(1000 * _LAST_SECONDS)),
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, 0),
            (zmq.MAXMSGSIZE, _LARGEST),
            (zmq.IPV6, int(":" in address)),
        ):
            self._socket.set(option, value)
        serve_with_keys(self._socket, keys)
        host = f"[{address}]" if ":" in address else address
        port = self._socket.bind_to_random_port(f"tcp://{host}")
        self.endpoint = f"tcp://{host}:{port}"
        self._silence = silence_seconds
        self._nodes = frozenset(nodes)
        self._heard: dict[str, float] = {}  # when each connected agent was last heard
        self._lost: set[str] = set()
        self._outgoing: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._listener: NodeListener | None = None
        self._ended_agents: Callable[[], Mapping[str, str]] = dict
        self._thread = threading.Thread(target=self._run, name="node links", daemon=True)

    def begin(self, listener: NodeListener, ended_agents: Callable[[], Mapping[str, str]]) -> None:
        """Serve. `ended_agents`: which agents have ended, and why, as their starter knows it; must not block."""
        self._listener = listener
        self._ended_agents = ended_agents
        self._began = time.monotonic()
        self._thread.start()

    def send(self, node: str, kind: str, **fields: Any) -> None:
        """Send to an agent; a message to a lost one is dropped."""
        self._put((node, pack_message(kind, **fields)))

    def close(self) -> None:
        """Tell the agents that the job is over, and end the link."""
        if self._thread.is_alive():
            for node in self._nodes:
                self.send(node, "end")
            self._put(None)
            self._thread.join()
        self._socket.close()
        self._authentication.close()
        self._context.term()
        os.close(self._woken)
        os.close(self._wake)

    def _put(self, item: tuple[str, bytes] | None) -> None:
        self._outgoing.put(item)
        with suppress(BlockingIOError):  # the pipe is full, so the thread wakes up anyhow
            os.write(self._wake, b"\0")

    # ---- the thread ----

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            traceback.print_exc()
            for node in self._nodes - self._lost:
                self._lose(node, f"the link to the nodes failed: {error}")

    def _serve(self) -> None:
        poller = zmq.Poller()
        for source in (self._socket, self._authentication.socket, self._woken):
            poller.register(source, zmq.POLLIN)
        next_turn = next_beat = 0.0
        while True:
            ready = dict(poller.poll(round(1000 * _TURN_SECONDS)))
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            self._authentication.turn()
            self._receive()
            if not self._send_queued():
                return
            now = time.monotonic()
            if now >= next_turn:
                next_turn = now + _TURN_SECONDS
                self._find_lost(now)
                assert self._listener is not None
                self._listener.turn()
            if now >= next_beat:
                next_beat = now + BEAT_SECONDS
                for node in list(self._heard):
                    self._send_now(node, pack_message("beat"))

    def _receive(self) -> None:
        assert self._listener is not None
        while True:
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            node = identity.decode(errors="replace")
            if node not in self._nodes or node in self._lost:
                continue
            self._heard[node] = time.monotonic()
            try:
                kind, fields = unpack_message(frames[-1] if frames else b"")
                if kind != "beat":
                    self._listener.heard(node, kind, fields)
            except NodeMessageError as error:
                self._lose(node, f"a message of its agent is wrong: {error}")

    def _send_queued(self) -> bool:
        """Send what is queued; returns False when the link ends."""
        while True:
            try:
                item = self._outgoing.get_nowait()
            except queue.Empty:
                return True
            if item is None:
                return False
            self._send_now(*item)

    def _send_now(self, node: str, content: bytes) -> None:
        with suppress(zmq.ZMQError):  # not connected: it is found by its silence
            self._socket.send_multipart([node.encode(), content])

    def _find_lost(self, now: float) -> None:
        for node, reason in self._ended_agents().items():
            self._lose(node, reason)
        for node in self._nodes:
            heard = self._heard.get(node)
            silent = now - (heard or self._began)
            if silent > (self._silence if heard else _START_SECONDS):
                self._lose(node, f"its agent has been silent for {silent:.0f} s")

    def _lose(self, node: str, reason: str) -> None:
        if node not in self._nodes or node in self._lost:
            return
        self._lost.add(node)
        self._heard.pop(node, None)
        assert self._listener is not None
        self._listener.lost(node, reason)
