"""Options of a what-if -> the settings of the replay, and a description of the changes.

In: the settings that a run was recorded with, and `WhatIfOptions`. Out: a `ChangedReplay`, or an error that names the
option, the mistake and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from maya.devices import Device
from maya.launcher.timing_options import TimingError, parse_changes
from maya.replay.run_settings import RunSettings, SettingsError, split_changes
from maya.util.catalogue import Catalogue
from maya.util.ranks import NoSuchRankError, parse_ranks, ranges
from maya.util.suggestions import did_you_mean
from maya.util.text import bytes_text, rate_text, time_text
from netmodel.cluster import ClusterError, cluster_path
from netmodel.cluster.faults import parse_fault

_TABLES = ("node", "fabric", "calibration", "host")
_LARGEST_FACTOR = 100  # of --slow-rank; more is a typing error


@dataclass(frozen=True)
class WhatIfOptions:
    """Options as the user gave them. None and empty: unchanged."""

    gpu: str | None = None
    cluster: str | None = None
    sets: Sequence[str] = ()
    slow_ranks: Sequence[str] = ()
    algo: str | None = None
    proto: str | None = None
    network: str | None = None
    host: str | None = None
    host_time: str | None = None
    faults: Sequence[str] = ()


@dataclass(frozen=True)
class Change:
    """One difference, as text."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class ChangedReplay:
    """The settings of a replay that differs from the recorded run."""

    settings: RunSettings
    slow_ranks: Mapping[int, int]  # rank -> factor of its kernel times, in thousandths
    changes: tuple[Change, ...]
    notes: tuple[str, ...]  # remarks on the changes


def apply_options(settings: RunSettings, options: WhatIfOptions) -> ChangedReplay:
    """The recorded settings with the options applied."""
    sets = _parse_sets(options.sets)
    _check_keys(settings, sets)
    gpu, notes = options.gpu, []
    other_cluster = options.cluster is not None
    after = settings.changed(cluster=options.cluster) if other_cluster else settings
    if other_cluster:
        cluster = after.load_cluster()
        gpu = gpu or cluster.gpu
        after, note = _placed(settings, after)
        notes += [note] if note else []
    for fault in options.faults:
        parse_fault(fault)
    nccl = {name: value for name, value in (("NCCL_ALGO", options.algo), ("NCCL_PROTO", options.proto)) if value}
    after = after.changed(
        gpu=gpu, changes=sets, network=options.network, nccl=nccl, host_time=options.host_time, host_file=options.host
    )
    after = replace(after, faults=(*after.faults, *options.faults)).with_host()
    slow = _slow_ranks(options.slow_ranks, settings.world_size)
    if gpu is not None and not other_cluster:
        notes.append(
            f"the cluster stays {settings.load_cluster().name}: use --cluster to change links and network as well"
        )
    changes = (*_described(settings, after, sets), *_slow_described(slow))
    return ChangedReplay(after, slow, changes, tuple(notes))


def _parse_sets(texts: Iterable[str]) -> dict[str, str]:
    try:
        return parse_changes(texts)
    except TimingError as error:
        raise SettingsError(str(error)) from None


def _check_keys(settings: RunSettings, sets: Mapping[str, str]) -> None:
    """Check the keys of --set. A key without a dot belongs to the GPU; the error suggests the table of other keys."""
    of_device = [each.metadata["key"] for each in fields(Device) if "key" in each.metadata]
    dotted = {key.rpartition(".")[2]: key for key in _dotted(_cluster_table(settings))}
    dotted |= {key.rpartition(".")[2]: f"host.{key}" for key in reversed(_dotted(settings.host.table()))}
    for key in sets:
        table = key.partition(".")[0]
        if "." not in key and key not in of_device:
            hint = f" (did you mean {dotted[key]}?)" if key in dotted else did_you_mean(key, [*of_device, *dotted])
            what = f'a GPU has no key "{key}"{hint}'
        elif "." in key and table not in _TABLES:
            what = f'there is no table "{table}"{did_you_mean(table, _TABLES)}'
        else:
            continue
        raise SettingsError(
            f"--set {key}: {what}; write keys of the cluster as node.nic_rate or fabric.routing, keys of "
            "the host as host.op"
        )


def _dotted(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key, value in table.items():
        found += _dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [f"{prefix}{key}"]
    return found


def _cluster_table(settings: RunSettings) -> dict[str, Any]:
    path = cluster_path(settings.cluster)
    return Catalogue(path.parent, "cluster", ClusterError).read(path)


def _placed(before: RunSettings, after: RunSettings) -> tuple[RunSettings, str]:
    """Place the ranks: they fill the nodes of the new cluster if they filled those of the old one, or if they would not
    fit otherwise."""
    old, new = before.load_cluster().gpus_per_node, after.load_cluster().gpus_per_node
    filled = before.ranks_per_node == old or before.ranks_per_node > new
    per_node = min(new, after.world_size) if filled and after.world_size > before.ranks_per_node else None
    if before.ranks_per_node > new:
        per_node = new
    if per_node is None or per_node == before.ranks_per_node:
        return after, ""
    note = (
        f"{per_node} ranks per node instead of {before.ranks_per_node}; process groups and the operations of each rank "
        "stay as recorded"
    )
    return replace(after, ranks_per_node=per_node), note


def _slow_ranks(texts: Iterable[str], world_size: int) -> dict[int, int]:
    """ "17:1.3" and "0-7:2" -> thousandths by rank."""
    found: dict[int, int] = {}
    for text in texts:
        ranks_text, colon, factor_text = text.rpartition(":")
        try:
            factor = round(float(factor_text) * 1000) if colon else 0
            ranks = parse_ranks(ranks_text, world_size=world_size) if colon else ()
        except NoSuchRankError as error:
            raise SettingsError(f'--slow-rank "{text}": {error}') from error
        except (ValueError, OverflowError):
            factor, ranks = 0, ()
        if not ranks or not 0 < factor <= _LARGEST_FACTOR * 1000:
            raise SettingsError(
                f'--slow-rank "{text}": expected RANKS:FACTOR, e.g. 17:1.3 or 0-7:1.1; FACTOR multiplies kernel times, '
                f"at most {_LARGEST_FACTOR}"
            )
        found |= dict.fromkeys(ranks, factor)
    return found


def _slow_described(slow: Mapping[int, int]) -> list[Change]:
    by_factor: dict[int, list[int]] = {}
    for rank in sorted(slow):
        by_factor.setdefault(slow[rank], []).append(rank)
    return [
        Change(f"kernels of rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}", "1 ×", f"{factor / 1000:g} ×")
        for factor, ranks in sorted(by_factor.items())
        if factor != 1000
    ]


def _described(before: RunSettings, after: RunSettings, sets: Mapping[str, str]) -> list[Change]:
    changes = []
    for what, old, new in (
        ("GPU", before.device().name, after.device().name),
        ("cluster", before.load_cluster().name, after.load_cluster().name),
        ("ranks per node", str(before.ranks_per_node), str(after.ranks_per_node)),
        ("network", before.network, after.network),
        ("host", before.host_file, after.host_file),
        ("host time", before.host_time, after.host_time),
    ):
        if old != new:
            changes.append(Change(what, old, new))
    described = {each.what for each in changes}
    for what, old, new in (("GPU", before.gpu, after.gpu), ("cluster", before.cluster, after.cluster)):
        if old != new and what not in described:  # the user's own file, with the same name inside
            changes.append(Change(what, old, new))
    for name in sorted({*before.nccl, *after.nccl}):
        old, new = before.nccl.get(name, "not set"), after.nccl.get(name, "not set")
        if old != new:
            changes.append(Change(name, old, new))
    for key, value in sets.items():
        old = _value_of(before, key)
        if old != value:
            changes.append(Change(key, old, value))
    changes += [Change("link", "as in the cluster file", str(parse_fault(fault))) for fault in after.faults
                if fault not in before.faults]  # fmt: skip
    return changes


def _value_of(settings: RunSettings, key: str) -> str:
    """The value of a key before a change, as far as a file says it."""
    if key in settings.changes:
        return settings.changes[key]
    [of] = [name for name, keys in split_changes({key: ""}).items() if keys]
    if of == "gpu":
        return _of_device(settings.device(), key)
    if key == "host.scale":
        return f"{settings.host.scale / 1000:g}"
    if of == "host":
        return _of_table(settings.host.table(), key.removeprefix("host."), times=True)
    return _of_table(_cluster_table(settings), key, times=False)


def _of_device(device: Device, key: str) -> str:
    for each in fields(device):
        if each.metadata.get("key") == key:
            value = getattr(device, each.name)
            if value is None:
                return "not set"
            for ending, written in (("bandwidth", rate_text), ("bytes", bytes_text)):
                if each.name.endswith(ending):
                    return written(value)
            return f"{value:,}" if isinstance(value, int) else str(value)
    return "not set"


def _of_table(table: Mapping[str, Any], key: str, *, times: bool) -> str:
    found: Any = table
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is None:
        return "not set"
    if times and isinstance(found, int):
        return time_text(found)
    return str(found).lower() if isinstance(found, bool) else str(found)
