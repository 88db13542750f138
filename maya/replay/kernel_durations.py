"""Durations of kernels on a device, by the record of the launch and its op.

In: a device, and launches from records of a trace or from a running rank's questions. Out: an `Estimate` for each. A
running job and its replay use the same code, so both have the same times.
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

Question = tuple[int, str, str, int]  # record kind, signature, op's signature, size; as in rank_runtime.messages.Ask


class KernelDurations:
    """Estimates for one device. `packs` are the user's files of measurements; `inductor` is the folder of
    torch.compile's sources. Without it, the sizes of compiled kernels are those of the buffers that they point to."""

    def __init__(
        self, device: Device, packs: Sequence[Path] = (), inductor: Path | None = None, *, keep: Path | None = None
    ) -> None:
        """`keep`: the folder to which used sources are copied."""
        self.device = device
        self._estimator = Estimator(device, packs)
        self._sources = InductorSources(inductor, keep=keep) if inductor is not None else None
        self._answers: dict[Question, int] = {}

    @staticmethod
    def launch_of(
        kind: RecordKind, signature: Mapping[str, Any], op: Mapping[str, Any] | None = None, size: int = 0
    ) -> KernelLaunch:
        """A launch from a record and its op. `size`: bytes of a copy or memset."""
        return launch_of(kind, signature, op, size)

    def kernel_of(self, launch: KernelLaunch) -> Kernel:
        """The kernel of a launch, with its shape and sizes."""
        return kernel_of(launch, self._sources)

    def estimates(self, launches: Iterable[KernelLaunch]) -> list[Estimate]:
        """An estimate for each launch, in order."""
        return self._estimator.estimate([self.kernel_of(launch) for launch in launches])

    def of_kernels(self, kernels: Sequence[Kernel]) -> list[Estimate]:
        """An estimate for each kernel, in order."""
        return self._estimator.estimate(kernels)

    def answers(self, questions: Sequence[Question]) -> list[int]:
        """Nanoseconds for each question of a rank. Signatures are texts as in a trace."""
        new = [question for question in dict.fromkeys(questions) if question not in self._answers]
        for question, estimate in zip(new, self.estimates(map(_launch, new)), strict=True):
            self._answers[question] = estimate.ns
        return [self._answers[question] for question in questions]


def _launch(question: Question) -> KernelLaunch:
    kind, signature, op, size = question
    return launch_of(RecordKind(kind), _parsed(signature), _parsed(op) if op else None, size)


def _parsed(text: str) -> Mapping[str, Any]:
    """A signature as maya.trace parses it."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {"text": text}
    return found if isinstance(found, dict) else {"text": text}
