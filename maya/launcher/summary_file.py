"""A finished run, and its summary for programs: summary.json in the run's folder.

In: a `FinishedRun` and its prediction. Out: the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high
from typing import Any

from maya.assumptions import Assumption
from maya.launcher.attempt import Exit, Pause
from maya.util.files import write_atomically
from maya.util.ranks import ranges

VERSION = 3  # of summary.json, which docs/results.md describes


@dataclass(frozen=True)
class FinishedRun:
    """The facts about a run that has ended."""

    script: str
    nodes: int
    ranks_per_node: int
    cluster: str | None
    gpu: str
    exit_code: int
    attempts: int
    seconds: float
    exits: Sequence[Exit]  # exits of the last attempt
    traces: Mapping[int, Path]  # rank -> trace file, without lost traces
    stopped_by: str | None
    problem: str | None
    unshared: Mapping[str, str]
    coordinator: Mapping[str, Any]
    pauses: Sequence[Pause] = ()  # times without activity of any rank
    injected: Sequence[str] = ()  # injected faults
    schedule_seed: int | None = None
    imports: Mapping[str, int] = field(
        default_factory=dict
    )  # numbers of modules probed, known from earlier runs, shared
    private_bytes: Sequence[int] = ()  # memory that ranks had for themselves at their end
    present: Sequence[int] | None = None  # the ranks that were processes; None: all

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def private_bytes_per_rank(self) -> dict[str, int] | None:
        """The memory of this machine that a rank had for itself; None: no rank came to its end."""
        if not self.private_bytes:
            return None
        return {"largest": max(self.private_bytes), "median": median_high(self.private_bytes)}

    @property
    def lost_traces(self) -> list[int]:
        """Ranks that used their GPU, as their clocks show, but have no trace."""
        clocks = self.coordinator.get("host_ns", [])
        return [rank for rank, ns in enumerate(clocks) if ns and rank not in self.traces]


def write_summary(
    run: FinishedRun,
    folder: Path,
    prediction: Mapping[str, Any] | None = None,
    no_prediction: str | None = None,
    assumptions: Sequence[Assumption] = (),
    represented: Mapping[str, Any] | None = None,
) -> None:
    """Write summary.json atomically. The prediction is deterministic; measured costs of the emulation itself are in
    `emulation`."""
    content = {
        "version": VERSION,
        "script": run.script,
        "world_size": run.ranks,
        "nodes": run.nodes,
        "ranks_per_node": run.ranks_per_node,
        "cluster": run.cluster,
        "gpu": run.gpu,
        "exit_code": run.exit_code,
        "attempts": run.attempts,
        "stopped_by": run.stopped_by,
        "problem": run.problem,
        "injected": list(run.injected),
        "schedule_seed": run.schedule_seed,
        "present": None if run.present is None else ranges(run.present),
        "represented": represented,
        "ranks": [
            {
                "rank": end.rank,
                "exit_code": end.exit_code,
                "trace": run.traces[end.rank].name if end.rank in run.traces else None,
            }
            for end in sorted(run.exits, key=lambda end: end.rank)
        ]
        or [  # below maya exec, where the ranks are children of others
            {"rank": rank, "exit_code": None, "trace": path.name} for rank, path in sorted(run.traces.items())
        ],
        "assumptions": [each.document() for each in assumptions],
        "prediction": prediction,
        "no_prediction": no_prediction,
        "emulation": {
            "seconds": round(run.seconds, 3),
            "coordinator": run.coordinator,
            "imports": dict(run.imports),
            "unshared_modules": run.unshared,
            "private_bytes_per_rank": run.private_bytes_per_rank,
            "pauses": [{"seconds": pause.seconds, "resumed": pause.resumed} for pause in run.pauses],
        },
    }
    write_atomically(folder / "summary.json", json.dumps(content, indent=2) + "\n")
