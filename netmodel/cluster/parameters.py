"""The parameters of a cluster that no datasheet has: the costs of NCCL's protocols, and the link efficiency they reach.

In: the `[calibration]` table of a cluster's file, which `maya net fit` writes, or nothing. Out: `Parameters`: those of
the table; missing ones come from the preset with GPUs of the same generation. `with_calibration` writes the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from maya.util.suggestions import did_you_mean, listed
from maya.util.units import NANOSECONDS

GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
ORIGINS = ("fitted", "transferred", "datasheet")  # measured there, measured on a similar machine, not measured
NOT_MEASURED = "not measured on this machine"
ENGINES = ("ll", "ll128", "simple", "nvls", "p2p")


@dataclass(frozen=True)
class Engine:
    """One way of moving data: a protocol of rings and trees, reduction in the NVSwitch (NVLS), or send/recv (P2P).

    Efficiencies refer to bytes on the wire: the flags of LL, which double its bytes, and of LL128 count as load.
    """

    launch_ns: float  # once per collective
    gpu_step_ns: float  # per step over a link between GPUs
    network_step_ns: float  # per step over the network
    gpu_efficiency: float  # share of the rate of links between GPUs
    network_efficiency: float  # share of the rate of NICs and switches
    lag: float  # lag of the last channel, in square roots of a nanosecond


@dataclass(frozen=True)
class Parameters:
    """The calibrated parameters of a cluster."""

    generation: str  # of the GPUs, one of GENERATIONS: NCCL's tuner has constants for each
    ll: Engine
    ll128: Engine
    simple: Engine
    nvls: Engine
    p2p: Engine
    local_step: float  # time to read the first and write the last piece, as a share of a ring's step
    tree_fill: float  # wait of each step of a tree, as a share of the time of the first pieces over a NIC
    proxy_step_ns: float  # time of the CPU proxy to post a step of a ring between nodes
    gpu_channel_rate: float  # bytes/s of one channel of a send between GPUs of a node
    network_channel_rate: float  # bytes/s of one channel of a send between nodes
    origin: str = "datasheet"  # one of ORIGINS
    data: str = ""  # the measurements of the fit
    error: str = ""  # the error on held-out measurements

    def engine(self, name: str) -> Engine:
        engine: Engine = getattr(self, name)
        return engine

    def engine_for(self, algorithm: str, protocol: str) -> Engine:
        """The engine that moves the data of a plan."""
        launching, transporting = engine_names(algorithm, protocol)
        return replace(self.engine(transporting), launch_ns=self.engine(launching).launch_ns)


def engine_names(algorithm: str, protocol: str) -> tuple[str, str]:
    """The engine of the launch, and the engine of everything else: short sends are launched like LL."""
    if algorithm == "p2p":
        return ("ll" if protocol == "ll" else "p2p"), "p2p"
    name = "nvls" if algorithm in ("nvls", "nvlstree") else protocol
    return name, name


# Launches and steps are close to those in NCCL 2.28's tuner (src/graph/tuning.cc). Efficiencies are the bandwidths it
# expects, divided by datasheet rates. The rest are rough starting values for fits.
def default_parameters(generation: str) -> Parameters:
    """The starting values of a fit."""
    ll_share = {"volta": 0.52, "ampere": 0.58, "hopper": 0.63, "blackwell": 0.63}[generation]
    channel_rate = {"volta": 12e9, "ampere": 16e9, "hopper": 20e9, "blackwell": 28e9}[generation]
    return Parameters(
        generation=generation,
        ll=Engine(6600, 600, 5000, ll_share, 0.5, 0),
        ll128=Engine(9000, 1200, 8500, 0.75, 0.85, 0),
        simple=Engine(8400, 5000, 14000, 0.80, 0.92, 60),
        nvls=Engine(20000, 0, 14000, 0.70, 0.92, 90),
        p2p=Engine(9000, 300, 3000, 0.80, 0.88, 60),
        local_step=0.35,
        tree_fill=0.5,
        proxy_step_ns=1000,
        gpu_channel_rate=channel_rate,
        network_channel_rate=12.5e9,
    )


def generation_of(gpu: str, gpu_link_rate: int) -> str:
    """The generation of a GPU by its name, or of an unknown GPU by the rate of its links."""
    for generation, names in _GENERATION_NAMES.items():
        if any(name in gpu.lower() for name in names):
            return generation
    for generation, rate in (("blackwell", 900e9), ("hopper", 450e9), ("ampere", 300e9)):
        if gpu_link_rate >= rate:
            return generation
    return "volta"


_GENERATION_NAMES = {
    "volta": ("v100", "t4"),
    "ampere": ("a100", "a10", "a30", "a40", "l4", "a800"),
    "hopper": ("h100", "h200", "h800", "h20", "gh200"),
    "blackwell": ("b100", "b200", "b300", "gb200", "gb300"),
}

_TABLE = re.compile(r"\s*\[+\s*([A-Za-z0-9_-]+)")
_TIMES = ("launch", "gpu_step", "network_step")
_RATIOS = ("gpu_efficiency", "network_efficiency")
# The numbers that have a range which no machine leaves; beyond it, times in integer nanoseconds would overflow.
_RANGES = {
    "local_step": (0.0, 1e6),
    "tree_fill": (0.0, 1e6),
    "gpu_channel_rate": (1e3, 1e15),
    "network_channel_rate": (1e3, 1e15),
    "lag": (0.0, 1e9),
}
_COMMON = ("local_step", "tree_fill", "proxy_step", "gpu_channel_rate", "network_channel_rate")


def read_generation(table: Mapping[str, object], otherwise: str) -> str:
    """The generation in a `[calibration]` table; ValueError if it is unknown."""
    named = table.get("generation", otherwise)
    if named not in GENERATIONS:
        raise ValueError(f"generation: {named!r} is not a generation of GPUs; use {listed(GENERATIONS, 'or')}")
    return str(named)


def read_parameters(table: Mapping[str, object], base: Parameters) -> Parameters:
    """The parameters in a `[calibration]` table; missing ones are those of `base`. ValueError names the key."""
    parameters = replace(base, generation=read_generation(table, base.generation))
    table = {key: value for key, value in table.items() if key != "generation"}
    for key, value in table.items():
        if key in ENGINES:
            if not isinstance(value, dict):
                raise ValueError(f"{key} is {value!r}; expected a table, [calibration.{key}]")
            engine = parameters.engine(key)
            for inner, figure in value.items():
                engine = _with_figure(engine, key, inner, figure)
            parameters = _replaced(parameters, key, engine)
        elif key == "proxy_step":
            parameters = _replaced(parameters, "proxy_step_ns", _time(key, value))
        elif key in _COMMON:
            parameters = _replaced(parameters, key, _number(key, value, *_RANGES[key]))
        elif key in ("data", "error", "origin"):
            if not isinstance(value, str) or (key == "origin" and value not in ORIGINS):
                raise ValueError(f"{key}: {value!r} is invalid; expected text, for origin {listed(ORIGINS, 'or')}")
            parameters = _replaced(parameters, key, value)
        else:
            known = (*ENGINES, *_COMMON, "generation", "data", "error", "origin")
            raise ValueError(f'unknown key "{key}"{did_you_mean(key, known)}; use {listed(known, "or")}')
    return parameters


def _with_figure(engine: Engine, name: str, key: str, figure: object) -> Engine:
    where = f"{name}.{key}"
    if key in _TIMES:
        return replace(engine, **{f"{key}_ns": _time(where, figure)})
    if key in _RATIOS:
        return replace(engine, **{key: _number(where, figure, 1e-6, 1.0)})
    if key == "lag":
        return replace(engine, lag=_number(where, figure, *_RANGES[key]))
    known = (*_TIMES, *_RATIOS, "lag")
    raise ValueError(f'unknown key "{where}"{did_you_mean(key, known)}; use {listed(known, "or")}')


def _time(key: str, value: object) -> float:
    try:
        return float(NANOSECONDS.parse(value))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _number(key: str, value: object, least: float, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{key}: {value!r} is not a number from {least:g} to {most:g}")
    return float(value)


def _replaced(parameters: Parameters, key: str, value: object) -> Parameters:
    return replace(parameters, **{key: value})  # type: ignore[arg-type]


def written_parameters(parameters: Parameters) -> str:
    """The `[calibration]` table of a cluster's file, as text."""
    lines = ["[calibration]", f'generation = "{parameters.generation}"', f'origin = "{parameters.origin}"']
    lines += [f'{key} = "{text}"' for key, text in (("data", parameters.data), ("error", parameters.error)) if text]
    lines += [f"{key} = {getattr(parameters, key):.4g}" for key in _COMMON if key != "proxy_step"]
    lines.append(f'proxy_step = "{parameters.proxy_step_ns / 1000:.3f}us"')
    for name in ENGINES:
        lines += ["", f"[calibration.{name}]"]
        engine = parameters.engine(name)
        for field in fields(engine):
            value = getattr(engine, field.name)
            if field.name.endswith("_ns"):
                lines.append(f'{field.name.removesuffix("_ns")} = "{value / 1000:.3f}us"')
            else:
                lines.append(f"{field.name} = {value:.4g}")
    return "\n".join(lines) + "\n"


def with_calibration(text: str, parameters: Parameters) -> str:
    """The text of a cluster's file with a new `[calibration]` table at its end; the rest is unchanged."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines():
        table = _TABLE.match(line)
        if table:
            inside = table[1] == "calibration"
        if not inside:
            kept.append(line)
    return "\n".join(kept).rstrip() + "\n\n" + written_parameters(parameters)
