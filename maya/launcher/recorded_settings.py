"""Records the settings of a run for later replays: run.json, and copies of the user's files.

In: a `LaunchOptions`, its GPU, the fake libraries, the environment, and a folder for the run. Out: `RunSettings`,
written into the folder when the job starts.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from maya.devices import Device, DeviceError, flattened
from maya.hosts.costs import REFERENCE, HostError, host_path
from maya.launcher.arguments import LaunchOptions, UsageError, fitting_cluster
from maya.replay.run_settings import NO_COSTS, RunSettings, SettingsError, nccl_variables
from netmodel.cluster import ClusterError, cluster_path
from netmodel.collectives.nccl_settings import NcclSettingsError
from rank_runtime.build import Build
from rank_runtime.environment import rank_environment


def make_settings(launch: LaunchOptions, device: Device, build: Build, environment: Mapping[str, str]) -> RunSettings:
    """Settings from the command line and the environment. Raises `UsageError` if they are contradictory."""
    timing = launch.timing
    variables = rank_environment(build, device.cuda_properties(), {}, environment)
    try:
        _check_packs(timing.packs)
        settings = RunSettings(
            world_size=launch.world_size,
            ranks_per_node=launch.ranks_per_node,
            gpu=launch.gpu,
            cluster=launch.cluster_file or fitting_cluster(device),
            host=NO_COSTS,
            network=timing.network,
            nccl=nccl_variables(environment),
            changes=timing.changes,
            host_time=timing.host_time,
            host_file=timing.host or REFERENCE,
            clock=timing.clock,
            packs=tuple(str(Path(pack).absolute()) for pack in timing.packs),
            inductor=variables["TORCHINDUCTOR_CACHE_DIR"],
            script=launch.script,
            options=timing.results,
            faults=launch.injection.links,
            injected=launch.injection.texts(),
            schedule_seed=launch.injection.seed,
        )
        if settings.faults:
            settings.collective_times()  # reports links that do not exist before the job starts
        return settings.with_host()
    except (SettingsError, DeviceError, ClusterError, HostError, NcclSettingsError) as error:
        raise UsageError(str(error)) from error


def _check_packs(packs: Sequence[str]) -> None:
    for pack in packs:
        if not Path(pack).is_file():
            raise UsageError(f"--pack {pack}: no such file; maya calibrate creates one")
    if packs:
        from maya.estimators.pack import PackError  # imports numpy
        from maya.estimators.pack_check import checked_pack

        try:
            for pack in packs:
                checked_pack(Path(pack))
        except PackError as error:
            raise UsageError(f"--pack {error}") from error


def write_settings(settings: RunSettings, folder: Path) -> None:
    """Write run.json, and copy the files that are not in Maya's own catalogues beside it."""
    try:
        cluster = cluster_path(settings.cluster)
        host = host_path(settings.host_file)
        own_gpu = flattened(settings.gpu)
        if own_gpu is not None:
            (folder / "gpu.toml").write_text(own_gpu, encoding="utf-8")
            settings = replace(settings, gpu="gpu.toml")
        if cluster.parent != cluster_path("dgx-h100").parent:
            shutil.copyfile(cluster, folder / "cluster.toml")
            settings = replace(settings, cluster="cluster.toml")
        if host.parent != host_path(REFERENCE).parent:
            shutil.copyfile(host, folder / "host.toml")
            settings = replace(settings, host_file="host.toml")
        settings.save(folder)
    except OSError as error:
        raise UsageError(f"cannot write the settings of the run to {folder}: {error.strerror}") from error
