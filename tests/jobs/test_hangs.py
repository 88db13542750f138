"""Broken scripts: the report names the ranks, the call and the line, and the job fails. Correct ones: there is none.

The scripts are in tests/jobs/hangs; comments in them mark the lines that a report must name:

    # waits     where the call was made that can never be completed
    # stands    where the program is
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.hang_launch import SCRIPTS, launch

from rank_runtime.build import Build


@dataclass(frozen=True)
class Expected:
    """Of a group of ranks in a report."""

    ranks: tuple[int, ...]
    doing: str  # part of it
    waits: str = ""  # the mark of the line that the call was made in
    stands: str = ""


@dataclass(frozen=True)
class Case:
    """A broken script."""

    script: str
    ranks: int
    kind: str
    groups: tuple[Expected, ...]
    hint: str = ""  # part of one
    options: tuple[str, ...] = ()
    slow: bool = True
    raises: bool = False  # NCCL reports it to the ranks, so they go on


CASES = (
    Case(
        "conditional_all_reduce",
        2,
        "deadlock",
        (Expected((0,), "all_reduce #3 of the default group", "waits"), Expected((1,), "other ranks in all_reduce")),
        "is inside `if not (rank == 1 and step == 2)`",
        slow=False,
    ),
    Case(
        "rank_zero_broadcast",
        3,
        "deadlock",
        (Expected((0,), "all_reduce #2", "waits", "stands"), Expected((1, 2), "ended with exit code 0")),
        "is inside `if rank == 0`",
    ),
    Case("early_exit", 4, "deadlock", (Expected((0, 1, 2), "all_reduce #3", "waits"), Expected((3,), "ended"))),
    Case(
        "crossed_receives",
        2,
        "deadlock",
        (Expected((0,), "receive from rank 1", "waits"), Expected((1,), "receive from rank 0", "waits")),
        "none sends",
        slow=False,
    ),
    Case(
        "store_key_never_set",
        3,
        "deadlock",
        (Expected((0,), "store", stands="stands"), Expected((1, 2), "barrier", stands="waits")),
        slow=False,
    ),
    Case(
        "mismatched_sizes",
        4,
        "mismatch",
        (Expected((0, 1, 2), "all_reduce of 64 fp32", "waits"), Expected((3,), "all_reduce of 48 fp32", "waits")),
        "different sizes",
        slow=False,
    ),
    Case(
        "missing_at_start",
        3,
        "no progress",
        (Expected((0, 1), "member 2", stands="waits"), Expected((2,), "waiting", stands="stands")),
        options=("--on-hang", "abort", "--hang-after", "3"),
        slow=False,
    ),
    Case(
        "mismatched_types",
        2,
        "mismatch",
        (Expected((0,), "512 bf16", "waits"), Expected((1,), "512 fp32", "waits")),
        "mixed precision",
    ),
    Case(
        "different_operations",
        2,
        "mismatch",
        (Expected((0,), "broadcast of 8", "waits"), Expected((1,), "all_reduce of 8", "waits too")),
        "different orders",
    ),
    Case(
        "different_roots",
        2,
        "mismatch",
        (Expected((0,), "from rank 0", "waits"), Expected((1,), "from rank 1", "waits")),
        "root",
    ),
    Case(
        "different_reductions",
        2,
        "mismatch",
        (Expected((0,), "fp32 max", "waits"), Expected((1,), "fp32 sum", "waits")),
        "different reductions",
    ),
    Case(
        "wrong_peer",
        3,
        "deadlock",
        (Expected((1,), "in send, for member 1"), Expected((2,), "in recv", stands="waits")),
        "check the peers",
    ),
    Case(
        "large_sends",
        2,
        "deadlock",
        (Expected((0,), "send to rank 1", "waits"), Expected((1,), "send to rank 0", "waits")),
        "none receives",
    ),
    Case(
        "send_without_receive",
        2,
        "deadlock",
        (Expected((0,), "send to rank 1", "waits"), Expected((1,), "barrier")),
        "check the peers",
    ),
    Case(
        "group_order",
        2,
        "deadlock",
        (Expected((0,), "group tensor_parallel", "waits"), Expected((1,), "group data_parallel", "waits")),
        "in one order",
    ),
    Case(
        "group_creation_order",
        3,
        "deadlock",
        (Expected((0,), "a new communicator of 2", stands="stands"), Expected((1,), "all_reduce", stands="stands")),
    ),
    Case(
        "gloo_barrier",
        3,
        "deadlock",
        (Expected((0, 1), "barrier", stands="stands"), Expected((2,), "all_reduce #2", "waits")),
        "is inside `if rank != 2`",
    ),
    Case(
        "object_list",
        2,
        "mismatch",
        (Expected((0,), "broadcast", "waits"), Expected((1,), "all_reduce")),
        "is inside `if rank == 0`",
    ),
    Case(
        "checkpoint_on_rank_zero",
        2,
        "mismatch",
        (Expected((0,), "all_gather", "waits"), Expected((1,), "all_gather")),
        "is inside `if step == 1 and rank == 0`",
    ),
    Case(
        "ddp_uneven_inputs",
        2,
        "deadlock",
        (Expected((0,), "all_reduce", "waits"), Expected((1,), "ended with exit code 0")),
        "fewer batches",
        slow=False,
    ),
    Case("ddp_no_sync", 2, "deadlock", (Expected((0,), "broadcast", "waits"), Expected((1,), "ended")), "no_sync"),
    Case(
        "ddp_skipped_batch",
        2,
        "mismatch",
        (Expected((0,), "all_reduce of 1348", "waits"), Expected((1,), "all_reduce of 3", "posted")),
    ),
    Case(
        "ddp_different_models",
        2,
        "mismatch",
        (Expected((0,), "broadcast of 16000", "waits"), Expected((1,), "broadcast of 16128", "waits")),
        "different sizes",
    ),
    Case("fsdp_skipped_layer", 2, "deadlock", (Expected((0,), "all_gather", "waits"),), "is inside `if rank != 1`"),
    Case(
        "tensor_parallel_skip",
        4,
        "deadlock",
        (Expected((0,), "mesh_dp", stands="stands"), Expected((2,), "mesh_tp", "waits", "stands")),
        slow=False,
    ),
    Case("pipeline_micro_batches", 2, "deadlock", (Expected((1,), "receive from rank 0", "waits"),)),
    Case("swallowed_exception", 3, "deadlock", (Expected((0, 1), "all_reduce #2", "waits"), Expected((2,), "ended"))),
    Case("background_thread", 2, "deadlock", (Expected((0,), "all_reduce #2", "waits", "stands"),)),
    Case(
        "partial_deadlock",
        4,
        "partial deadlock",
        (
            Expected((0,), "receive from rank 1 of group left", "waits"),
            Expected((1,), "receive from rank 0 of group left", "waits too"),
            Expected((2, 3), "running"),
        ),
        slow=False,
    ),
    Case(
        "asleep",
        2,
        "no progress",
        (Expected((0,), "all_reduce #2", "waits"), Expected((1,), "sleeping", stands="stands")),
        options=("--on-hang", "abort", "--hang-after", "3"),
    ),
    Case(
        "uneven_all_to_all",
        2,
        "mismatch",
        (Expected((0,), "send of 6", "waits"), Expected((1,), "receive of 8", "waits")),
    ),
    Case(
        "message_sizes",
        2,
        "mismatch",
        (Expected((0,), "send of 8 fp32", "waits", "stands"), Expected((1,), "receive of 6 fp32", "waits too")),
        "the same number of bytes",
    ),
    Case("broken_ring", 3, "deadlock", (Expected((0,), "receive from rank 2", "waits", "stands"),), "check the peers"),
    Case(
        "same_gpu",
        2,
        "mismatch",
        (Expected((0, 1), "making a communicator in all_reduce", stands="waits"),),
        'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        slow=False,
        raises=True,
    ),
    Case(
        "queued_at_the_end",
        2,
        "deadlock",
        (
            Expected((0,), "all_reduce #2 of the default group", "queued", "stands"),
            Expected((1,), "8 fp32, 32 bytes, queued when the rank ended", "waits"),
        ),
    ),
    Case("silent_shift", 2, "deadlock", (Expected((0,), "all_reduce_barrier #6", "waits"),), "were matched"),
)

CORRECT = {
    "slow_rank": 2,
    "slow_host": 2,
    "disjoint_groups": 4,
    "never_waited_for": 2,
    "slow_data_loader": 2,
    "join_context": 2,
    "early_stopping": 2,
    "leaves_early": 2,
    "ends_first": 4,
    "own_visible_gpu": 2,
    "producer_thread": 2,
    "patient_store": 2,
    "compiled": 2,
    "device_mesh": 16,
}
QUICK = ("slow_rank", "device_mesh", "ends_first", "own_visible_gpu")


def _line(script: Path, mark: str) -> int:
    lines = script.read_text(encoding="utf-8").splitlines()
    (found,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}"))
    return found


def _parameters() -> list[Any]:
    return [pytest.param(case, id=case.script, marks=[pytest.mark.slow] if case.slow else []) for case in CASES]


@pytest.mark.parametrize("case", _parameters())
def test_a_broken_script_is_reported_with_ranks_call_and_line(case: Case, build: Build, tmp_path: Path) -> None:
    script = SCRIPTS / f"{case.script}.py"
    run = launch(tmp_path, script, case.ranks, *case.options)
    report = run.suspicion if case.kind == "no progress" else run.report
    assert report is not None, run.output
    assert run.exit_code == 1
    assert report["kind"] == case.kind
    assert f"maya-torchrun: {case.kind}" in run.output
    assert case.kind != "mismatch" or ("Traceback" in run.output) == case.raises
    for expected in case.groups:
        groups = [group for group in report["groups"] if tuple(group["ranks"]) == expected.ranks]
        assert groups, f"{expected} is not in {run.output}"
        (group,) = groups
        assert expected.doing in group["doing"]
        if expected.waits:
            assert group["called_at"]["line"] == _line(script, expected.waits)
        if expected.stands:
            assert group["stands_at"]["line"] == _line(script, expected.stands)
    assert not case.hint or any(case.hint in hint for hint in report["hints"])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CORRECT]
)
def test_a_correct_script_gets_no_report(name: str, build: Build, tmp_path: Path) -> None:
    run = launch(tmp_path, SCRIPTS / "correct" / f"{name}.py", CORRECT[name])
    assert run.exit_code == 0, run.output
    assert run.report is None
    assert run.suspicion is None
