"""The store of a job with absent ranks: torch's TCPStore protocol, served by the coordinator itself.

In: connections of ranks. Out: replies. store_state.py has the keys, store_protocol.py the bytes, absent_ranks.py the
values that absent ranks would set. One descriptor becomes readable when any connection has something to read.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress

from coordinator.absent_ranks import AbsentRanks
from coordinator.store import listen
from coordinator.store_protocol import Query, RequestReader, StoreProtocolError
from coordinator.store_state import Reply, StoreState
from rank_runtime.absent_members.store_exchange import PREFIX

_CHUNK = 1 << 16
_QUIET_SECONDS = 0.7
_PLACEHOLDER = b"1"  # the value of a key that an absent rank would set


class _Connection:
    """A client's socket, its unread requests, and replies that the socket has not taken yet."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.reader = RequestReader()
        self.unsent = bytearray()


class RepresentedStore:
    """A listening socket and its connections."""

    def __init__(self, port: int, absent: AbsentRanks) -> None:
        self.state = StoreState()
        self._absent = absent
        self._listening = listen(port)
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listening.fileno(), select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        self._activity = (0, 0)
        self._quiet_since = 0.0
        self._completed: set[str] = set()  # counters that absent ranks have increased

    @property
    def descriptor(self) -> int:
        """Readable when `turn` has something to do."""
        return self._epoll.fileno()

    def turn(self) -> None:
        """Handle everything that has arrived."""
        for descriptor, event in self._epoll.poll(0):
            if descriptor == self._listening.fileno():
                self._accept()
            elif descriptor in self._connections:
                if event & select.EPOLLOUT:
                    self._flush(descriptor)
                if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                    self._read(descriptor)
        self._fill_in_ids()

    def _fill_in_ids(self) -> None:
        """Set the unique ids that clients wait for and that only absent ranks would make."""
        for keys in self.state.waits():
            for key in keys:
                value = self._absent.value_for(key, keys) if self.state.get(key) is None else None
                if value is not None:
                    self.put(key, value)

    def put(self, key: str, value: bytes) -> None:
        """Set a key in the place of an absent rank."""
        self._send(self.state.put(key, value))

    def fill_in_when_idle(self, activity: int, ranks: int) -> None:
        """Act for the absent ranks if all `ranks` that have not ended wait in the store, and nothing has happened for a
        while. `activity`: a number that changes whenever a rank does something else."""
        now = time.monotonic()
        if (self.state.requests, activity) != self._activity:
            self._activity = (self.state.requests, activity)
            self._quiet_since = now
        elif ranks and len(self.state.waits()) >= ranks and now - self._quiet_since >= _QUIET_SECONDS:
            self._quiet_since = now
            self.fill_in()

    def fill_in(self) -> bool:
        """Act for the absent ranks where every present rank waits and none of them can go on: complete counters and
        barriers that all present ranks have joined, and set keys that are waited for. Returns whether that changed
        anything."""
        present = len(self._absent.present)
        absent = self._absent.world_size - present
        waited = [
            key for keys in self.state.waits() for key in keys if self.state.get(key) is None and PREFIX not in key
        ]
        barriers = self.state.barriers()
        for key, (entered, size) in barriers.items():
            self._send(self.state.enter_absent(key, size - entered))
        if not waited:
            return False
        for key, times in self.state.additions.items():
            if times == present and key not in self._completed and PREFIX not in key:
                self._completed.add(key)
                self._send(self.state.add(key, absent))
        for key in waited:
            if self.state.get(key) is None:
                self._absent.filled.append(key)
                self.put(key, _PLACEHOLDER)
        return True

    def close(self) -> None:
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()
        self._epoll.close()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                opened, _ = self._listening.accept()
            except OSError:  # there is no further one, or it has been closed already
                return
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[opened.fileno()] = _Connection(opened)
            self._epoll.register(opened.fileno(), select.EPOLLIN)

    def _read(self, descriptor: int) -> None:
        connection = self._connections[descriptor]
        try:
            data = connection.socket.recv(_CHUNK)
            requests = connection.reader.feed(data)
        except BlockingIOError:
            return
        except (OSError, StoreProtocolError):
            data, requests = b"", []
        if not data:
            self._disconnect(descriptor)
            return
        for request in requests:
            if request.query in (Query.SET, Query.MULTI_SET, Query.COMPARE_SET):
                for key, value in zip(request.keys, request.values[-len(request.keys) :], strict=True):
                    self._absent.note_value(key, value)
            self._send(self.state.handle(descriptor, request))

    def _send(self, replies: list[Reply]) -> None:
        for descriptor, reply in replies:
            assert isinstance(descriptor, int)
            connection = self._connections.get(descriptor)
            if connection is not None:
                connection.unsent += reply
                self._flush(descriptor)

    def _flush(self, descriptor: int) -> None:
        connection = self._connections[descriptor]
        with suppress(OSError):  # a closed connection is noticed when it is read
            sent = connection.socket.send(connection.unsent)
            del connection.unsent[:sent]
        events = select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0)
        self._epoll.modify(descriptor, events)

    def _disconnect(self, descriptor: int) -> None:
        connection = self._connections.pop(descriptor)
        self._epoll.unregister(descriptor)
        connection.socket.close()
        self.state.leave(descriptor)
