"""Works of one kind, dtype and variant as columns, and the times that are given for them.

In: `Work`s. Out: `Batch`es of numpy columns, which is what the estimators of the kinds take, and `Times`, which is what
they give back. Within a batch only numbers differ, so an estimator never looks at a work by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from maya.estimators.work import Kind, Origin, Work

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """Columns of works of one kind, dtype and variant."""

    kind: Kind
    dtype: str
    variant: str
    flops: Floats
    bytes_read: Floats
    bytes_written: Floats
    shape: dict[str, Floats] = field(default_factory=dict)  # NaN where a work does not say

    def __len__(self) -> int:
        return len(self.flops)

    @property
    def bytes_moved(self) -> Floats:
        return self.bytes_read + self.bytes_written

    def column(self, name: str, default: float | Floats) -> Floats:
        """One dimension of all works; `default` where a work does not have it."""
        values = self.shape.get(name)
        if values is None:
            return np.broadcast_to(np.asarray(default, dtype=np.float64), self.flops.shape)
        return np.where(np.isnan(values), default, values)


@dataclass(frozen=True)
class Times:
    """What an estimator says about all works of a batch."""

    seconds: Floats
    origin: Origin
    spread: float | Floats  # relative standard deviation to be expected
    note: str = ""


def batches(works: Sequence[Work]) -> Iterator[tuple[npt.NDArray[np.intp], Batch]]:
    """The works as batches, each with the positions of its works."""
    members: dict[tuple[Kind, str, str], list[int]] = {}
    for position, work in enumerate(works):
        members.setdefault((work.kind, work.dtype, work.variant), []).append(position)
    for (kind, dtype, variant), positions in members.items():
        yield np.array(positions, dtype=np.intp), _batch(kind, dtype, variant, [works[p] for p in positions])


def _batch(kind: Kind, dtype: str, variant: str, works: list[Work]) -> Batch:
    shapes = [work.shape for work in works]
    names = sorted(set().union(*shapes))
    absent = float("nan")
    return Batch(
        kind,
        dtype,
        variant,
        _floats([work.flops for work in works]),
        _floats([work.bytes_read for work in works]),
        _floats([work.bytes_written for work in works]),
        {name: _floats([shape.get(name, absent) for shape in shapes]) for name in names},
    )


def _floats(values: list[float]) -> Floats:
    return np.array(values, dtype=np.float64)
