"""Everything besides the traces that a timeline depends on: GPU, cluster, network, host costs, placement of ranks.

In: the user's choices, or `run.json` in a run's folder, written when the job starts. Out: `RunSettings`; `changed`
returns other settings for a what-if.

Changes are `key=value`, as after --set: keys of the cluster file have a dot (node.nic_rate, fabric.routing,
calibration.simple.launch), keys of the host begin with "host." (host.op, host.calls.kernel), all others are keys of the
GPU file (memory_bandwidth).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maya.devices import Device, load_device
from maya.hosts.costs import NO_COSTS, REFERENCE, HostCosts, HostError, load_host, without_host_time
from maya.util.catalogue import as_table
from maya.util.files import write_atomically
from maya.util.ranks import MOST_RANKS
from maya.util.suggestions import did_you_mean, listed
from netmodel.cluster import Cluster, load_cluster, with_faults
from netmodel.cluster.faults import parse_fault
from netmodel.collectives.nccl_settings import VARIABLES, NcclSettings, read_settings

if TYPE_CHECKING:
    from maya.replay.collective_times import CollectiveTimes
    from maya.replay.kernel_durations import KernelDurations

__all__ = ["NO_COSTS", "HostCosts", "HostError", "RunSettings", "SettingsError", "nccl_variables", "split_changes"]

FILE = "run.json"
VERSION = 1
NETWORKS = ("analytic", "flow")
CLOCKS = ("virtual", "wall")
HOST_TIMES = ("model", "zero", "measured")

_HOST = "host."


class SettingsError(ValueError):
    """Invalid or contradictory settings, or an unreadable run.json."""


@dataclass(frozen=True)
class RunSettings:
    """Where and how a job ran. Paths of files are absolute, or relative to the run's folder."""

    world_size: int
    ranks_per_node: int
    gpu: str  # name or file of a device
    cluster: str  # name or file of a cluster
    host: HostCosts
    network: str = "analytic"  # or "flow"
    nccl: Mapping[str, str] = field(default_factory=dict)  # NCCL_* variables that affect algorithms
    changes: Mapping[str, str] = field(default_factory=dict)  # of keys of the cluster, the GPU and the host
    host_time: str = "model"  # or "zero", or "measured": host times from the traces
    host_file: str = REFERENCE  # name or file of a host
    clock: str = "virtual"  # or "wall": the time that the script sees
    packs: tuple[str, ...] = ()  # files of measured kernel times
    faults: tuple[str, ...] = ()  # of the cluster's links, in the format of --fault
    injected: tuple[str, ...] = ()  # faults of --inject, for information: links are in `faults`, delays in traces
    schedule_seed: int | None = None  # of --schedule-seed, for information
    inductor: str = ""  # the folder of torch.compile's sources
    script: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # of the results: see maya/results/result.py

    @property
    def faulty_ranks(self) -> frozenset[int]:
        """The ranks with an injected fault of their own."""
        found = (re.search(r"[:,]rank=(\d+)", text) for text in self.injected)
        return frozenset(int(match[1]) for match in found if match is not None)

    # ---- files ----

    def save(self, folder: Path) -> None:
        """Write run.json atomically."""
        content = {"version": VERSION, **{each.name: getattr(self, each.name) for each in fields(self)}}
        content |= {"host": self.host.table()}
        write_atomically(folder / FILE, json.dumps(content, indent=2) + "\n")

    @staticmethod
    def load(folder: Path) -> RunSettings:
        """The settings in run.json of a run's folder."""
        file = folder / FILE
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError(
                f"{file}: {error.strerror}; give the folder of a run of maya-torchrun, which has a {FILE}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"{file}: not valid JSON: {error}") from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            found = content.get("version") if isinstance(content, dict) else None
            raise SettingsError(
                f"{file} has version {found}; this Maya reads version {VERSION}. Run the job again with this Maya."
            )
        return _from_content(file, content)

    # ---- objects that the settings name ----

    def device(self) -> Device:
        """The GPU, with the changes of its keys."""
        return load_device(self.gpu, self._of("gpu"))

    def load_cluster(self) -> Cluster:
        """The cluster, with the changes of its keys and its faults."""
        return with_faults(load_cluster(self.cluster, self._of("cluster")), map(parse_fault, self.faults))

    def nccl_settings(self) -> NcclSettings:
        return read_settings(self.nccl)

    def collective_times(self) -> CollectiveTimes:
        from maya.replay.collective_times import CollectiveTimes  # only here: the launcher starts at once

        return CollectiveTimes(self.load_cluster(), self.nccl_settings(), self.world_size, self.ranks_per_node)

    def durations(self, run_folder: Path, *, online: bool = False) -> KernelDurations:
        """Durations of kernels. `online`: while the job runs, sources of compiled kernels still appear and are kept."""
        from maya.replay.kernel_durations import KernelDurations

        packs = [Path(pack) for pack in self.packs]
        if not online:
            return KernelDurations(self.device(), packs, self.inductor_folder(run_folder))
        inductor = Path(self.inductor) if self.inductor else None
        return KernelDurations(self.device(), packs, inductor, keep=run_folder / "inductor")

    def inductor_folder(self, run_folder: Path) -> Path | None:
        """The folder with the sources of compiled kernels: the copy in the run's folder, or else torch.compile's."""
        if (run_folder / "inductor").is_dir():
            return run_folder / "inductor"
        return Path(self.inductor) if self.inductor and Path(self.inductor).is_dir() else None

    def _of(self, what: str) -> dict[str, str]:
        return split_changes(self.changes)[what]

    # ---- other settings ----

    def changed(
        self,
        *,
        gpu: str | None = None,
        cluster: str | None = None,
        changes: Mapping[str, str] | None = None,
        network: str | None = None,
        nccl: Mapping[str, str] | None = None,
        host_time: str | None = None,
        host_file: str | None = None,
    ) -> RunSettings:
        """The same job with other settings. `changes` and `nccl` add to those of the job. If the GPU, the cluster or
        the host is replaced, its changes are dropped, and with the cluster its faults."""
        parts = split_changes(self.changes)
        kept = {
            **({} if gpu is not None else parts["gpu"]),
            **({} if cluster is not None else parts["cluster"]),
            **({} if host_file is not None else {_HOST + key: value for key, value in parts["host"].items()}),
        }
        made = replace(
            self,
            gpu=self.gpu if gpu is None else gpu,
            cluster=self.cluster if cluster is None else cluster,
            faults=self.faults if cluster is None else (),
            network=self.network if network is None else network,
            nccl={**self.nccl, **(nccl or {})},
            changes={**kept, **(changes or {})},
            host_time=self.host_time if host_time is None else host_time,
            host_file=self.host_file if host_file is None else host_file,
        )
        return made if _same_host(made, self) else made.with_host()

    def with_host(self) -> RunSettings:
        """With the costs of the host that these settings name: its file, then `[host]` of the cluster file, then
        changes. Loads everything that the settings name, so that mistakes are found here."""
        _check_choice("network", self.network, NETWORKS)
        _check_choice("clock", self.clock, CLOCKS)
        _check_choice("host time", self.host_time, HOST_TIMES)
        device, cluster = self.device(), self.load_cluster()
        self.nccl_settings()
        changes = self._of("host")
        more = {f"[host] of the cluster {self.cluster}": dict(cluster.host)} if cluster.host else {}
        if changes:
            more["--set"] = as_table(changes)
        costs = load_host(self.host_file, device, more)
        return replace(self, host=without_host_time(costs) if self.host_time == "zero" else costs)


def split_changes(changes: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The changes by their target: "cluster", "gpu" or "host"."""
    parts: dict[str, dict[str, str]] = {"cluster": {}, "gpu": {}, "host": {}}
    for key, value in changes.items():
        if key.startswith(_HOST):
            parts["host"][key.removeprefix(_HOST)] = value
        else:
            parts["cluster" if "." in key else "gpu"][key] = value
    return parts


def nccl_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that affect how NCCL carries out collectives."""
    return {name: environment[name] for name in VARIABLES if environment.get(name, "").strip()}


def _same_host(one: RunSettings, other: RunSettings) -> bool:
    keys = ("gpu", "cluster", "changes", "host_time", "host_file")
    return all(getattr(one, key) == getattr(other, key) for key in keys)


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingsError(f'"{value}" is not a valid {what}; use {listed(choices, "or")}')


_TYPES: dict[str, type | tuple[type, ...]] = {
    "world_size": int,
    "ranks_per_node": int,
    "gpu": str,
    "cluster": str,
    "host": dict,
    "network": str,
    "nccl": dict,
    "changes": dict,
    "host_time": str,
    "host_file": str,
    "clock": str,
    "packs": list,
    "faults": list,
    "injected": list,
    "schedule_seed": (int, type(None)),
    "inductor": str,
    "script": str,
    "options": dict,
}
_FILES = ("gpu", "cluster", "host_file")


def _from_content(file: Path, content: dict[str, Any]) -> RunSettings:
    values = {key: value for key, value in content.items() if key != "version"}
    for key, value in values.items():
        if key not in _TYPES:
            raise SettingsError(f'{file}: unknown key "{key}"{did_you_mean(key, _TYPES)}')
        if not isinstance(value, _TYPES[key]) or isinstance(value, bool):
            raise SettingsError(f"{file}: {key} is {value!r}, which has the wrong type")
    missing = [key for key in ("world_size", "ranks_per_node", "gpu", "cluster", "host") if key not in values]
    if missing:
        raise SettingsError(f"{file}: {missing[0]} is missing")
    for key in ("world_size", "ranks_per_node"):
        if not 0 < values[key] <= MOST_RANKS:
            raise SettingsError(f"{file}: {key} is {values[key]}; a job has 1 to {MOST_RANKS} ranks")
    for key in ("nccl", "changes", "packs", "faults", "injected"):
        inner = values.get(key, ())
        for value in inner.values() if isinstance(inner, dict) else inner:
            if not isinstance(value, str):
                raise SettingsError(f"{file}: {key} has {value!r}, which is no text")
    for key, value in values.items():
        if isinstance(value, str) and "\0" in value:
            raise SettingsError(f"{file}: {key} is {value!r}, which has a zero byte")
    for key in _FILES:
        if (file.parent / values.get(key, "")).is_file():  # a copy in the run's folder
            values[key] = str(file.parent / values[key])
    values["host"] = HostCosts.of_table(f"{file}: host", values["host"])
    for key in ("packs", "faults", "injected"):
        values[key] = tuple(map(str, values.get(key, ())))
    return RunSettings(**values)
