"""Rendezvous of a rank that runs alone: the others are always there.

A collective takes its time from the rank's arrival on, and a send or recv takes none. Waits only add to the times of
such a replay, so a step of it is no longer than a step among the other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from maya.replay.rank_class import CollectiveCall, TracedCommunicator
from maya.replay.rendezvous import ClassTransfer, Rendezvous, RendezvousTable
from maya.util.arrays import Integers


class LoneRendezvousTable(RendezvousTable):
    """Everything ends without the other members."""

    def arrive(
        self,
        communicator: TracedCommunicator,
        number: int,
        call: CollectiveCall,
        sequence: int,
        ranks: int,
        arrival: int,
    ) -> Rendezvous:
        return Rendezvous(0, arrival, arrival, arrival + self._duration(communicator, call))

    def arrive_p2p(
        self,
        communicator: TracedCommunicator,
        number: int,
        call: CollectiveCall,
        place: int,
        sequence: int,
        arrival: int,
    ) -> Rendezvous:
        return Rendezvous(0, arrival, arrival, arrival)

    def arrive_class(
        self,
        communicators: Sequence[TracedCommunicator],
        numbers: Sequence[int],
        call: CollectiveCall,
        place: int,
        sequence: int,
        arrival: Integers,
    ) -> ClassTransfer | None:
        return None
