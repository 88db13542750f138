"""A machine of a Ray cluster: what it has, and whether ranks can run there.

In: `find_facts`, which runs on the machine itself, and Ray's own list of nodes. Out: `Machine`. `find_facts` is sent to
the machine by its source, because Maya may be missing there: it imports what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Machine:
    """A node of a Ray cluster. What could not be found out is empty."""

    name: str
    address: str
    processors: int  # as Ray counts them: 0 keeps all work away
    memory: int  # bytes that are available there
    python: str
    maya: str
    torch: str
    compiler: str
    interface: str  # the network interface that has the address
    folder: str  # a digest of the job's folder, if it is there at the same path
    resources: Mapping[str, float] = field(default_factory=dict)  # what Ray hands out there
    is_here: bool = False  # the launcher runs there

    def as_fields(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> Machine:
        return Machine(**fields)

    def problem(self, python: str, maya: str, torch: str) -> str | None:
        """Why no ranks of a job with these versions can run there; a sentence without subject."""
        for what, there, here in (
            ("Python", self.python, python),
            ("Maya", self.maya, maya),
            ("torch", self.torch, torch),
        ):
            if not there:
                return f"has no usable {what}: install {what} {here} there, in the environment that Ray runs in"
            if here and there != here:
                return f"has {what} {there}, this machine has {here}: install the same version on all nodes"
        return None if self.compiler else "has no C compiler: install gcc there"


def find_facts(version: str, address: str, folder: str) -> dict[str, Any]:
    """The facts of the machine that this runs on; with another version of Maya, only that version."""
    import platform

    facts: dict[str, Any] = {"python": platform.python_version(), "memory": 0}
    facts |= dict.fromkeys(("maya", "torch", "compiler", "interface", "folder"), "")
    try:
        from maya.version import __version__
    except ImportError:
        return facts
    facts["maya"] = __version__
    if __version__ == version:
        from maya.nodes.machine import own_facts

        facts |= own_facts(address, folder)
    return facts


def own_facts(address: str, folder: str) -> dict[str, Any]:
    """What this machine has, found out with Maya's own means."""
    import psutil

    from maya.doctor import available_memory
    from maya.nodes.job_folder import digest_of_folder
    from rank_runtime.build.errors import BuildError
    from rank_runtime.build.toolchain import find_c_compiler
    from rank_runtime.build.torch_install import find_torch

    facts: dict[str, Any] = {"memory": available_memory(), "folder": digest_of_folder(folder) if folder else ""}
    try:
        facts["torch"] = find_torch().version
    except BuildError:
        facts["torch"] = ""
    try:
        compiler = find_c_compiler()
        facts["compiler"] = compiler.version if compiler else ""
    except BuildError:
        facts["compiler"] = ""
    facts["interface"] = next(
        (name for name, found in psutil.net_if_addrs().items() if any(each.address == address for each in found)), ""
    )
    return facts
