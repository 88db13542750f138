"""The environment variables of one worker: torchrun's, and those that lead to the coordinator.

In: a `LaunchOptions`, a rank, and the rendezvous address. Out: variables to add to the launcher's own.
"""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from maya.launcher.arguments import LaunchOptions, UsageError


@dataclass(frozen=True)
class RendezvousAddress:
    """The addresses through which workers find each other: the TCPStore, and the coordinator if there is one."""

    store_port: int  # 0: not known yet
    secret: str = ""  # the coordinator's; empty: no coordinator
    endpoint: str = ""
    hosted: bool = False  # the coordinator hosts the store; otherwise rank 0 does so itself
    store_address: str = "127.0.0.1"  # of the hosted store
    keys: str = ""  # of a coordinator that ranks on other machines reach (maya/nodes/run_keys.py)

    @property
    def is_known(self) -> bool:
        """Whether all addresses are known."""
        return self.store_port > 0 and bool(self.endpoint) == bool(self.secret)

    def at(self, store_port: int | None, endpoint: str) -> RendezvousAddress:
        """Fill in the coordinator's endpoint, and the port of its store if it has one."""
        return replace(self, store_port=self.store_port if store_port is None else store_port, endpoint=endpoint)

    def address(self, wanted: str) -> str:
        """The host of the store. Nodes are virtual: the address of any node means the machine of the coordinator."""
        is_local = wanted == "localhost" and not self.keys
        return wanted if not self.hosted or is_local else self.store_address

    def variables(self) -> dict[str, str]:
        return {
            "MAYA_COORDINATOR": self.endpoint,
            "MAYA_COORDINATOR_SECRET": self.secret,
            "MAYA_COORDINATOR_KEYS": self.keys,
            "MAYA_ZMQ": zmq_library() if self.endpoint else "",
        }


def free_port() -> int:
    """A TCP port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def zmq_library() -> str:
    """The ZeroMQ library for the C code in the ranks: the one bundled with pyzmq, or else the system's."""
    found = importlib.util.find_spec("zmq")
    if found is not None and found.origin is not None:
        for library in sorted((Path(found.origin).parents[1] / "pyzmq.libs").glob("libzmq*.so*")):
            return str(library)
    return "libzmq.so.5"


def worker_variables(
    launch: LaunchOptions,
    rank: int,
    rendezvous: RendezvousAddress,
    attempt: int,
    error_file: Path,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """The variables that torchrun sets for a worker."""
    node, local_rank = divmod(rank, launch.ranks_per_node)
    variables = {
        "LOCAL_RANK": str(local_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(node),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": launch.role,
        "LOCAL_WORLD_SIZE": str(launch.ranks_per_node),
        "WORLD_SIZE": str(launch.world_size),
        "GROUP_WORLD_SIZE": str(launch.nodes),
        "ROLE_WORLD_SIZE": str(launch.world_size),
        "MASTER_ADDR": rendezvous.address(launch.master_address),
        "MASTER_PORT": str(rendezvous.store_port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.max_restarts),
        "TORCHELASTIC_RUN_ID": launch.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(rendezvous.hosted),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(number.name for number in launch.signals),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "TORCHELASTIC_ERROR_FILE": str(error_file),
    }
    if launch.ranks_per_node > 1 and "OMP_NUM_THREADS" not in inherited:
        variables["OMP_NUM_THREADS"] = "1"
    if launch.virtual_local_rank:
        variables |= _virtual_local_rank(local_rank, inherited.get("CUDA_VISIBLE_DEVICES"))
    return variables


def _virtual_local_rank(local_rank: int, visible: str | None) -> dict[str, str]:
    """Every worker sees one GPU, as if it were the only worker of its node."""
    gpus = None if visible is None else visible.split(",")
    if gpus is not None and local_rank >= len(gpus):
        raise UsageError(f"--virtual-local-rank: no GPU for local rank {local_rank} in CUDA_VISIBLE_DEVICES={visible}")
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(local_rank) if gpus is None else gpus[local_rank].strip()}
