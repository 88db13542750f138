"""Which ranks of a job run on which machine."""

from __future__ import annotations

import platform

import pytest

from maya.nodes.job_nodes import NodesError
from maya.nodes.machine import Machine
from maya.nodes.placement import place_ranks
from maya.version import __version__

GIB = 2**30
RANK, ZYGOTE = 100 * 2**20, GIB


def machine(name: str, processors: int = 4, memory: int = 64 * GIB) -> Machine:
    return Machine(
        name, "10.0.0.1", processors, memory, platform.python_version(), __version__, "2.12.1", "gcc 12.2.0", "eth0", ""
    )


def counts(placed: dict[str, list[int]]) -> dict[str, int]:
    return {name: len(ranks) for name, ranks in placed.items()}


def place(world_size: int, per_node: int, *machines: Machine) -> dict[str, list[int]]:
    return place_ranks(range(world_size), per_node, machines, RANK, ZYGOTE)


def test_shares_are_contiguous_and_follow_the_processors() -> None:
    placed = place(32, 4, machine("a", 2), machine("b", 4), machine("c", 2))
    assert placed == {"a": list(range(8)), "b": list(range(8, 24)), "c": list(range(24, 32))}


def test_virtual_nodes_stay_on_one_machine() -> None:
    placed = place(32, 8, machine("a"), machine("b"), machine("c"))
    assert placed == {"a": list(range(16)), "b": list(range(16, 24)), "c": list(range(24, 32))}


def test_one_virtual_node_goes_to_the_first_machine() -> None:
    assert counts(place(8, 8, machine("a"), machine("b", 64))) == {"a": 8, "b": 0}


def test_memory_limits_a_share() -> None:
    placed = place(32, 8, machine("small", 4, 3 * GIB), machine("large"))
    assert counts(placed) == {"small": 8, "large": 24}


def test_a_virtual_node_is_split_where_no_machine_holds_it() -> None:
    small = [machine(name, 4, 3 * GIB) for name in "abc"]  # 14 ranks each
    assert counts(place(32, 16, *small)) == {"a": 11, "b": 11, "c": 10}


def test_uneven_memory_is_filled_up() -> None:
    placed = place(30, 1, machine("a", 4, 3 * GIB), machine("b", 4, 4 * GIB))
    assert placed == {"a": list(range(14)), "b": list(range(14, 30))}


def test_present_ranks_of_a_large_world() -> None:
    placed = place_ranks([0, 1, 8, 9, 4096], 8, [machine("a"), machine("b")], RANK, ZYGOTE)
    assert placed == {"a": [0, 1, 8, 9], "b": [4096]}


def test_a_machine_without_processors_gets_none() -> None:
    assert counts(place(16, 8, machine("head", 0), machine("a"), machine("b"))) == {"head": 0, "a": 8, "b": 8}


def test_too_many_ranks_are_refused_with_numbers() -> None:
    with pytest.raises(NodesError) as refused:
        place(96, 8, machine("a", 4, 3 * GIB), machine("b", 4, 4 * GIB))
    text = str(refused.value)
    assert "96 ranks need about 11.4 GiB" in text
    assert "the 2 nodes have room for 36: a 3 GiB (14 ranks), b 4 GiB (22 ranks)" in text
    assert "--represent auto" in text
