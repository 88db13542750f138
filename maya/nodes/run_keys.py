"""The CURVE keys of one run: whoever has them may speak to its launcher and coordinator.

Made for each run. Agents get them when they are started, ranks by their environment; they are never written to a file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import zmq


@dataclass(frozen=True, repr=False)
class RunKeys:
    """Two key pairs, as Z85 text: that of both servers, and that of all clients (agents, ranks)."""

    server_public: str
    server_secret: str
    client_public: str
    client_secret: str

    @staticmethod
    def make() -> RunKeys:
        pairs = (*zmq.curve_keypair(), *zmq.curve_keypair())
        return RunKeys(*(key.decode() for key in pairs))

    def as_json(self) -> dict[str, str]:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, str]) -> RunKeys:
        return RunKeys(**fields)

    def for_clients(self) -> RunKeys:
        """Without the secret that only servers need."""
        return RunKeys(self.server_public, "", self.client_public, self.client_secret)

    def variable(self) -> str:
        """The value of MAYA_COORDINATOR_KEYS."""
        return f"{self.server_public} {self.client_public} {self.client_secret}"
