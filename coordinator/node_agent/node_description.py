"""The facts of the machine that an agent runs on; builds the fake libraries there first.

In: the address of the launcher, the node's folder. Out: `NodeFacts`; BuildError if this machine cannot run ranks.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from maya.launcher.worker_environment import zmq_library
from maya.nodes.node_facts import NodeFacts
from maya.version import __version__
from rank_runtime.build import ensure_built


def describe_node(name: str, launcher: str, folder: Path, note: Callable[[str], None]) -> NodeFacts:
    build = ensure_built(note)
    return NodeFacts(
        name=name,
        host=socket.getfqdn(),
        folder=str(folder),
        working_folder=str(Path.cwd()),
        python=sys.executable,
        environment=dict(os.environ),
        build_folder=str(build.folder),
        libraries=tuple(map(str, build.libraries)),
        observer=str(build.observer or ""),
        zmq_library=zmq_library(),
        interface=interface_to(launcher),
        maya_version=__version__,
        torch_version=build.torch_version,
        python_version=platform.python_version(),
    )


def interface_to(endpoint: str) -> str:
    """The network interface by which this machine reaches an address, `tcp://host:port`; empty: unknown."""
    parts = urlsplit(endpoint)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # of a datagram socket: chooses the route, sends nothing
            own = str(probe.getsockname()[0])
    except OSError:
        return ""
    for interface, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == own for each in addresses):
            return str(interface)
    return ""
