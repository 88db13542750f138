"""The machines of a job with --ray: the nodes of a Ray cluster.

In: `LaunchOptions` with the address of the cluster, and the build of this machine. Out: `JobMachines`, with an agent on
each node that is to get ranks; all agents have ended when the context ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from maya.launcher.arguments import LaunchOptions, UsageError
from maya.launcher.capacity import ZYGOTE_BYTES, bytes_per_rank
from maya.launcher.machines import JobMachines, Placement
from maya.nodes.job_folder import JobFolder, choose_folder, size_of_folder
from maya.nodes.job_nodes import JobNodes, NodesError
from maya.nodes.machine import Machine
from maya.nodes.placement import place_ranks
from maya.nodes.ray_cluster import RayNodes
from maya.util.text import bytes_text
from rank_runtime.build import Build

_MOST_NAMES = 4


@contextmanager
def open_ray_machines(launch: LaunchOptions, build: Build, say: Callable[[str], None]) -> Iterator[JobMachines]:
    """Raises UsageError if the cluster cannot run the job."""
    assert launch.ray is not None
    folder = choose_folder(launch.script, is_module=launch.module, environment=os.environ)
    try:
        with RayNodes(launch.ray, folder, launch.ray_resources) as cluster:
            machines = cluster.usable(build.torch_version)

            def place(ranks: Sequence[int], nodes: Sequence[str]) -> dict[str, list[int]]:
                chosen = [each for each in machines if each.name in nodes]
                rank_bytes = bytes_per_rank(shared=launch.shares_modules)
                return place_ranks(ranks, launch.ranks_per_node, chosen, rank_bytes, ZYGOTE_BYTES)

            names = _names(launch, machines, place)
            _say_folder(folder, [name for name in cluster.copied_to() if name in names], say)
            with JobNodes(cluster, cluster.address, names, build.torch_version, say, folder=folder.path) as running:
                yield JobMachines(running, place, say)
    except NodesError as error:
        raise UsageError(str(error)) from error


def _names(launch: LaunchOptions, machines: Sequence[Machine], place: Placement) -> list[str]:
    """The machines that get ranks; all of them, if it is not known yet which ranks are to be processes."""
    names = [each.name for each in machines]
    if launch.finds_representatives:
        with suppress(NodesError):  # not all ranks fit, but then not all will be processes
            return [name for name, ranks in place(launch.processes, names).items() if ranks]
        return names
    return [name for name, ranks in place(launch.processes, names).items() if ranks]


def _say_folder(folder: JobFolder, copied: Sequence[str], say: Callable[[str], None]) -> None:
    if not copied:
        return
    named = ", ".join(copied) if len(copied) <= _MOST_NAMES else f"{copied[0]} and {len(copied) - 1} other nodes"
    size = bytes_text(size_of_folder(str(folder.path)))
    say(f"{folder.path} ({size}) is copied to {named}; what ranks write below it there is removed at the end")
