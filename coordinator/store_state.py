"""The state of a store: requests of clients in, replies out, no I/O.

The same answers as torch's own TCPStore, which the coordinator hosts where every rank is present (store.py). With
absent ranks the coordinator has to know which keys are waited for, and to set some of them itself (`put`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from coordinator.store_protocol import (
    NOT_READY,
    READY,
    STOP_WAITING,
    WAIT_CANCELED,
    Query,
    StoreRequest,
    nonce_reply,
    number_reply,
    value_reply,
)

Client = Hashable
Reply = tuple[Client, bytes]


class StoreState:
    """Keys, counters, queues, and the clients that wait."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._queues: dict[str, deque[bytes]] = {}
        self._waits: dict[Client, tuple[str, ...]] = {}  # all keys of a wait
        self._barriers: dict[str, int] = {}  # barriers that are not open yet, with their world sizes
        self._entered: dict[str, int] = {}
        self.requests = 0  # a number that changes with every request that can unblock a client
        self.additions: dict[str, int] = {}  # of each counter: how often a client increased it

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def handle(self, client: Client, request: StoreRequest) -> list[Reply]:
        """Take a request; return the replies to it and to the clients that it unblocks."""
        query, keys, values = request.query, request.keys, request.values
        if query is Query.WAIT:
            if self._has(keys):
                return [(client, STOP_WAITING)]
            self._waits[client] = keys
            return []
        if query is Query.CHECK:
            return [(client, READY if self._has(keys) else NOT_READY)]
        if query is Query.GET or query is Query.MULTI_GET:
            return [(client, b"".join(value_reply(self._values.get(key, b"")) for key in keys))]
        if query is Query.PING:
            return [(client, nonce_reply(request.number))]
        if query is Query.GET_NUM_KEYS:
            return [(client, number_reply(len(self._values)))]
        if query is Query.LIST_KEYS:
            keys = tuple(self._values)
            texts = (value_reply(key.encode("utf-8", "surrogateescape")) for key in keys)
            return [(client, number_reply(len(keys)) + b"".join(texts))]
        if query is Query.QUEUE_LEN:
            return [(client, number_reply(len(self._queues.get(keys[0], ()))))]
        if query is Query.CANCEL_WAIT:
            self._waits.pop(client, None)
            return [(client, WAIT_CANCELED)]
        self.requests += 1
        if query is Query.ADD:
            self.additions[keys[0]] = self.additions.get(keys[0], 0) + bool(request.number)
            return self.add(keys[0], request.number, client)
        if query is Query.BARRIER:
            return self._enter_barrier(client, keys[0], request.number)
        if query is Query.COMPARE_SET:
            return self._compare_set(client, keys[0], *values)
        if query is Query.DELETE_KEY:
            return [(client, number_reply(int(self._values.pop(keys[0], None) is not None)))]
        if query is Query.QUEUE_PUSH:
            self._queues.setdefault(keys[0], deque()).append(values[0])
            return self._wake(most=1)
        if query is Query.QUEUE_POP:
            queue = self._queues.get(keys[0], deque())
            return [(client, number_reply(len(queue)) + (value_reply(queue.popleft()) if queue else b""))]
        if query is Query.APPEND:
            values = (self._values.get(keys[0], b"") + values[0],)
        self._values.update(zip(keys, values, strict=True))  # SET, MULTI_SET, APPEND
        return self._wake()

    def put(self, key: str, value: bytes) -> list[Reply]:
        """Set a key that no client will set."""
        self._values[key] = value
        return self._wake()

    def add(self, key: str, amount: int, client: Client | None = None) -> list[Reply]:
        """Increase a counter, for a client or for absent ranks."""
        try:
            total = int(self._values.get(key, b"0")) + amount
        except ValueError:  # torch's own store would end its server
            total = amount
        total = (total + (1 << 63)) % (1 << 64) - (1 << 63)  # as a number of 64 bits overflows
        self._values[key] = str(total).encode()
        replies = [] if client is None else [(client, number_reply(total))]
        return replies + self._wake()

    def leave(self, client: Client) -> None:
        """A client has disconnected."""
        self._waits.pop(client, None)

    def enter_absent(self, key: str, ranks: int) -> list[Reply]:
        """Absent ranks enter a barrier."""
        self._entered[key] = self._entered.get(key, 0) + ranks
        return self._open_barrier(key)

    def barriers(self) -> dict[str, tuple[int, int]]:
        """The barriers that clients wait at: how many have entered, and how many will."""
        return {key: (self._entered.get(key, 0), size) for key, size in self._barriers.items()}

    def _enter_barrier(self, client: Client, key: str, size: int) -> list[Reply]:
        if key in self._values:
            return [(client, STOP_WAITING)]
        self._barriers[key] = size
        self._entered[key] = self._entered.get(key, 0) + 1
        self._waits[client] = (key,)
        return self._open_barrier(key)

    def _open_barrier(self, key: str) -> list[Reply]:
        if self._entered[key] < self._barriers[key]:
            return []
        del self._barriers[key]
        return self.put(key, str(self._entered[key]).encode())

    def waits(self) -> list[tuple[str, ...]]:
        """For each client that waits, its keys, of which some do not exist."""
        return list(self._waits.values())

    def _has(self, keys: tuple[str, ...]) -> bool:
        return all(key in self._values or self._queues.get(key) for key in keys)

    def _wake(self, most: int | None = None) -> list[Reply]:
        ready = [client for client, keys in self._waits.items() if self._has(keys)][:most]
        for client in ready:
            del self._waits[client]
        return [(client, STOP_WAITING) for client in ready]

    def _compare_set(self, client: Client, key: str, expected: bytes, desired: bytes) -> list[Reply]:
        current = self._values.get(key)
        if current is None and expected:
            return [(client, value_reply(expected))]
        if current is None or current == expected:
            self._values[key] = current = desired
        return [(client, value_reply(current)), *self._wake()]
