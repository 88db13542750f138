"""The TCPStore of the ranks' process groups, hosted by the coordinator.

In: a port, or 0 for any free one. Out: a store that listens on the loopback address until it is closed. Ranks know from
TORCHELASTIC_USE_AGENT_STORE that they must not host it themselves. Only this module imports torch.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

ADDRESS = "127.0.0.1"
_BACKLOG = 4096


class StoreError(Exception):
    """The store cannot be hosted."""


def listen(port: int) -> socket.socket:
    """A socket that listens on the loopback address. The port is opened here and not by torch: a port that is taken is
    one clear error, and no other process can take a free one between choosing and opening it."""
    try:
        return socket.create_server((ADDRESS, port), backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StoreError(f"port {port} is in use: choose another with --master-port; 0 picks a free one") from None
        raise StoreError(f"cannot listen at {ADDRESS}:{port}: {error.strerror}") from None
    except OverflowError:
        raise StoreError(f"there is no port {port}: expected 0 to 65535") from None


class Store:
    """A TCPStore and its port."""

    def __init__(self, port: int = 0) -> None:
        listening = listen(port)
        self.port: int = listening.getsockname()[1]
        self._store: Any = _tcp_store(self.port, listening.detach())

    def close(self) -> None:
        self._store = None


def _tcp_store(port: int, listening: int) -> Any:
    try:
        from torch.distributed import TCPStore
    except ImportError as error:
        raise StoreError(f"the store needs torch, which cannot be imported: {error}") from None
    try:
        return TCPStore(
            ADDRESS,
            port,
            is_master=True,
            wait_for_workers=False,  # ranks may connect late, or never
            master_listen_fd=listening,
            use_libuv=True,
        )
    except RuntimeError as error:
        raise StoreError(f"torch cannot host its store at {ADDRESS}:{port}: {error}") from None
