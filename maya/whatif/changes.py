"""What is to be different: options of the command line -> the settings of a replay, and what they change in words.

In: the settings that a run was recorded with, and `Wanted`. Out: `Changed`, or one error that names the option, what is
wrong and what would be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from maya.devices import Device
from maya.launcher.timing_options import TimingError, parse_changes
from maya.replay.run_settings import RunSettings, SettingsError, split_changes
from maya.util.catalogue import Catalogue
from maya.util.ranks import parse_ranks, ranges
from maya.util.suggestions import did_you_mean
from maya.util.units import format_bytes, format_nanoseconds, format_rate
from netmodel.cluster import ClusterError, cluster_path
from netmodel.cluster.faults import parse_fault

_TABLES = ("node", "fabric", "calibration", "host")
_SLOWEST = 100  # times as long; more than that is a mistake in writing


@dataclass(frozen=True)
class Wanted:
    """Options as the user gave them; None and empty: as it was."""

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
    """One difference, for people."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Changed:
    """A replay that differs."""

    settings: RunSettings
    slow_ranks: Mapping[int, int]  # rank -> thousandths of the time that its kernels should take
    changes: tuple[Change, ...]
    notes: tuple[str, ...]  # what the reader should know about them


def change(settings: RunSettings, wanted: Wanted) -> Changed:
    """The settings with what is wanted."""
    sets = _parse_sets(wanted.sets)
    _check_keys(settings, sets)
    gpu, notes = wanted.gpu, []
    other_cluster = wanted.cluster is not None
    after = settings.changed(cluster=wanted.cluster) if other_cluster else settings
    if other_cluster:
        cluster = after.load_cluster()
        gpu = gpu or cluster.gpu
        after, note = _placed(settings, after)
        notes += [note] if note else []
    for fault in wanted.faults:
        parse_fault(fault)
    nccl = {name: value for name, value in (("NCCL_ALGO", wanted.algo), ("NCCL_PROTO", wanted.proto)) if value}
    after = after.changed(
        gpu=gpu, changes=sets, network=wanted.network, nccl=nccl, host_time=wanted.host_time, host_file=wanted.host
    )
    after = replace(after, faults=(*after.faults, *wanted.faults)).with_host()
    slow = _slow_ranks(wanted.slow_ranks, settings.world_size)
    if gpu is not None and not other_cluster:
        notes.append(f"the cluster stays {settings.load_cluster().name}: --cluster changes links and network, too")
    changes = (*_described(settings, after, sets), *_slow_described(slow))
    return Changed(after, slow, changes, tuple(notes))


def _parse_sets(texts: Iterable[str]) -> dict[str, str]:
    try:
        return parse_changes(texts)
    except TimingError as error:
        raise SettingsError(str(error)) from None


def _check_keys(settings: RunSettings, sets: Mapping[str, str]) -> None:
    """A key without a dot is a GPU's; who forgot that others have one is told."""
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
            f"--set {key}: {what}; keys of the cluster are written as in node.nic_rate and fabric.routing, those of "
            "the host as in host.op"
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
    """Ranks fill the new cluster's nodes where they filled the old one's, or where they would not fit."""
    old, new = before.load_cluster().gpus_per_node, after.load_cluster().gpus_per_node
    filled = before.ranks_per_node == old or before.ranks_per_node > new
    per_node = min(new, after.world_size) if filled and after.world_size > before.ranks_per_node else None
    if before.ranks_per_node > new:
        per_node = new
    if per_node is None or per_node == before.ranks_per_node:
        return after, ""
    note = (
        f"{per_node} ranks per node instead of {before.ranks_per_node}; process groups and what each rank does stay "
        "as recorded"
    )
    return replace(after, ranks_per_node=per_node), note


def _slow_ranks(texts: Iterable[str], world_size: int) -> dict[int, int]:
    """ "17:1.3" and "0-7:2" -> thousandths by rank."""
    found: dict[int, int] = {}
    for text in texts:
        ranks_text, colon, factor_text = text.rpartition(":")
        try:
            factor = round(float(factor_text) * 1000) if colon else 0
            ranks = parse_ranks(ranks_text) if colon else ()
        except (ValueError, OverflowError):
            factor, ranks = 0, ()
        if not ranks or not 0 < factor <= _SLOWEST * 1000:
            raise SettingsError(
                f'--slow-rank "{text}": expected a rank (or ranks) and how many times as long its kernels take, '
                "e.g. 17:1.3 or 0-7:1.1"
            )
        outside = [rank for rank in ranks if rank >= world_size]
        if outside:
            raise SettingsError(
                f'--slow-rank "{text}": there is no rank {outside[0]}; the run has ranks 0 to {world_size - 1}'
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
        if old != new and what not in described:  # a file of the user's own, under the same name
            changes.append(Change(what, old, new))
    for name in sorted({*before.nccl, *after.nccl}):
        old, new = before.nccl.get(name, "not set"), after.nccl.get(name, "not set")
        if old != new:
            changes.append(Change(name, old, new))
    for key, value in sets.items():
        old = _value_of(before, key)
        if old != value:
            changes.append(Change(key, old, value))
    changes += [Change("link", "as the cluster's file says", str(parse_fault(fault))) for fault in after.faults
                if fault not in before.faults]  # fmt: skip
    return changes


def _value_of(settings: RunSettings, key: str) -> str:
    """A value as it was before a change, as far as a file says it."""
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
            for ending, written in (("bandwidth", format_rate), ("bytes", format_bytes)):
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
        return format_nanoseconds(found)
    return str(found).lower() if isinstance(found, bool) else str(found)
