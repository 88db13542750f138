"""Which process is which rank of which job below `maya exec`."""

from __future__ import annotations

import pytest

from coordinator.session.jobs import SessionJobs
from coordinator.session.session_state import SessionState
from maya.session.options import name_of
from rank_runtime.messages import Alive, Ask, Join, Joined, RankPlace, Times
from rank_runtime.trace_format import RecordKind


def place(rank: int, ranks: int, job: str = "a", *, certain: bool = True, per_node: int = 0) -> RankPlace:
    return RankPlace(rank, ranks, per_node, job, certain)


def found(jobs: SessionJobs) -> list[tuple[int, dict[int, int]]]:
    """World size and processes by rank of every job."""
    return [(job.ranks, job.processes) for job in jobs.jobs]


def test_processes_that_name_the_same_job_are_its_ranks() -> None:
    jobs = SessionJobs(8)
    for process, stated in enumerate([place(1, 2), place(0, 2, "b"), place(0, 2), place(1, 2, "b")]):
        jobs.connected(process)
        jobs.state(process, stated)
    assert found(jobs) == [(2, {1: 0, 0: 2}), (2, {0: 1, 1: 3})]


@pytest.mark.parametrize(("ranks", "per_node", "expected"), [(16, 0, 8), (2, 0, 2), (16, 4, 4), (4, 8, 4)])
def test_a_node_has_the_ranks_that_the_launcher_says_or_its_gpus(ranks: int, per_node: int, expected: int) -> None:
    jobs = SessionJobs(8)
    jobs.connected(0)
    jobs.state(0, place(0, ranks, per_node=per_node))
    assert jobs.jobs[0].ranks_per_node == expected


def test_a_restarted_rank_is_in_another_job() -> None:
    jobs = SessionJobs(8)
    for process in range(2):
        jobs.connected(process)
        jobs.state(process, place(0, 1))
        jobs.ended(process)
    assert found(jobs) == [(1, {0: 0}), (1, {0: 1})]
    assert all(job.is_over for job in jobs.jobs)


def test_inherited_variables_count_only_if_they_fill_a_job() -> None:
    jobs = SessionJobs(8)
    guesses = {0: place(0, 2, certain=False), 1: place(1, 2, certain=False), 2: place(3, 8, "slurm", certain=False)}
    for process, guess in guesses.items():
        jobs.connected(process)
        jobs.state(process, guess)
    jobs.ended(0)
    jobs.place_ended()
    assert found(jobs) == []  # rank 1 may still end
    jobs.ended(1)
    jobs.ended(2)
    jobs.place_ended()
    assert found(jobs) == [(2, {0: 0, 1: 1}), (1, {0: 2})]


def test_the_programs_statement_comes_before_the_environments() -> None:
    jobs = SessionJobs(8)
    jobs.connected(0)
    jobs.state(0, place(5, 8, certain=False))
    jobs.state(0, place(0, 1, "own"))
    jobs.state(0, place(1, 4, "later"))
    assert found(jobs) == [(1, {0: 0})]


def join(member: int, request: int) -> Join:
    return Join(request, b"key", member, 2, 0, member, member)


def test_two_jobs_communicate_beside_each_other() -> None:
    """Answers go to processes; members are ranks of the job; durations are answered before a place is known."""
    state = SessionState(None, 8)
    for process in range(4):
        state.start(process)
    assert state.handle(3, Ask(7, RecordKind.KERNEL, "{}", "", 0), None) == []
    assert state.answer_asks() == [(3, Times([7], [0]), None)]
    for process, stated in ((0, place(0, 2)), (1, place(0, 2, "b")), (2, place(1, 2)), (3, place(1, 2, "b"))):
        assert state.handle(process, stated, None) == []
    assert state.handle(0, join(0, 10), None) == []
    assert state.handle(1, join(0, 11), None) == []
    answers = state.handle(2, join(1, 12), None)
    assert [(process, type(answer)) for process, answer, _ in answers] == [(0, Joined), (2, Joined)]
    assert [answer.members for _, answer, _ in answers if isinstance(answer, Joined)] == [(0, 1), (0, 1)]
    assert [process for process, _, _ in state.handle(3, join(1, 13), None)] == [1, 3]
    state.handle(2, Alive(5), None)
    assert [state.steps_of(process) for process in range(4)] == [0, 0, 5, 0]
    for process in range(4):
        state.end(process)
    assert all(job.is_over for job in state.placing.jobs)


def test_a_process_that_communicates_with_itself_is_a_job() -> None:
    state = SessionState(None, 8)
    state.start(0)
    state.handle(0, join(0, 1), None)
    answers = state.handle(0, join(1, 2), None)
    assert [answer.members for _, answer, _ in answers if isinstance(answer, Joined)] == [(0, 0), (0, 0)]
    assert found(state.placing) == [(1, {0: 0})]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun --nproc-per-node 2 train.py --epochs 3", "train.py"),
        ("python -m torch.distributed.run jobs/train.py", "train.py"),
        ("python -m package.train", "package-train"),
        ("/usr/bin/pytest -q tests", "pytest"),
    ],
)
def test_a_run_is_named_after_the_script(command: str, name: str) -> None:
    assert name_of(command.split()) == name
    assert name_of(["sh", "-c", command]) == "sh"
