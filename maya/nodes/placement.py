"""Which ranks of a job run on which machine.

In: the ranks that are processes, how many ranks a virtual node has, machines with their processors and memory, and what
a rank and a zygote take. Out: a contiguous block of ranks for each machine, the same for the same input. Ranks are
shared out by processors, as far as memory allows. A virtual node stays on one machine where that is possible: its
ranks may share memory, and they talk to each other most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from maya.nodes.job_nodes import NodesError
from maya.nodes.machine import Machine
from maya.util.text import bytes_text

_USED_MEMORY = 4 / 5  # the rest stays free: ranks differ
_MOST_NAMES = 8


def place_ranks(
    ranks: Sequence[int], ranks_per_node: int, machines: Sequence[Machine], rank_bytes: int, zygote_bytes: int
) -> dict[str, list[int]]:
    """The ranks of each machine, by name; a machine may get none. Raises NodesError if they do not fit."""
    room = {each.name: room_on(each, rank_bytes, zygote_bytes) for each in machines}
    if sum(room.values()) < len(ranks):
        raise NodesError(_too_many(len(ranks), machines, room, rank_bytes, zygote_bytes))
    shares = _shares(len(ranks), machines, room)
    nodes = [list(group) for _, group in groupby(ranks, key=lambda rank: rank // ranks_per_node)]
    singly = [[rank] for rank in ranks]
    for blocks in (nodes, singly):
        for wanted in (shares, room):
            placed = _fill(blocks, machines, wanted, room)
            if placed is not None:
                return placed
    raise AssertionError("single ranks fit wherever their number does")


def room_on(machine: Machine, rank_bytes: int, zygote_bytes: int) -> int:
    """How many ranks fit into a machine's memory; none without processors."""
    if machine.processors < 1:
        return 0
    return max(0, int(machine.memory * _USED_MEMORY) - zygote_bytes) // rank_bytes


def _shares(count: int, machines: Sequence[Machine], room: Mapping[str, int]) -> dict[str, float]:
    """Share the ranks out in proportion to processors, with no more on a machine than fit into its memory."""
    shares = dict.fromkeys((each.name for each in machines), 0.0)
    left = float(count)
    open_machines = [each for each in machines if room[each.name] > 0]
    while open_machines:
        rate = left / sum(each.processors for each in open_machines)
        full = [each for each in open_machines if rate * each.processors >= room[each.name]]
        if not full:
            return {**shares, **{each.name: rate * each.processors for each in open_machines}}
        for each in full:
            shares[each.name] = float(room[each.name])
            left -= room[each.name]
        open_machines = [each for each in open_machines if each not in full]
    return shares


def _fill(
    blocks: Sequence[Sequence[int]],
    machines: Sequence[Machine],
    wanted: Mapping[str, float],
    room: Mapping[str, int],
) -> dict[str, list[int]] | None:
    """Give the machines blocks in turn, until they have what is wanted of them and of those before; None if some do not
    fit."""
    placed: dict[str, list[int]] = {each.name: [] for each in machines}
    waiting = list(reversed(blocks))
    done, target = 0, 0.0
    for machine in machines:
        target += wanted[machine.name]
        own = placed[machine.name]
        while waiting:
            if done >= target - 1e-6 or len(own) + len(waiting[-1]) > room[machine.name]:
                break
            done += len(waiting[-1])
            own.extend(waiting.pop())
    return None if waiting else placed


def _too_many(
    count: int, machines: Sequence[Machine], room: Mapping[str, int], rank_bytes: int, zygote_bytes: int
) -> str:
    needed = bytes_text(count * rank_bytes + len(machines) * zygote_bytes)
    named = machines[:_MOST_NAMES]
    found = ", ".join(f"{each.name} {bytes_text(each.memory)} ({room[each.name]} ranks)" for each in named)
    others = f" and {len(machines) - len(named)} others" if len(machines) > len(named) else ""
    what = "1 rank needs" if count == 1 else f"{count} ranks need"
    where = "the node has" if len(machines) == 1 else f"the {len(machines)} nodes have"
    return (
        f"{what} about {needed}, and a fifth of a node's memory stays free; {where} room for {sum(room.values())}: "
        f"{found}{others}. Run one rank of each kind (--represent auto), or add nodes"
    )
