"""A recorded run: its traces, read and sorted into rank classes once. Replays on different settings share it.

recording = read_recording(folder)
simulate(recording), simulate(recording, recording.settings.changed(gpu="b200"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from maya.replay.rank_class import RankClass, read_rank_classes
from maya.replay.run_settings import RunSettings


@dataclass(frozen=True, eq=False)
class Recording:
    """A run as it was recorded."""

    folder: Path
    rank_classes: Sequence[RankClass]
    problems: Sequence[str]  # traces that cannot be read, a sentence each
    allocations: bool  # ranks that allocated differently are in different rank classes

    @cached_property
    def settings(self) -> RunSettings:
        """The settings that the job ran with."""
        return RunSettings.load(self.folder)


def read_recording(
    folder: Path, inductor: Path | None = None, *, allocations: bool = False, absent: bool = True
) -> Recording:
    """Read the recording in a run's folder. `inductor` is the folder with the sources of kernels that torch.compile
    generated, where the run's folder has no copy. `allocations`: for hosts on which cudaMalloc and cudaFree cost
    time. `absent`: with the ranks that were no processes."""
    folder = Path(folder)
    rank_classes, problems = read_rank_classes(folder, inductor, allocations=allocations, absent=absent)
    if not rank_classes:
        raise ValueError(
            problems[0]
            if problems
            else f"{folder}: there are no traces, rank0.trace and so on; give the folder of a recorded run"
        )
    return Recording(folder, rank_classes, problems, allocations)
