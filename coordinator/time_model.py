"""Durations for the state machine: collectives, send/recv and kernels.

In: posts and questions of ranks. Out: nanoseconds, and what NCCL would log about a communicator. `RunTimeModel` uses
the settings of a run, as the replay does
(maya/replay). `NO_TIME_MODEL` is for runs on the wall clock: everything takes 0 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from coordinator.descriptions import DATA_TYPES
from rank_runtime.messages import Ask, Call, Post

if TYPE_CHECKING:
    from maya.replay.collective_times import CollectiveTimes
    from maya.replay.kernel_durations import KernelDurations
    from maya.replay.run_settings import RunSettings

_NAMES = {
    Call.ALL_REDUCE: "ncclAllReduce",
    Call.REDUCE: "ncclReduce",
    Call.REDUCE_SCATTER: "ncclReduceScatter",
    Call.BROADCAST: "ncclBroadcast",
    Call.ALL_GATHER: "ncclAllGather",
    Call.ALL_TO_ALL: "ncclAlltoAll",
    Call.GATHER: "ncclGather",
    Call.SCATTER: "ncclScatter",
}
_CALLS = [_NAMES.get(call, "") for call in Call]  # indexed by number


class TimeModel(Protocol):
    """How long collectives, send/recv and kernels take."""

    def collective_ns(self, post: Post, members: tuple[int, ...]) -> int:
        """A collective that all members, given as ranks of the job, have posted."""
        ...

    def p2p_ns(self, sender: int, receiver: int, size: int) -> int:
        """A transfer between two ranks of the job."""
        ...

    def answers(self, asks: Sequence[tuple[int, Ask]]) -> list[int]:
        """One duration for each question of a rank."""
        ...

    def communicator_log(self, members: tuple[int, ...], member: int, handle: int) -> str:
        """What NCCL would log about a communicator: lines of a subsystem, a tab and a text."""
        ...


class _NoTimeModel:
    def collective_ns(self, post: Post, members: tuple[int, ...]) -> int:
        return 0

    def p2p_ns(self, sender: int, receiver: int, size: int) -> int:
        return 0

    def answers(self, asks: Sequence[tuple[int, Ask]]) -> list[int]:
        return [0] * len(asks)

    def communicator_log(self, members: tuple[int, ...], member: int, handle: int) -> str:
        return ""


NO_TIME_MODEL: TimeModel = _NoTimeModel()


class RunTimeModel:
    """Durations of the run whose run.json is in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> None:
        """Load the models now instead of at the first question."""
        _ = self._network, self._durations

    def of_job(self, world_size: int, ranks_per_node: int) -> RunTimeModel:
        """The same settings and kernels for a job of another size."""
        made = RunTimeModel(self._folder)
        made._settings = replace(self._settings, world_size=world_size, ranks_per_node=ranks_per_node)
        made._durations = self._durations
        return made

    @cached_property
    def _network(self) -> CollectiveTimes:
        return self._settings.collective_times()

    @cached_property
    def _durations(self) -> KernelDurations:
        return self._settings.durations(self._folder, online=True)

    @cached_property
    def _settings(self) -> RunSettings:
        from maya.replay.run_settings import RunSettings  # only with a virtual clock: it imports the whole replay

        return RunSettings.load(self._folder)

    def collective_ns(self, post: Post, members: tuple[int, ...]) -> int:
        call, dtype = _CALLS[post.call], DATA_TYPES[post.data_type]
        return self._network.collective_ns(call, post.count, dtype, members, max(post.peer, 0))

    def p2p_ns(self, sender: int, receiver: int, size: int) -> int:
        return self._network.p2p_ns(sender, receiver, size)

    def communicator_log(self, members: tuple[int, ...], member: int, handle: int) -> str:
        lines = self._network.communicator_log(members, member, handle)
        return "".join(f"{line.subsystem}\t{line.text}\n" for line in lines)

    def answers(self, asks: Sequence[tuple[int, Ask]]) -> list[int]:
        from maya.trace.format import RecordKind

        kernels = [
            (ask.record, ask.signature, ask.op, ask.size) for _, ask in asks if ask.record != RecordKind.COLLECTIVE
        ]
        found = iter(self._durations.answers(kernels))
        return [
            self._network.alone_ns(ask.signature, rank) if ask.record == RecordKind.COLLECTIVE else next(found)
            for rank, ask in asks
        ]
