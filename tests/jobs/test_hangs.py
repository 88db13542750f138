"""Broken scripts: the report names the ranks, the call and the line, and the job fails. Correct ones: there is none.

The scripts are in tests/jobs/hangs; comments in them mark the lines that a report must name:

    # waits     where the call was made that can never be completed
    # stands    where the program is
    # diverges  the call that some ranks left out, or made in addition
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
    hint: str = ""  # part of the first one
    odd: tuple[int, ...] | None = None  # the ranks that the report blames
    diverges: str = ""  # skipped or extra: the calls of the odd ranks at the line marked so
    options: tuple[str, ...] = ()
    nodes: int = 1
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
        "`if rank == 0`",
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
        "has left the loop `for _ in range(3 if rank == 0 else 2)`",
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
        "rank 1 has left the loop `for batch in batches`",
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
    Case(
        "silent_shift",
        4,
        "deadlock",
        (
            Expected((0, 2, 3), "all_reduce_barrier #6", "waits"),
            Expected((1,), "the key 'evaluated' of the store", stands="stands"),
        ),
        "is inside `if rank != 1 or step != 1`",
        odd=(1,),
        diverges="skipped",
        slow=False,
    ),
    Case(
        "skipped_and_ended",
        4,
        "deadlock",
        (Expected((0, 2, 3), "all_reduce_barrier #6", "waits"), Expected((1,), "ended")),
        "is inside `if rank != 1 or step != 1`",
        odd=(1,),
        diverges="skipped",
    ),
    Case(
        "extra_norm",
        4,
        "deadlock",
        (Expected((0,), "all_reduce #6", "waits"), Expected((1, 2, 3), "the key 'finished'")),
        "is inside `if rank == 0 and number == 2`",
        odd=(0,),
        diverges="extra",
    ),
    Case(
        "graph_replays",
        3,
        "deadlock",
        (Expected((0, 2), "all_reduce_barrier", "waits"), Expected((1,), "the key 'finished'")),
        odd=(1,),
        diverges="skipped",
    ),
    Case(
        "main_process_metrics",
        4,
        "deadlock",
        (Expected((0,), "all_reduce_barrier #3"), Expected((1, 2, 3), "ended")),
        "is inside `if progress.is_main_process`",
        odd=(0,),
    ),
    Case(
        "rank_zero_only",
        3,
        "deadlock",
        (Expected((0,), "in all_gather", "waits"), Expected((1, 2), "ended")),
        "is in save(), which `@rank_zero_only`",
    ),
    Case(
        "local_process_zero",
        4,
        "deadlock",
        (Expected((0, 2), "all_reduce #2", "waits"), Expected((1, 3), "ended")),
        "is inside `if is_local_process_zero()`",
        nodes=2,
        odd=(1, 3),
    ),
    Case(
        "empty_batch",
        3,
        "deadlock",
        (Expected((0, 1), "in all_reduce", "waits"), Expected((2,), "other ranks in barrier", stands="stands")),
        "len(batch) is 3 on rank 0, 0 on rank 2",
        odd=(2,),
    ),
    Case(
        "early_return",
        3,
        "deadlock",
        (Expected((0, 2), "in all_reduce", "waits"), Expected((1,), "other ranks in barrier", stands="stands")),
        "`return` under `if samples == 0` (early_return.py:14) skips early_return.py:16; samples is 16 on rank 0, 0 on",
        odd=(1,),
    ),
    Case(
        "early_stopping_alone",
        2,
        "deadlock",
        (Expected((1,), "all_reduce #4", "waits"), Expected((0,), "other ranks in barrier", stands="stands")),
        "`break` under `if epoch > patience`",
        odd=(0,),
    ),
    Case(
        "loop_lengths",
        2,
        "deadlock",
        (Expected((0,), "all_reduce #4", "waits"), Expected((1,), "other ranks in barrier", stands="stands")),
        "(step is 3 there); steps is 4 on rank 0, 3 on rank 1",
        odd=(1,),
    ),
    Case(
        "generation",
        2,
        "deadlock",
        (Expected((0,), "all_reduce #4", "waits"), Expected((1,), "other ranks in barrier", stands="stands")),
        "last is 5 on rank 0, 2 on rank 1",
        odd=(1,),
    ),
    Case(
        "different_store_keys",
        2,
        "deadlock",
        (Expected((0, 1), "waiting for the keys 'epoch-3', 'epoch-4' of the store", stands="stands"),),
        "different keys of the store: 'epoch-3', 'epoch-4'",
    ),
    Case(
        "uneven_micro_batches",
        2,
        "deadlock",
        (Expected((0,), "in barrier"), Expected((1,), "receive from rank 0", "waits")),
        "micro_batches is 4 on rank 1, 2 on rank 0",
    ),
    Case(
        "file_lock",
        2,
        "no progress",
        (Expected((0,), "all_reduce #3", "waits"), Expected((1,), "waiting for a file lock", stands="stands")),
        "held by rank 0",
        options=("--on-hang", "abort", "--hang-after", "3"),
    ),
    Case(
        "dead_helper",
        2,
        "no progress",
        (Expected((0,), "all_reduce #2", "waits"), Expected((1,), "waiting", stands="stands")),
        "no other thread runs the program",
        options=("--on-hang", "abort", "--hang-after", "3"),
    ),
    Case(
        "bad_batch",
        2,
        "mismatch",
        (Expected((0,), "64 fp32", "waits"), Expected((1,), "1 fp32", stands="stands")),
        "`continue` under `if not math.isfinite(loss)`",
    ),
    Case(
        "work_queue",
        2,
        "mismatch",
        (Expected((0,), "10 fp32", "waits"), Expected((1,), "1 fp32", stands="stands")),
        "rank 1 has left the loop `while documents`",
    ),
    Case(
        "match_role",
        2,
        "deadlock",
        (Expected((0,), "member 1", stands="waits"), Expected((1,), "ended")),
        "is inside `case 'trainer'` of `match role`",
    ),
    Case(
        "short_circuit",
        2,
        "deadlock",
        (Expected((0,), "member 1", stands="waits"), Expected((1,), "ended")),
        "is inside `verbose and …`",
    ),
    Case(
        "filtered_tensors",
        2,
        "mismatch",
        (Expected((0,), "4 fp32", "waits"), Expected((1,), "1 fp32", stands="stands")),
        "is inside a comprehension with `if count > 0`",
    ),
    Case(
        "suppressed_error",
        2,
        "mismatch",
        (Expected((0,), "16 fp32", "waits"), Expected((1,), "1 fp32", stands="stands")),
        "`with contextlib.suppress(KeyError)`",
    ),
    Case(
        "barrier_before_device",
        2,
        "deadlock",
        (Expected((0,), "broadcast #2", "waits"), Expected((1,), "other ranks in broadcast", stands="waits")),
        "rank 1 makes another communicator for this call: the tensor is on another GPU",
    ),
    Case(
        "hook_on_main",
        2,
        "deadlock",
        (Expected((0,), "all_reduce #2", "waits", "stands"), Expected((1,), "ended")),
        "is inside `if dist.get_rank() == 0`",
    ),
    Case(
        "zipped_loaders",
        2,
        "mismatch",
        (Expected((1,), "8 fp32", "waits"), Expected((0,), "1 fp32", stands="stands")),
        "len(unlabelled) is 4 on rank 1, 3 on rank 0",
    ),
    Case(
        "unordered_parameters",
        2,
        "mismatch",
        (Expected((0,), "48 fp32", "waits"), Expected((1,), "64 fp32", "waits")),
        "name is 'attention' on rank 1, 'head' on rank 0",
    ),
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
    "legal_branches": 3,
    "evaluates_alone": 2,
    "async_checkpoint": 2,
    "worker_pool": 2,
    "lock_in_turns": 3,
    "polls_for_file": 2,
    "polls_for_work": 2,
    "synced_generation": 2,
    "unequal_pipeline": 3,
    "replays_graphs": 2,
    "helper_threads": 2,
    "asyncio_waits": 2,
    "own_socket": 2,
    "skip_by_vote": 2,
    "padded_queue": 2,
    "roles_in_subgroups": 4,
}
QUICK = ("slow_rank", "device_mesh", "ends_first")


def _line(script: Path, mark: str) -> int:
    lines = script.read_text(encoding="utf-8").splitlines()
    (found,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}"))
    return found


def _parameters() -> list[Any]:
    return [pytest.param(case, id=case.script, marks=[pytest.mark.slow] if case.slow else []) for case in CASES]


@pytest.mark.parametrize("case", _parameters())
def test_a_broken_script_is_reported_with_ranks_call_and_line(case: Case, build: Build, tmp_path: Path) -> None:
    script = SCRIPTS / f"{case.script}.py"
    nodes = ("--nnodes", str(case.nodes)) if case.nodes > 1 else ()
    run = launch(tmp_path, script, case.ranks, *nodes, *case.options)
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
    assert not case.hint or case.hint in report["hints"][0]
    assert case.odd is None or tuple(report["odd"]) == case.odd
    assert any("no_sync" in hint for hint in report["hints"]) == (case.script == "ddp_no_sync")
    assert bool(report["shift"]) >= bool(case.diverges)
    if case.diverges:
        assert report["shift"]["difference"] == case.diverges
        assert tuple(report["shift"]["odd"]) == case.odd
        assert report["shift"]["calls"][0]["called_at"]["line"] == _line(script, "diverges")
    verdict = run.output[run.output.rindex(f"maya-torchrun: {case.kind}") :].splitlines()
    assert len(verdict) < 40
    assert not any(line.startswith("maya-torchrun: ") for line in verdict[1:-2]), "the report comes last"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CORRECT]
)
def test_a_correct_script_gets_no_report(name: str, build: Build, tmp_path: Path) -> None:
    run = launch(tmp_path, SCRIPTS / "correct" / f"{name}.py", CORRECT[name])
    assert run.exit_code == 0, run.output
    assert run.report is None
    assert run.suspicion is None
