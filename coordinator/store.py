"""The TCPStore of the ranks' process groups, hosted by the coordinator.

In: a port, or 0 for any free one, and an address, by default the loopback address. Out: a store that listens until it
is closed. Ranks know from TORCHELASTIC_USE_AGENT_STORE that they must not host it themselves. Only this module imports
torch. torch's protocol has no passwords: in a job on several machines, everybody who reaches the address can use the
store.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

ADDRESS = "127.0.0.1"
_BACKLOG = 4096


class StoreError(Exception):
    """The store cannot be hosted."""


def listen(port: int, address: str = ADDRESS) -> socket.socket:
    """A socket that listens. The port is opened here and not by torch: a port that is taken is
    one clear error, and no other process can take a free one between choosing and opening it."""
    try:
        return socket.create_server((address, port), backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StoreError(f"port {port} is in use: choose another with --master-port; 0 picks a free one") from None
        raise StoreError(f"cannot listen at {address}:{port}: {error.strerror}") from None
    except OverflowError:
        raise StoreError(f"there is no port {port}: expected 0 to 65535") from None


class Store:
    """A TCPStore and its port."""

    def __init__(self, port: int = 0, address: str = ADDRESS) -> None:
        listening = listen(port, address)
        self.port: int = listening.getsockname()[1]
        self._store: Any = _tcp_store(address, self.port, listening.detach())

    def close(self) -> None:
        self._store = None


def _tcp_store(address: str, port: int, listening: int) -> Any:
    try:
        from torch.distributed import TCPStore
    except ImportError as error:
        raise StoreError(f"the store needs torch, which cannot be imported: {error}") from None
    try:
        return TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,  # ranks may connect late, or never
            master_listen_fd=listening,
            use_libuv=True,
        )
    except RuntimeError as error:
        raise StoreError(f"torch cannot host its store at {address}:{port}: {error}") from None
