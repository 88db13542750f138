"""How long a device takes for what ranks ask of it: durations by what a record and its op say.

In: a device, and launches as records of a trace or a rank's questions describe them. Out: an `Estimate` for each. The
same for a job that runs and for one that is replayed, so that both have the same times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from maya.devices import Device
from maya.estimators.estimator import Estimator
from maya.estimators.features.extract import kernel_of
from maya.estimators.features.from_trace import launch_of
from maya.estimators.features.inductor import InductorSources
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.kernel import Estimate, Kernel
from maya.trace import RecordKind

Question = tuple[int, str, str, int]  # kind, signature, op's signature, size: as in messages.Ask


class KernelDurations:
    """Estimates for one device. `packs` are files of the user's own; `inductor` is where torch.compile put its
    sources, without which the sizes of compiled kernels are the bytes behind their pointers."""

    def __init__(
        self, device: Device, packs: Sequence[Path] = (), inductor: Path | None = None, *, keep: Path | None = None
    ) -> None:
        """`keep`: a folder to which the sources that were of use are copied."""
        self.device = device
        self._estimator = Estimator(device, packs)
        self._sources = InductorSources(inductor, keep=keep) if inductor is not None else None
        self._answers: dict[Question, int] = {}

    @staticmethod
    def launch_of(
        kind: RecordKind, signature: Mapping[str, Any], op: Mapping[str, Any] | None = None, size: int = 0
    ) -> KernelLaunch:
        """What a record and its op say; `size` is of copies and memsets."""
        return launch_of(kind, signature, op, size)

    def kernel_of(self, launch: KernelLaunch) -> Kernel:
        """What the launch has to do."""
        return kernel_of(launch, self._sources)

    def estimates(self, launches: Iterable[KernelLaunch]) -> list[Estimate]:
        """One for each launch, in their order."""
        return self._estimator.estimate([self.kernel_of(launch) for launch in launches])

    def of_kernels(self, kernels: Sequence[Kernel]) -> list[Estimate]:
        """One for each work, in their order."""
        return self._estimator.estimate(kernels)

    def answers(self, questions: Sequence[Question]) -> list[int]:
        """Nanoseconds for what ranks ask; texts as they are in a trace."""
        new = [question for question in dict.fromkeys(questions) if question not in self._answers]
        for question, estimate in zip(new, self.estimates(map(_launch, new)), strict=True):
            self._answers[question] = estimate.ns
        return [self._answers[question] for question in questions]


def _launch(question: Question) -> KernelLaunch:
    kind, signature, op, size = question
    return launch_of(RecordKind(kind), _parsed(signature), _parsed(op) if op else None, size)


def _parsed(text: str) -> Mapping[str, Any]:
    """As maya.trace reads a signature."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {"text": text}
    return found if isinstance(found, dict) else {"text": text}
