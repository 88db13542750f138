"""One world size of a scaling study.

In: a run's summary.json. Out: a `ScaleRow`: plain figures, or the reason why there are none. scale.json keeps rows, and
`row_of_dict` reads them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from maya.api.figures import PlainFigures
from maya.util.ranks import parse_ranks


@dataclass(frozen=True)
class ExposedCallFigures(PlainFigures):
    """Exposed communication in one call, by number of members: mean over all ranks in a step."""

    call: str
    ranks: int  # members of its communicator
    ns: int


@dataclass(frozen=True)
class ScaleRow(PlainFigures):
    """The figures of one world size. None: not known, or the size failed."""

    nproc: int
    folder: str  # of the run, in the study's folder
    problem: str = ""  # why there are no figures; empty: there are
    nodes: int | None = None
    gpus: int | None = None
    processes: int | None = None  # ranks that were processes; the others are represented by them
    seconds: float = 0.0  # that the run took here
    step_time_ns: int | None = None
    unit: str | None = None  # "tokens" or "images"
    samples_per_step: int | None = None
    samples_per_second: float | None = None
    samples_per_second_per_gpu: float | None = None
    flops_per_step: float | None = None
    mfu: float | None = None
    speedup: float | None = None  # of the throughput, against the first size
    efficiency: float | None = None  # of a GPU, against the first size
    class_ns: Mapping[str, int] = field(default_factory=dict)  # by time class, mean over all ranks
    hidden_communication_ns: int | None = None
    exposed_share: float | None = None  # exposed communication in a step
    exposed_calls: tuple[ExposedCallFigures, ...] = ()
    peak_memory_bytes: int | None = None  # of the rank that needs most
    memory_capacity_bytes: int | None = None
    memory_bytes: Mapping[str, int] = field(default_factory=dict)  # of that rank: reserved, nccl, context, workspaces
    gpu_hours_per_step: float | None = None
    gpu_hours_per_billion: float | None = None  # for a billion tokens or images
    price_per_step: float | None = None
    price_per_billion: float | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        return not self.problem

    def flat(self) -> dict[str, Any]:
        """The numbers and texts by name, mappings as class_ns.gemm; without lists."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Mapping):
                found |= {f"{each.name}.{key}": part for key, part in value.items()}
            elif not isinstance(value, tuple):
                found[each.name] = value
        return found


def row_of_summary(nproc: int, folder: str, summary: Mapping[str, Any], seconds: float) -> ScaleRow:
    """The row of a run that has a prediction."""
    prediction = summary["prediction"]
    speed, memory, ranks = prediction["throughput"], prediction["memory"], prediction["ranks"]
    world = max(1, len(ranks))
    class_ns = {
        name: sum(rank["time_ns"][at] for rank in ranks) // world for at, name in enumerate(prediction["classes"])
    }
    worst = memory["worst"] or {}
    present = summary.get("present")
    return ScaleRow(
        nproc=nproc,
        folder=folder,
        nodes=summary["nodes"],
        gpus=speed["gpus"],
        processes=summary["world_size"] if present is None else len(parse_ranks(present)),
        seconds=round(seconds, 1),
        step_time_ns=prediction["steps"]["median_ns"],
        unit=speed["unit"],
        samples_per_step=speed["samples_per_step"],
        samples_per_second=speed["samples_per_second"],
        samples_per_second_per_gpu=speed["samples_per_second_per_gpu"],
        flops_per_step=speed["flops_per_step"],
        mfu=speed["mfu"],
        class_ns=class_ns,
        hidden_communication_ns=sum(rank["hidden_ns"] for rank in ranks) // world,
        exposed_share=class_ns["communication"] / max(1, sum(class_ns.values())),
        exposed_calls=tuple(ExposedCallFigures(**each) for each in prediction["exposed_communication"]),
        peak_memory_bytes=worst.get("total_bytes", 0),
        memory_capacity_bytes=memory["capacity_bytes"],
        memory_bytes={part: worst[f"{part}_bytes"] for part in _MEMORY_PARTS if worst},
        gpu_hours_per_step=speed["gpu_hours_per_step"],
        gpu_hours_per_billion=speed["gpu_hours_per_billion"],
        price_per_step=speed["price_per_step"],
        price_per_billion=speed["price_per_billion"],
        assumptions=tuple(str(each["text"]) for each in summary["assumptions"]),
    )


_MEMORY_PARTS = ("reserved", "nccl", "context", "workspaces")  # they add up to the total


def row_of_dict(table: Mapping[str, Any]) -> ScaleRow:
    """A row as `to_dict` made it, after JSON."""
    known = {each.name for each in fields(ScaleRow)}
    values = {name: value for name, value in table.items() if name in known}
    values["exposed_calls"] = tuple(ExposedCallFigures(**each) for each in table.get("exposed_calls", ()))
    values["assumptions"] = tuple(table.get("assumptions", ()))
    return ScaleRow(**values)
