"""The coordinator's socket: authenticates ranks, receives their batches of messages, and sends batches of answers.

In: batches from ranks (rank_runtime/messages.py declares the messages). Out: batches to ranks; all answers of one turn
to a rank go out as one batch. state.py handles the messages.

A sender counts as a rank after its Hello has shown the run's secret. The server counts and ignores batches of other
senders. It answers Refused to a rank whose bytes are not valid messages.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from dataclasses import dataclass

import zmq

from coordinator.absent_ranks import AbsentRanks
from coordinator.answers import INVALID_USAGE, Outgoing
from coordinator.arithmetic import Buffer
from coordinator.state import State
from coordinator.time_model import NO_TIME_MODEL, TimeModel
from maya.nodes.curve_sockets import ClientAuthentication, serve_with_keys
from maya.nodes.run_keys import RunKeys
from rank_runtime.messages import (
    VERSION,
    Bye,
    Failed,
    FromCoordinator,
    Hello,
    MessageError,
    Refused,
    RequestFailed,
    Welcome,
    pack,
    unpack,
    unpack_hello,
)

_MOST_PER_TURN = 512  # batches to read before answers are sent
_BACKLOG = 4096  # a thousand ranks connect at the same moment; if the kernel allows less, connecting takes longer
_SMALL_PAYLOAD = (
    1 << 16
)  # copied up to this size: small payloads share a buffer of ZeroMQ, and would keep all of it alive
_EMPTY_BATCH = pack([])


class ServerError(Exception):
    """The socket cannot be opened."""


@dataclass(slots=True)
class _Connection:
    rank: int
    process: int
    heard: float  # time of the last batch, by the monotonic clock


class Server:
    """A ROUTER for the ranks of one run."""

    def __init__(
        self,
        world_size: int,
        secret: str,
        endpoint: str = "",
        times: TimeModel = NO_TIME_MODEL,
        absent: AbsentRanks | None = None,
        keys: RunKeys | None = None,
    ) -> None:
        """`keys`: of a server for other machines, whose endpoint is a TCP address."""
        self.state = State(times, absent)
        self._world_size = world_size
        self._secret = secret.encode()
        self._connections: dict[bytes, _Connection] = {}  # by ZeroMQ identity
        self._identity_of: dict[int, bytes] = {}  # rank -> identity
        self._exited: set[int] = set()  # ranks whose process has ended, but whose batches may still be unread
        self._outbox: dict[int, list[tuple[FromCoordinator, Buffer | None]]] = {}
        self.batches_in = 0
        self.batches_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.ignored = 0  # batches of senders that are not ranks
        self.holds_failures = False  # hold Failed answers until release_failures()
        self.held_failures: list[tuple[int, Failed | RequestFailed]] = []
        endpoint = endpoint or f"ipc://@maya-{secrets.token_hex(8)}"
        self.context = zmq.Context()
        self.authentication = None if keys is None else ClientAuthentication(self.context, keys)
        try:
            self.socket = self.context.socket(zmq.ROUTER)
            self.endpoint = self._open(endpoint, keys)
        except zmq.ZMQError as error:
            self.context.destroy()
            raise ServerError(f"the coordinator cannot listen at {endpoint}: {error.strerror}") from None

    def _open(self, endpoint: str, keys: RunKeys | None) -> str:
        socket = self.socket
        # Sending to a rank that has disconnected is an error; by default ZeroMQ drops the message.
        socket.set(zmq.ROUTER_MANDATORY, 1)
        # The queues have no limit. A rank gets only answers to its own requests, which bounds its queue; and a full
        # queue would make all ranks wait for the slowest one.
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        # When the coordinator ends, the ranks have ended: no process reads the rest of a queue.
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.BACKLOG, _BACKLOG)
        # With a thousand processes on a few cores, a handshake may take longer than the default of half a minute.
        socket.set(zmq.HANDSHAKE_IVL, 0)
        if endpoint.startswith("ipc:"):
            socket.set(zmq.IPC_FILTER_UID, os.getuid())  # an abstract name has no permissions of its own
        if keys is not None:
            serve_with_keys(socket, keys)
        socket.bind(endpoint)
        return socket.get_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        self.socket.close()
        if self.authentication is not None:
            self.authentication.close()
        self.context.term()

    # ---- events ----

    def turn(self) -> None:
        """Handle the batches that have arrived, then send the answers."""
        socket = self.socket
        if self.authentication is not None:
            self.authentication.turn()
        now = time.monotonic()
        for _ in range(_MOST_PER_TURN):
            try:
                identity = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            part = socket.recv(copy=False)  # always present; a Frame is cheaper than getsockopt(RCVMORE)
            frame = part.bytes
            self.bytes_in += len(frame)
            payloads: list[Buffer] = []
            while part.more:
                part = socket.recv(copy=False)
                payloads.append(part.bytes if len(part) <= _SMALL_PAYLOAD else part.buffer)
                self.bytes_in += len(part)
            self.batches_in += 1
            self._receive(identity, frame, payloads, now)
        self._put(self.state.answer_asks())
        self._disconnect_ended()
        self._flush()

    def complete_joins(self) -> None:
        """Complete communicator inits in a job with absent ranks, after a turn of the store."""
        self._put(self.state.complete_joins())
        self._flush()

    def exited(self, rank: int) -> None:
        """The process of a rank has ended. Batches that it sent before still count."""
        if rank in self._identity_of:
            self._exited.add(rank)
        elif 0 <= rank < self._world_size:
            self._put(self.state.end(rank))

    def lost(self, rank: int) -> None:
        """The machine of a rank is lost. Its connection may seem open for long."""
        if rank in self._identity_of:
            self._disconnect(rank)
        elif 0 <= rank < self._world_size:
            self._put(self.state.end(rank))
        self._flush()

    @property
    def expects_an_end(self) -> bool:
        """Whether a process has ended whose connection is not closed yet."""
        return bool(self._exited)

    def silent_since(self, moment: float) -> list[int]:
        """Ranks that have sent nothing since a moment."""
        return sorted(connection.rank for connection in self._connections.values() if connection.heard < moment)

    # ---- in ----

    def _receive(self, identity: bytes, frame: bytes, payloads: list[Buffer], now: float) -> None:
        connection = self._connections.get(identity)
        if connection is None and not self._is_ours(identity, frame):
            return
        try:
            batch = unpack(frame, payloads)
        except MessageError as error:
            sender = "a rank" if connection is None else f"rank {connection.rank}"
            self._refuse(identity, f"the coordinator cannot read a batch from {sender}: {error}")
            return
        for message, payload in batch:
            if connection is None:
                assert isinstance(message, Hello)
                connection = self._greet(identity, message, now)
                if connection is None:
                    return
            elif isinstance(message, Bye):
                self.state.say_bye(connection.rank, message.host_ns)
                self._disconnect(connection.rank)
                return
            else:
                self._put(self.state.handle(connection.rank, message, payload))
        if connection is not None:
            connection.heard = now

    def _is_ours(self, identity: bytes, frame: bytes) -> bool:
        """Whether the first batch of a sender begins with a Hello that has the run's secret and our version."""
        try:
            version, secret = unpack_hello(frame)
        except MessageError:
            self.ignored += 1
            return False
        if not hmac.compare_digest(secret.encode(), self._secret):
            self.ignored += 1
            return False
        if version != VERSION:
            self._refuse(
                identity,
                f"the rank uses version {version} of the messages, the coordinator version {VERSION}: "
                "both must come from the same installation of Maya",
            )
            return False
        return True

    def _greet(self, identity: bytes, hello: Hello, now: float) -> _Connection | None:
        rank = self._rank_of(hello)
        if rank >= self._world_size:
            self._refuse(identity, f"process {hello.process} is rank {rank}, expected 0 to {self._world_size - 1}")
            return None
        other = self._identity_of.get(rank)
        if other is not None and self._is_connected(other):
            self._refuse(
                identity,
                f"process {hello.process} is rank {rank}, but so is process {self._connections[other].process}, "
                "which has not ended; a script that starts ranks itself (mp.spawn) runs below maya exec: "
                "maya exec -- python SCRIPT",
            )
            return None
        if other is not None:
            self._disconnect(rank)
        self.state.start(rank)
        self._identity_of[rank] = identity
        connection = self._connections[identity] = _Connection(rank, hello.process, now)
        self._put([(rank, Welcome(VERSION), None)])
        return connection

    def _rank_of(self, hello: Hello) -> int:
        return hello.rank

    def _disconnect(self, rank: int) -> None:
        identity = self._identity_of.pop(rank)
        del self._connections[identity]
        self._outbox.pop(rank, None)
        self._exited.discard(rank)
        self._put(self.state.end(rank))

    def _disconnect_ended(self) -> None:
        """Disconnect ranks whose process has ended, once all their batches are read."""
        for rank in list(self._exited):
            if not self._is_connected(self._identity_of[rank]):
                self._disconnect(rank)

    # ---- out ----

    def _put(self, answers: list[Outgoing]) -> None:
        for rank, message, payload in answers:
            if self.holds_failures and isinstance(message, Failed | RequestFailed):
                self.held_failures.append((rank, message))
                continue
            waiting = self._outbox.get(rank)
            if waiting is None:
                self._outbox[rank] = [(message, payload)]
            else:
                waiting.append((message, payload))

    @property
    def holds_nccl_errors(self) -> bool:
        """Whether a held failure is an error that NCCL reports. Calls that do not match are none: on GPUs they never
        end, or write into memory, so the ranks keep waiting in them."""
        return any(
            isinstance(failure, RequestFailed) or failure.result != INVALID_USAGE for _, failure in self.held_failures
        )

    def release_failures(self) -> None:
        """Send the held failures, and hold no later ones."""
        if not self.held_failures:
            return
        self.holds_failures = False
        self._put([(rank, failure, None) for rank, failure in self.held_failures])
        self.held_failures = []
        self._flush()

    def _flush(self) -> None:
        """Send the answers. A payload for many ranks is copied once, into a Frame that ZeroMQ reference-counts.

        While a failure is held, no rank is answered, so that all ranks involved still exist when it is reported.
        """
        if self.held_failures:
            return
        shared: dict[int, zmq.Frame] = {}  # by id(payload); no id is reused, since this loop creates no payload
        while self._outbox:
            rank, answers = self._outbox.popitem()
            identity = self._identity_of.get(rank)
            if identity is None:
                continue  # it has ended
            parts: list[bytes | zmq.Frame] = [pack([message for message, _ in answers])]
            for _, payload in answers:
                if payload is not None:
                    part = shared.get(id(payload))
                    if part is None:
                        part = shared[id(payload)] = zmq.Frame(payload, copy=True)
                    parts.append(part)
            if self._send(identity, parts):
                self.batches_out += 1
                self.bytes_out += sum(map(len, parts))
            else:
                self._disconnect(rank)

    def _refuse(self, identity: bytes, text: str) -> None:
        self._send(identity, [pack([Refused(text)])])

    def _is_connected(self, identity: bytes) -> bool:
        """Whether a sender is still connected, or has unread batches."""
        return self._send(identity, [_EMPTY_BATCH])

    def _send(self, identity: bytes, parts: list[bytes | zmq.Frame]) -> bool:
        """Send a batch; return whether the receiver is still connected. Never blocks: the queues have no limit."""
        try:
            self.socket.send(identity, zmq.SNDMORE)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        for part in parts[:-1]:
            self.socket.send(part, zmq.SNDMORE)
        self.socket.send(parts[-1])
        return True
