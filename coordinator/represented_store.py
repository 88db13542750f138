"""The store of a job with absent ranks: torch's TCPStore protocol, served by the coordinator itself.

In: connections of ranks. Out: replies. store_state.py has the keys, store_protocol.py the bytes, absent_ranks.py the
values that absent ranks would set. One descriptor becomes readable when any connection has something to read.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from coordinator.absent_ranks import AbsentRanks
from coordinator.store import ADDRESS, listen
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

    def __init__(self, port: int, absent: AbsentRanks, address: str = ADDRESS) -> None:
        self.state = StoreState()
        self._absent = absent
        self._listening = listen(port, address)
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listening.fileno(), select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        self._activity = (0, 0)
        self._quiet_since = 0.0
        self._forms: set[str] = set()  # of keys that have been filled in (AbsentRanks.form_of)
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
        self._fill_in_forms()

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

    def fill_in_when_idle(self, activity: int, all_wait: Callable[[], bool]) -> None:
        """Act for the absent ranks if clients wait, nothing has happened for a while, and `all_wait` says that no rank
        can do anything else. `activity`: a number that changes whenever a rank does something outside of the store."""
        now = time.monotonic()
        if (self.state.requests, activity) != self._activity:
            self._activity = (self.state.requests, activity)
            self._quiet_since = now
        elif now - self._quiet_since >= _QUIET_SECONDS and self._awaited():
            self._quiet_since = now
            if all_wait():
                self.fill_in()

    def _awaited(self) -> list[str]:
        """The keys that clients wait for and that absent ranks may set."""
        keys = {key: None for keys in self.state.waits() for key in keys}  # in the order of the waits
        return [key for key in keys if self.state.get(key) is None and PREFIX not in key]

    def fill_in(self) -> bool:
        """Act for the absent ranks where every present rank waits and none of them can go on, as little as possible: a
        present rank that goes on may set further keys. Returns whether that changed anything.

        In this order: complete barriers; complete counters that all present ranks have increased, and set keys that a
        present rank has set with its own number in the place of an absent rank's; otherwise set one key to a
        placeholder, the one that fewest clients wait for (many wait for the one that coordinates them)."""
        barriers = self.state.barriers()
        for key, (entered, size) in barriers.items():
            self._send(self.state.enter_absent(key, size - entered))
        awaited = self._awaited()
        if barriers or not awaited:
            return bool(barriers)
        present = len(self._absent.present)
        for key, times in list(self.state.additions.items()):
            if times == present and key not in self._completed and PREFIX not in key:
                self._completed.add(key)
                self._send(self.state.add(key, self._absent.world_size - present))
        sources = {key: self._absent.key_like(key, self._exists) for key in awaited}
        known = [key for key in sorted(awaited) if sources[key] is not None]
        waits = self.state.waits()
        for key in known or [min(awaited, key=lambda key: (sum(key in keys for keys in waits), key))]:
            form = self._absent.form_of(key)
            if form is not None:
                self._forms.add(form)
            self._fill_in_key(key, sources[key])
        return True

    def _fill_in_key(self, key: str, source: str | None) -> None:
        value = None if source is None else self.state.get(source)
        self._absent.filled.append(f"{key} ({'a placeholder' if source is None else f'as {source}'})")
        self.put(key, _PLACEHOLDER if value is None else value)

    def _fill_in_forms(self) -> None:
        """Set keys of absent ranks at once if one that differs only in the rank has been filled in before: a rank that
        reads the keys of all ranks, one by one, waits for each."""
        if not self._forms:
            return
        for key in self._awaited():
            if self._absent.form_of(key) in self._forms:
                self._fill_in_key(key, self._absent.key_like(key, self._exists))

    def _exists(self, key: str) -> bool:
        return self.state.get(key) is not None

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
