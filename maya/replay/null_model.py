"""The null cost model: every kernel takes a millisecond, the network and the host take no time. It predicts nothing; a
timeline made with it shows the order of events only.

simulate(folder, null_settings(world_size=4), durations=NullDurations(), network=NullNetwork())
"""

from __future__ import annotations

from collections.abc import Sequence

from maya.estimators.kernel import Estimate, Kernel, Origin
from maya.replay.run_settings import NO_COSTS, HostCosts, RunSettings
from netmodel.collectives.collective import Collective

MILLISECOND = 1_000_000


class NullDurations:
    """The same time for every kernel."""

    def __init__(self, ns: int = MILLISECOND) -> None:
        self._estimate = Estimate(ns, Origin.DEFAULT, spread=0.0, note="null")

    def of_kernels(self, kernels: Sequence[Kernel]) -> list[Estimate]:
        return [self._estimate] * len(kernels)


class NullNetwork:
    """The same time for every collective, send and recv."""

    origin = "null"

    def __init__(self, ns: int = 0) -> None:
        self._ns = ns

    def collective_ns(self, call: str, count: int, dtype: str, members: tuple[int, ...], root: int = 0) -> int:
        return self._ns

    def p2p_ns(self, sender: int, receiver: int, size: int) -> int:
        return self._ns

    def p2p_times(self, senders: Sequence[int], receivers: Sequence[int], size: int) -> list[int]:
        return [self._ns] * len(senders)

    def collective(self, call: str, count: int, dtype: str, members: tuple[int, ...], root: int = 0) -> Collective:
        raise NotImplementedError("the null network has no links to share")

    def p2p(self, sender: int, receiver: int, size: int) -> Collective:
        raise NotImplementedError("the null network has no links to share")


def null_settings(world_size: int, host: HostCosts = NO_COSTS) -> RunSettings:
    """Settings for the null model, which ignores the GPU and the cluster."""
    return RunSettings(world_size=world_size, ranks_per_node=8, gpu="h100", cluster="dgx-h100", host=host)
