"""ZeroMQ sockets between machines: encrypted with CURVE, and closed to everybody without the run's keys.

In: `RunKeys`. Out: options of a socket, and the authenticator of a server's context (ZeroMQ's authentication protocol,
ZAP): it admits the run's client key alone. ZeroMQ refuses other peers before any message of theirs is read.
"""

from __future__ import annotations

import zmq
import zmq.utils.z85

from maya.nodes.run_keys import RunKeys

_ZAP_ENDPOINT, _ZAP_VERSION = "inproc://zeromq.zap.01", b"1.0"
_ADMITTED, _REFUSED = (b"200", b"OK"), (b"400", b"this is not the key of the run")
_FRAMES = 7  # of a request, with the client's key


class ClientAuthentication:
    """Answers ZeroMQ's questions about clients that connect to the servers of a context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: RunKeys) -> None:
        self._admitted = zmq.utils.z85.decode(keys.client_public.encode())
        self.socket = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(_ZAP_ENDPOINT)
        self.refused = 0

    def turn(self) -> None:
        """Answer what has arrived."""
        while self.socket.poll(0):
            version, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart()
            admitted = version == _ZAP_VERSION and mechanism == b"CURVE" and credentials == [self._admitted]
            self.refused += not admitted
            status, text = _ADMITTED if admitted else _REFUSED
            self.socket.send_multipart([_ZAP_VERSION, request, status, text, b"", b""])

    def close(self) -> None:
        self.socket.close()


def serve_with_keys(socket: zmq.Socket[bytes], keys: RunKeys) -> None:
    """Make a socket that is going to bind a CURVE server."""
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, keys.server_secret.encode())
    socket.set(zmq.ZAP_DOMAIN, b"maya")


def connect_with_keys(socket: zmq.Socket[bytes], keys: RunKeys) -> None:
    """Let a socket that is going to connect use the run's client key."""
    socket.set(zmq.CURVE_SERVERKEY, keys.server_public.encode())
    socket.set(zmq.CURVE_PUBLICKEY, keys.client_public.encode())
    socket.set(zmq.CURVE_SECRETKEY, keys.client_secret.encode())
