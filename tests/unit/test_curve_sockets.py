"""Only who has the keys of a run is heard at its TCP sockets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import zmq

from coordinator.server import Server
from maya.nodes.curve_sockets import connect_with_keys
from maya.nodes.run_keys import RunKeys
from rank_runtime.messages import VERSION, Hello, Welcome, pack, unpack

SECRET = "0123456789abcdef"
KEYS = RunKeys.make()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(2, SECRET, "tcp://127.0.0.1:*", keys=KEYS)
    yield server
    server.close()


def said_hello(server: Server, keys: RunKeys | None) -> list[bytes]:
    """The server's answer to a client with these keys; empty: none."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.LINGER, 0)
        if keys is not None:
            connect_with_keys(socket, keys)
        socket.connect(server.endpoint)
        socket.send(pack([Hello(VERSION, SECRET, 0, 1)]))
        for _ in range(40):
            server.turn()
            if socket.poll(10):
                return socket.recv_multipart()
    return []


def test_a_client_with_the_keys_of_the_run_is_answered(server: Server) -> None:
    answer = said_hello(server, KEYS.for_clients())
    assert unpack(answer[0], []) == [(Welcome(VERSION), None)]


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(None, id="no keys"),
        pytest.param(RunKeys.make(), id="keys of another run"),
        pytest.param(replace(RunKeys.make(), server_public=KEYS.server_public), id="another client's key"),
    ],
)
def test_others_are_not_heard(server: Server, keys: RunKeys | None) -> None:
    assert said_hello(server, keys) == []
    assert server.batches_in == 0


def test_clients_do_not_get_the_key_of_the_server() -> None:
    assert KEYS.server_secret not in KEYS.for_clients().as_json().values()
    assert KEYS.server_secret not in KEYS.variable()
    assert KEYS.client_secret not in repr(KEYS)
