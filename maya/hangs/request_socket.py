"""The socket at which a job's coordinator answers what its ranks do right now (`maya stacks`).

In: the folder of a run. Out: the reports of its jobs, one for a run of maya-torchrun, one for each job of a session.
The socket is an abstract one, whose name follows from the folder, so nothing is left behind; each side checks that the
other belongs to the same user.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ANSWER_SECONDS = 60.0
_SEND_SECONDS = 5.0


class NotRunningError(ValueError):
    """No job records into the folder."""


def _address(folder: Path) -> str:
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    return f"\0maya-job-{os.getuid()}-{name}"


def _is_of_this_user(connection: socket.socket) -> bool:
    content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    user: int = struct.unpack("iII", content)[1]
    return user in (os.geteuid(), 0)


class RequestSocket:
    """The coordinator's side."""

    def __init__(self, folder: Path) -> None:
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind(_address(folder))
            self._socket.listen(4)
            self._socket.setblocking(False)
        except OSError:  # another job records into the same folder
            self._socket.close()
            self._socket = None

    @property
    def descriptor(self) -> int | None:
        """Readable when somebody asks."""
        return None if self._socket is None else self._socket.fileno()

    def serve(self, reports: Callable[[], list[dict[str, Any]]]) -> None:
        """Answer one request."""
        if self._socket is None:
            return
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        with connection:
            if not _is_of_this_user(connection):
                return
            connection.settimeout(_SEND_SECONDS)
            try:
                connection.sendall(json.dumps(reports()).encode())
            except OSError:
                return

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def ask_job(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of the jobs that record into a folder do now."""
    content = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(_address(folder))
        except OSError:
            raise NotRunningError(f"no job is running that records into {folder}") from None
        if not _is_of_this_user(connection):
            raise NotRunningError(f"the job that records into {folder} belongs to another user")
        try:
            while chunk := connection.recv(1 << 16):
                content += chunk
        except TimeoutError:
            raise NotRunningError(f"the job that records into {folder} does not answer") from None
    if not content:
        raise NotRunningError(f"the job that records into {folder} has just ended")
    reports = json.loads(content)
    assert isinstance(reports, list)
    return reports
