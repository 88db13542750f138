"""Options of maya-torchrun that are about time: which clock the script sees, and what its timeline is made of.

In: the parsed command line. Out: a `Timing`. Settings that belong to GPUs, clusters and hosts are checked where these
are read (settings).
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
    """Options that cannot be meant together, or as they stand."""


@dataclass(frozen=True)
class Timing:
    """What the user wants to know about time."""

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the group "time"."""
    time = parser.add_argument_group("Maya: time")
    time.add_argument("--clock", choices=CLOCKS, help="what the script's clocks tell: predicted or real time (virtual)")
    time.add_argument(
        "--host-time",
        choices=HOST_TIMES,
        help="time of the nodes' CPUs: by a model, none, or what the script takes here (model)",
    )
    time.add_argument("--host", metavar="NAME|FILE", help="costs of the nodes' CPUs, a TOML file (reference)")
    time.add_argument(
        "--network", choices=NETWORKS, help="collectives alone, or sharing links, in the timeline (analytic)"
    )
    time.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="other values of the cluster, the GPU or the host, e.g. node.nic_rate=200Gbps, power=500W, host.op=5us",
    )
    time.add_argument(
        "--pack", action="append", default=[], metavar="FILE", help="kernel times of your own, from maya calibrate"
    )
    time.add_argument("--no-timeline", action="store_true", help="predict nothing when the job is over")
    time.add_argument("--steps-from", metavar="NAME", help="annotation whose end ends a step (optimizer steps)")
    time.add_argument("--tokens-per-step", type=_positive, metavar="N", help="of the whole job (as the inputs show)")
    time.add_argument("--price-per-gpu-hour", type=_price, metavar="PRICE", help="to say what the job would cost")
    time.add_argument("--trace-ranks", metavar="LIST", help="ranks to write Kineto traces of: 0,8-15, all or none")


def read_options(options: argparse.Namespace) -> Timing:
    """What was chosen; what contradicts itself is refused."""
    if options.no_trace and options.host_time == "measured":
        raise TimingError("--host-time measured and --no-trace exclude each other: the trace is where it is written")
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
            raise TimingError(f"{name} and {other} exclude each other: it is about the timeline")
    if options.host is not None and options.host_time == "zero":
        raise TimingError(f"--host {options.host} and --host-time zero exclude each other")
    if options.trace_ranks is not None and not re.fullmatch(r"all|none|\d+(-\d+)?(,\d+(-\d+)?)*", options.trace_ranks):
        raise TimingError(f"--trace-ranks {options.trace_ranks}: expected ranks, e.g. 0,8-15, or all, or none")
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
    """What --set says: KEY=VALUE, as often as there are keys."""
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
