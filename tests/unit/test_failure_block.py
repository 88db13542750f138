"""The block that names the failed ranks of a job."""

from __future__ import annotations

from maya.launcher.failure import Failure, failure_block, root_cause


def test_failure_block_names_the_earliest_as_root_cause() -> None:
    failures = [Failure(rank, rank, 100 + rank, 1, "<N/A>", "text", 50 - rank) for rank in range(3)]
    block = failure_block("train.py", failures, root_cause(failures))
    others, root = block.split("Root Cause (first observed failure):")
    assert "rank      : 2" in root
    assert "rank      : 0" in others
    assert "rank      : 1" in others


def test_a_failure_of_many_ranks_takes_few_lines() -> None:
    failures = [
        Failure(rank, rank % 8, 100 + rank, -15, "<N/A>", "text", 50) for rank in (7, *range(7), *range(9, 1024))
    ]
    block = failure_block("train.py", failures, root_cause(failures))
    others, root = block.split("Root Cause (first observed failure):")
    assert "rank      : 7 (" in root
    assert others.count("rank      :") == 1
    assert "... and 1021 more; ranks 0-6, 9-1023" in others
    few, _ = failure_block("train.py", failures[:8], failures[0]).split("Root Cause (first observed failure):")
    assert few.count("rank      :") == 3
