"""The least time that a step can take, from a run of one rank alone.

In: the folder of a run in which only some ranks were processes, and its settings. Out: a `LoneStep`: the step of the
recorded rank if no other rank ever keeps it waiting. A step of the whole job takes at least as long, as far as a rank's
steps are alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from maya.replay.recording import read_recording
from maya.replay.run_settings import RunSettings
from maya.replay.simulate import simulate
from maya.results.origins import find_origins
from maya.results.steps import WHOLE_RUN, find_steps
from maya.results.tokens_per_step import SamplesUnknown, most_samples


@dataclass(frozen=True)
class LoneStep:
    """A step of one rank."""

    ns: int
    spread: float  # expected relative error of a kernel's time
    unit: str | None = None  # "tokens" or "images"; None: not known
    most_samples: int | None = None  # that a step of the job has at most


def find_lone_step(folder: Path, settings: RunSettings | None = None) -> LoneStep | None:
    """The shortest recorded step; None: there is no whole step."""
    settings = settings or RunSettings.load(folder)
    recording = read_recording(folder, settings.inductor_folder(folder), absent=False)
    timeline = simulate(recording, settings, alone=True)
    steps = find_steps(timeline, settings.options.get("steps_from"))
    if steps.source == WHOLE_RUN:
        return None
    step_ns = min(steps.lengths_ns[step] for step in steps.measured)
    spread = find_origins(timeline, steps).spread
    given = settings.options.get("tokens_per_step")
    if given is not None:
        return LoneStep(step_ns, spread, "tokens", given)
    try:
        samples = most_samples(timeline, steps)
    except SamplesUnknown:
        return LoneStep(step_ns, spread)
    return LoneStep(step_ns, spread, samples.unit, samples.per_step)
