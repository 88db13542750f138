"""`maya gpus`, `maya clusters`, `maya hosts`: list the catalogues, or show one entry.

All lists have a title line, and the name to write after an option in the first column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click

from maya.cli.parameter_types import CatalogueType
from maya.cli.tables import print_table
from maya.util.text import bytes_text, rate_text, time_text

_LINKS = {"nvswitch": "NVSwitch", "nvlink-mesh": "NVLink mesh", "pcie": "PCIe"}


@click.command(short_help="List the GPUs of the catalogue.")
@click.argument("gpu", type=CatalogueType("gpu"), required=False)
def gpus(gpu: str | None) -> None:
    """List the GPUs of the catalogue, or show all keys of one (a name, or a TOML file)."""
    from maya.devices import DeviceError, load_device

    try:
        if gpu is None:
            list_gpus()
            return
        device = load_device(gpu)
    except DeviceError as error:
        raise click.ClickException(str(error)) from error
    _print_keys({each.name: getattr(device, each.name) for each in fields(device)})


@click.command(short_help="List the clusters of the catalogue.")
@click.argument("cluster", type=CatalogueType("cluster"), required=False)
def clusters(cluster: str | None) -> None:
    """List the clusters of the catalogue, or show the file of one. `maya net show CLUSTER` draws it."""
    from netmodel.cluster import ClusterError, cluster_path

    try:
        if cluster is None:
            list_clusters()
            return
        click.echo(cluster_path(cluster).read_text(encoding="utf-8"), nl=False)
    except ClusterError as error:
        raise click.ClickException(str(error)) from error


@click.command(short_help="List the hosts of the catalogue.")
@click.argument("host", type=CatalogueType("host"), required=False)
@click.option(
    "--gpu",
    type=CatalogueType("gpu"),
    metavar="NAME|FILE",
    default="h100",
    show_default=True,
    help="GPU that the host launches work on.",
)
def hosts(host: str | None, gpu: str) -> None:
    """List the hosts (CPUs of training nodes) of the catalogue, or show all costs of one."""
    from maya.devices import load_device
    from maya.hosts import load_host

    try:
        if host is None:
            _list_hosts(gpu)
            return
        costs = load_host(host, load_device(gpu))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    _print_keys({key: _cost(key, value) for key, value in _flat(costs.table()).items()})


def list_gpus() -> None:
    from maya.devices import device_names, load_device

    rows = [("gpu", "compute", "SMs", "memory", "bandwidth", "fp16", "NVLink", "name")]
    for device in map(load_device, device_names()):
        nvlink = rate_text(device.nvlink_bandwidth) if device.nvlink_bandwidth else "-"
        rows.append(
            (
                device.key,
                "sm {}.{}".format(*device.compute_capability),
                str(device.sm_count),
                bytes_text(device.memory_bytes),
                rate_text(device.memory_bandwidth),
                f"{device.fp16_flops / 1e12:.0f} TFLOPS",
                nvlink,
                device.name,
            )
        )
    print_table(rows, right=(2, 3, 4, 5, 6))


def list_clusters() -> None:
    from netmodel.cluster import cluster_names, load_cluster

    rows = [("cluster", "gpu", "per node", "link", "rate", "NICs", "fabric", "name")]
    for cluster in map(load_cluster, cluster_names()):
        rows.append(
            (
                cluster.key,
                cluster.gpu,
                str(cluster.gpus_per_node),
                _LINKS[cluster.gpu_link],
                rate_text(cluster.gpu_link_rate),
                f"{cluster.nics_per_node} × {rate_text(cluster.nic_rate, bits=True)}",
                cluster.fabric.kind,
                cluster.name,
            )
        )
    print_table(rows, right=(2, 4))


def _list_hosts(gpu: str) -> None:
    from maya.devices import load_device
    from maya.hosts import host_names, host_title, load_host
    from maya.trace.format import RecordKind

    device = load_device(gpu)
    rows: list[tuple[str, ...]] = [("host", "op", "kernel launch", "collective", "latency", "wake", "name")]
    for name in host_names():
        costs = load_host(name, device)
        calls = (costs.calls.get(kind, 0) for kind in (RecordKind.KERNEL, RecordKind.COLLECTIVE))
        times = (costs.op, *calls, costs.latency, costs.wake)
        rows.append((name, *map(time_text, times), host_title(name)))
    print_table(rows, right=(1, 2, 3, 4, 5))


def _print_keys(table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if value is not None:
            click.echo(f"{key:<34}{_text(value)}")


def _text(value: str | int | tuple[int, int]) -> str:
    if isinstance(value, tuple):
        return "{}.{}".format(*value)
    return f"{value:,}" if isinstance(value, int) else value


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _cost(key: str, value: int) -> str:
    return f"{value / 1000:g}" if key in ("overlap", "scale") else time_text(value)
