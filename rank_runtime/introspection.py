"""Asks ranks what they do.

In: processes, each with a question (shim/device/stacks.c has them). Out: their answers. All are asked at once; a
process that does not answer in time, because it is stopped or has no thread for it, has no answer. The same holds if
another user has taken the address: any user of this machine may listen at any free one.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Mapping

from rank_runtime.stacks_socket import stacks_socket

_MOST_AT_ONCE = 128
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


def ask(endpoint: str, questions: Mapping[int, str], seconds: float) -> dict[int, bytes]:
    """Answers by process; `endpoint` is the coordinator's, as the ranks know it."""
    answers: dict[int, bytearray] = {}
    complete: dict[int, bytes] = {}
    waiting = list(questions.items())[::-1]
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        while (waiting or selector.get_map()) and time.monotonic() < deadline:
            while waiting and len(selector.get_map()) < _MOST_AT_ONCE:
                process, question = waiting.pop()
                connection = connect(endpoint, process, question)
                if connection is not None:
                    answers[process] = bytearray()
                    selector.register(connection, selectors.EVENT_READ, process)
            for key, _ in selector.select(0.1):
                opened: socket.socket = key.fileobj  # type: ignore[assignment]
                try:
                    chunk = opened.recv(1 << 16)
                except BlockingIOError:
                    continue
                except OSError:
                    chunk = b""
                answers[key.data] += chunk
                if not chunk:
                    complete[key.data] = bytes(answers[key.data])
                    selector.unregister(opened)
                    opened.close()
        for key in list(selector.get_map().values()):
            selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
    return complete


def connect(endpoint: str, process: int, question: str) -> socket.socket | None:
    """To a process that has been asked, and does not wait for anything. None: it cannot be asked."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        connection.connect(stacks_socket(process, endpoint))
        if not _is_of_this_user(connection):
            connection.close()
            return None
        connection.send(question.encode() + b"\n")
    except OSError:
        connection.close()
        return None
    return connection


def _is_of_this_user(connection: socket.socket) -> bool:
    """Whether the process that listens belongs to this user, or to root."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[1] in (os.geteuid(), 0)
