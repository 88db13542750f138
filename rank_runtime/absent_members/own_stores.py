"""A program's own TCPStore in a job with absent ranks.

A `TCPStore` for all ranks waits until each of them has connected, and its users wait for keys of other ranks. So in
such a job `torch.distributed.TCPStore` makes a part of the coordinator's store instead, which stands in for absent
ranks.

In: calls of torch.distributed.TCPStore. Out: stores with the same methods. Programs that name the same host and port
share a part.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

_LETTERS = str.maketrans("0123456789", "ghijklmnop")  # a number in a key would be taken for that of a rank


def replace_own_stores(package: Any) -> None:
    """Replace TCPStore in torch.distributed; torch's own modules keep theirs."""
    real = package.TCPStore
    default_timeout = timedelta(seconds=300)

    class Meta(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return type.__instancecheck__(cls, instance) or isinstance(instance, real)

    class TCPStore(package.PrefixStore, metaclass=Meta):  # type: ignore[misc]
        """Part of the coordinator's store."""

        def __init__(
            self,
            host_name: str,
            port: int = 0,
            world_size: int | None = None,
            is_master: bool = False,
            timeout: timedelta = default_timeout,
            *_: Any,
            **__: Any,
        ) -> None:
            self.host = host_name
            self.port = port or _free_port()
            name = f"{host_name}:{self.port}".translate(_LETTERS)
            client = real(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=False,
                timeout=timeout,
                wait_for_workers=False,
            )
            super().__init__(f"own_store/{name}", client)

    package.TCPStore = TCPStore


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("", 0))
        port: int = listening.getsockname()[1]
        return port
