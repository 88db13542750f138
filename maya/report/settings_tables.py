"""The settings that a report's numbers depend on, as tables of names and values.

In: `RunSettings` and the device. Out: one table each for the job, the cluster, the GPU and the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from maya.devices import Device
from maya.replay.run_settings import RunSettings
from maya.util.text import bytes_text, rate_text, time_text

_FACTORS: dict[str, Callable[[int], str]] = {  # host costs that are factors, in thousandths
    "overlap": lambda value: f"{value / 10:g} %",
    "scale": lambda value: f"{value / 1000:g} ×",
}

Tables = list[tuple[str, list[tuple[str, str]]]]


def settings_tables(settings: RunSettings, device: Device) -> Tables:
    """The tables of the job, with changed settings, the cluster, the GPU and the host."""
    cluster = settings.load_cluster()
    job = [
        ("script", settings.script),
        ("ranks", str(settings.world_size)),
        ("ranks per node", str(settings.ranks_per_node)),
        ("clock", settings.clock),
        ("network model", settings.network),
        ("host time", settings.host_time),
        *sorted(settings.nccl.items()),
        *((f"--set {key}", value) for key, value in settings.changes.items()),
        *(("--fault", fault) for fault in settings.faults),
        *((key, str(value)) for key, value in sorted(settings.options.items())),
    ]
    network = [
        ("name", cluster.name),
        ("GPUs per node", str(cluster.gpus_per_node)),
        ("GPU links", f"{cluster.gpu_link}, {rate_text(cluster.gpu_link_rate)} one way"),
        ("NICs per node", f"{cluster.nics_per_node} × {rate_text(cluster.nic_rate, bits=True)}"),
        ("fabric", f"{cluster.fabric.kind}, {cluster.fabric.routing} routing"),
        ("parameters", cluster.parameters.origin),
        ("sources", cluster.sources),
    ]
    host = [
        (key, _FACTORS[key](value) if key in _FACTORS else time_text(value))
        for key, value in settings.host.table().items()
        if key != "calls"
    ]
    host += [(f"call: {kind.name.lower()}", time_text(ns)) for kind, ns in sorted(settings.host.calls.items())]
    return [("Job", [row for row in job if row[1]]), ("Cluster", network), ("GPU", _device(device)), ("Host", host)]


def _device(device: Device) -> list[tuple[str, str]]:
    return [
        (each.metadata.get("key", each.name), _text(each.name, value))
        for each in fields(device)
        if (value := getattr(device, each.name)) is not None
    ]


def _text(name: str, value: str | int | tuple[int, int]) -> str:
    if isinstance(value, tuple):
        return "{}.{}".format(*value)
    if isinstance(value, str):
        return value
    if name.endswith("_bytes"):
        return bytes_text(value)
    if name.endswith("_bandwidth"):
        return rate_text(value)
    if name.endswith("_flops"):
        return f"{value / 1e12:g} TFLOPS"
    if name.endswith("_hz"):
        return f"{value / 1e6:g} MHz"
    return f"{value:,}"
