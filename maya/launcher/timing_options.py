"""Options of maya-torchrun about time: the clock that the script reads, and the models behind its timeline.

In: the parsed command line. Out: a `Timing`. Settings of GPUs, clusters and hosts are checked where these are read.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

CLOCKS = ("virtual", "wall")
HOST_TIMES = ("model", "zero", "measured")
NETWORKS = ("analytic", "flow")


class TimingError(ValueError):
    """Options that are invalid or contradict each other."""


@dataclass(frozen=True)
class Timing:
    """The user's choices about time and results."""

    clock: str = "virtual"
    timeline: bool = True  # compute it when the job is over
    host_time: str = "model"
    host: str | None = None  # name or file; None: the reference
    network: str = "analytic"
    packs: tuple[str, ...] = ()
    changes: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)  # options of the results, as run.json has them

    def of_cluster(self) -> dict[str, str]:
        return {key: value for key, value in self.changes.items() if "." in key and not key.startswith("host.")}

    def of_gpu(self) -> dict[str, str]:
        return {key: value for key, value in self.changes.items() if "." not in key}


def add_set_option(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one key of the cluster (node.nic_rate=200Gbps), the GPU (power=500W) or the host (host.op=5us); "
        "may be repeated",
    )


def add_options(time: argparse._ArgumentGroup, results: argparse._ArgumentGroup) -> None:
    """The options of the time model, and those of the results."""
    time.add_argument(
        "--network",
        choices=NETWORKS,
        help="collectives in the timeline: analytic, each alone; flow, sharing links (default: analytic)",
    )
    time.add_argument(
        "--host-time",
        choices=HOST_TIMES,
        help="time of the nodes' CPUs: model, costs per op and call; zero; measured, the time that the script takes "
        "here (default: model)",
    )
    time.add_argument(
        "--host",
        metavar="NAME|FILE",
        help="costs of the nodes' CPUs: a name in the catalogue, or a TOML file (default: reference)",
    )
    time.add_argument(
        "--clock",
        choices=CLOCKS,
        help="clock that the script reads: virtual, the predicted time; wall, the time of this machine (default: "
        "virtual)",
    )
    time.add_argument(
        "--pack",
        action="append",
        default=[],
        metavar="FILE",
        help="kernel times of your own GPU, from maya calibrate; may be repeated",
    )
    results.add_argument(
        "--tokens-per-step", type=_positive, metavar="N", help="tokens of the whole job (default: from its inputs)"
    )
    results.add_argument("--price-per-gpu-hour", type=_price, metavar="PRICE", help="add the price to the results")
    results.add_argument(
        "--steps-from",
        metavar="NAME",
        help="end a step where an annotation (torch.profiler.record_function) of this name ends (default: optimizer "
        "steps)",
    )
    results.add_argument(
        "--trace-ranks",
        metavar="LIST",
        help="ranks to write Kineto traces for: 0,8-15, all or none (default: one of each rank class)",
    )
    results.add_argument("--no-timeline", action="store_true", help="record traces, but predict nothing")


def read_options(options: argparse.Namespace) -> Timing:
    """The choices; contradictory ones are refused."""
    if options.no_trace and options.host_time == "measured":
        raise TimingError("--host-time measured and --no-trace exclude each other: the trace holds the host times")
    if options.no_trace and options.clock == "virtual":
        raise TimingError("--clock virtual and --no-trace exclude each other: the clock counts what is recorded")
    timeline = not (options.no_timeline or options.no_trace)
    unused = {
        "--network": options.network,
        "--steps-from": options.steps_from,
        "--tokens-per-step": options.tokens_per_step,
        "--price-per-gpu-hour": options.price_per_gpu_hour,
        "--trace-ranks": options.trace_ranks,
    }
    for name, value in unused.items():
        if value is not None and not timeline:
            other = "--no-timeline" if options.no_timeline else "--no-trace"
            raise TimingError(f"{name} and {other} exclude each other: without a timeline it has no effect")
    if options.host is not None and options.host_time == "zero":
        raise TimingError(f"--host {options.host} and --host-time zero exclude each other")
    results = {
        "steps_from": options.steps_from,
        "tokens_per_step": options.tokens_per_step,
        "price_per_gpu_hour": options.price_per_gpu_hour,
        "trace_ranks": options.trace_ranks,
    }
    return Timing(
        clock=options.clock or ("wall" if options.no_trace else "virtual"),
        timeline=timeline,
        host_time=options.host_time or "model",
        host=options.host,
        network=options.network or "analytic",
        packs=tuple(options.pack),
        changes=parse_changes(options.set),
        results={key: value for key, value in results.items() if value is not None},
    )


def parse_changes(texts: Iterable[str]) -> dict[str, str]:
    """The KEY=VALUE texts of --set, by key."""
    changes: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise TimingError(f"--set {text}: expected KEY=VALUE, e.g. node.nic_rate=200Gbps")
        if changes.get(key, value) != value:
            raise TimingError(f"--set {key}={changes[key]} and --set {text} exclude each other")
        changes[key] = value
    return changes


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _price(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price; write a number, e.g. 2.5")
    return float(text)
