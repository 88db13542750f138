"""The protocol of torch's TCPStore: bytes of a connection in, requests out; and the bytes of replies.

A connection begins with a validation. A request is one byte for its kind and then its arguments; texts and values are
preceded by their lengths. Integers are little-endian, of 64 bits. torch has no description of this protocol: the
numbers are those of torch 2.8 to 2.15 (docs/internals.md).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

_VALIDATION = 0x3C85F7CE
_LONGEST = 1 << 30  # bytes of a text or value
_MOST_KEYS = 1 << 20


class Query(IntEnum):
    """The kind of a request."""

    VALIDATE = 0
    SET = 1
    COMPARE_SET = 2
    GET = 3
    ADD = 4
    CHECK = 5
    WAIT = 6
    GET_NUM_KEYS = 7
    DELETE_KEY = 8
    APPEND = 9
    MULTI_GET = 10
    MULTI_SET = 11
    CANCEL_WAIT = 12
    PING = 13
    QUEUE_PUSH = 14
    QUEUE_POP = 15
    QUEUE_LEN = 16
    LIST_KEYS = 17
    BARRIER = 18


class StoreProtocolError(ValueError):
    """The bytes are not requests to a TCPStore."""


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A request of a client."""

    query: Query
    keys: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()
    number: int = 0  # the amount of ADD, the world size of BARRIER, the nonce of PING


# The arguments of each query: k a key, v a value, n a number of 64 bits, i a number of 32 bits, K a list of keys,
# P a list of pairs of key and value.
_ARGUMENTS = {
    Query.VALIDATE: "i",
    Query.SET: "kv",
    Query.COMPARE_SET: "kvv",
    Query.GET: "k",
    Query.ADD: "kn",
    Query.CHECK: "K",
    Query.WAIT: "K",
    Query.GET_NUM_KEYS: "",
    Query.DELETE_KEY: "k",
    Query.APPEND: "kv",
    Query.MULTI_GET: "K",
    Query.MULTI_SET: "P",
    Query.CANCEL_WAIT: "",
    Query.PING: "i",
    Query.QUEUE_PUSH: "kv",
    Query.QUEUE_POP: "k",
    Query.QUEUE_LEN: "k",
    Query.LIST_KEYS: "",
    Query.BARRIER: "kn",
}


class RequestReader:
    """Reads the requests of one connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = 0  # bytes without which the next request cannot be complete
        self._validated = False

    def feed(self, data: bytes) -> list[StoreRequest]:
        """The requests that `data` completes, without the validation."""
        self._buffer += data
        requests: list[StoreRequest] = []
        if len(self._buffer) < self._needed:  # so that a long request is not read anew with every packet
            return requests
        position = 0
        while True:
            cursor = _Cursor(self._buffer, position)
            try:
                request = cursor.request()
            except _Incomplete:
                self._needed = cursor.position - position
                break
            position = cursor.position
            if self._validated:
                requests.append(request)
            elif request != StoreRequest(Query.VALIDATE, number=_VALIDATION):
                raise StoreProtocolError("the connection does not begin as one to a TCPStore")
            self._validated = True
        del self._buffer[:position]
        return requests


class _Incomplete(Exception):
    """The buffer ends inside a request."""


class _Cursor:
    """A position in the bytes of a request."""

    def __init__(self, buffer: bytearray, position: int) -> None:
        self._buffer = buffer
        self.position = position

    def request(self) -> StoreRequest:
        number = self._take(1)[0]
        if number not in _ARGUMENTS:
            raise StoreProtocolError(f"unknown request {number} to the TCPStore")
        query = Query(number)
        keys: list[str] = []
        values: list[bytes] = []
        amount = 0
        for argument in _ARGUMENTS[query]:
            if argument == "k":
                keys.append(self._text())
            elif argument == "v":
                values.append(self._value())
            elif argument == "n":
                (amount,) = struct.unpack("<q", self._take(8))
            elif argument == "i":
                (amount,) = struct.unpack("<I", self._take(4))
            else:
                for _ in range(self._length(_MOST_KEYS)):
                    keys.append(self._text())
                    if argument == "P":
                        values.append(self._value())
        return StoreRequest(query, tuple(keys), tuple(values), amount)

    def _take(self, count: int) -> bytes:
        first, self.position = self.position, self.position + count
        if self.position > len(self._buffer):
            raise _Incomplete
        return bytes(self._buffer[first : self.position])

    def _length(self, most: int) -> int:
        (length,) = struct.unpack("<Q", self._take(8))
        if length > most:
            raise StoreProtocolError(f"a request to the TCPStore has a length of {length}")
        return int(length)

    def _value(self) -> bytes:
        return self._take(self._length(_LONGEST))

    def _text(self) -> str:
        return self._value().decode("utf-8", "surrogateescape")


# ---- replies ----

READY, NOT_READY = b"\x00", b"\x01"
STOP_WAITING, WAIT_CANCELED = b"\x00", b"\x01"


def value_reply(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def number_reply(number: int) -> bytes:
    return struct.pack("<q", number)


def nonce_reply(nonce: int) -> bytes:
    return struct.pack("<I", nonce)
