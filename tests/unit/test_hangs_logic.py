"""Which ranks are stuck, and the report that says so: without any processes."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.coordinator_ranks import join

from coordinator.communicators import PendingWait
from coordinator.hangs.deadlock import Condition, stuck_ranks
from coordinator.hangs.flight_recorder import Entry, RecordedGroup, Recorder
from coordinator.hangs.hang_report import make_report
from coordinator.hangs.processes import Doing
from coordinator.hangs.rank_groups import Finding, Rank
from coordinator.hangs.report_file import write_report
from coordinator.hangs.source_names import backward_before
from coordinator.hangs.user_source import branches
from coordinator.server import Server
from coordinator.state import State
from maya.hangs import python_stacks, report_text
from maya.hangs.python_stacks import Frame, Stacks
from rank_runtime.messages import Call, DataType, Done, Drain, Failed, Post, Reduction

FREE, CALLS, OTHERS, ENDED = Condition.FREE, Condition.CALLS, Condition.OTHER_RANKS, Condition.ENDED


def wait(waiting: tuple[int, ...], missing: tuple[int, ...], communicator: int = 1) -> PendingWait:
    return PendingWait("all_reduce", communicator, 0, waiting, missing)


def conditions(*each: Condition) -> dict[int, Condition]:
    return dict(enumerate(each))


# ---- stuck ranks ----


def test_ranks_that_wait_for_one_that_runs_are_not_stuck() -> None:
    assert stuck_ranks(conditions(CALLS, CALLS, FREE), [wait((0, 1), (2,))]) == set()


def test_ranks_that_wait_for_one_that_has_ended_are_stuck() -> None:
    assert stuck_ranks(conditions(CALLS, CALLS, ENDED), [wait((0, 1), (2,))]) == {0, 1}


def test_a_circle_is_stuck_while_others_run() -> None:
    waits = [wait((0,), (1,)), wait((1,), (0,), communicator=2)]
    assert stuck_ranks(conditions(CALLS, CALLS, FREE, FREE), waits) == {0, 1}


def test_a_rank_that_waits_for_a_stuck_rank_is_stuck() -> None:
    waits = [wait((0,), (1,)), wait((1,), (2,), communicator=2)]
    assert stuck_ranks(conditions(CALLS, CALLS, ENDED, FREE), waits) == {0, 1}


def test_one_of_several_waits_that_can_end_is_enough() -> None:
    waits = [wait((0,), (1,)), wait((0,), (2,), communicator=2)]
    assert stuck_ranks(conditions(CALLS, ENDED, FREE), waits) == set()


def test_a_running_rank_may_still_set_a_store_key() -> None:
    assert stuck_ranks(conditions(OTHERS, FREE), []) == set()
    assert stuck_ranks(conditions(OTHERS, CALLS), [wait((1,), (0,))]) == {0, 1}
    assert stuck_ranks(conditions(OTHERS, ENDED), []) == {0}


def test_a_rank_whose_answer_is_on_its_way_is_not_stuck() -> None:
    assert stuck_ranks(conditions(CALLS, CALLS), [wait((0,), (1,))]) == set()


def test_members_of_a_communicator_in_init_are_only_counted() -> None:
    waits = [wait((0,), (1, 2), communicator=0)]
    assert stuck_ranks(conditions(CALLS, FREE, FREE), waits) == set()
    assert stuck_ranks(conditions(CALLS, FREE, ENDED), waits) == {0}


# ---- what stacks say ----

ANSWER = b"""main 0x00007f0000000001
stream 3
condition 0x00007f0000001000 48
python
Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/me/a b/load.py", line 7 in fill

Thread 0x00007f0000000001 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 1181 in synchronize
  File "/home/me/train.py", line 30 in step
  File "/home/me/train.py", line 50 in <module>
"""


def test_stacks_are_read() -> None:
    told = python_stacks.parse(ANSWER)
    assert told.awaited_streams == (3,)
    assert told.main[1] == Frame("/home/me/train.py", 30, "step")
    assert told.conditions == (range(0x7F0000001000, 0x7F0000001030),)
    assert told.others[0].identity == 0x7F0000000002
    assert [frame.place for frame in told.others[0].frames] == ["threading.py:320", "load.py:7"]
    assert python_stacks.users_frame(told.main) == told.main[1]
    assert not python_stacks.parse(b"").known


def test_conditions_around_a_line_are_found() -> None:
    file = __file__
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    inside = next(number for number, line in enumerate(lines, 1) if line.endswith("# of the first only"))
    (condition,) = branches(Frame(file, inside, "step"))
    assert (condition.line, condition.text) == (inside - 1, "`if rank == 0`")
    assert branches(Frame(file, inside + 2, "step")) == []
    backward = backward_before(Frame(file, inside + 3, "step"))
    assert backward is not None
    assert backward.line == inside + 2


def step(rank: int, loss: object) -> None:
    if rank == 0:
        print(loss)  # of the first only

    loss.backward()  # type: ignore[attr-defined]
    print(loss)


# ---- the report ----


def state_of(ranks: int, posted: list[int]) -> State:
    state = State()
    for rank in range(ranks):
        state.start(rank)
        state.handle(rank, join(rank, b"key", rank, ranks, rank), None)
    for rank in posted:
        state.handle(rank, post(), None)
    return state


def post(count: int = 1024) -> Post:
    return Post(1, 1, Call.ALL_REDUCE, 0, count, DataType.BFLOAT16, Reduction.SUM, -1, (), False)


def told(line: int) -> Stacks:
    return Stacks((Frame("/home/me/train.py", line, "main"),), known=True)


def report_of(ranks: int, late: set[int], kind: str = "deadlock") -> dict[str, Any]:
    state = state_of(ranks, [rank for rank in range(ranks) if rank not in late])
    members = {rank: Rank(rank, Doing.BLOCKED, None, told(50 if rank in late else 30)) for rank in range(ranks)}
    stuck = set(range(ranks)) if kind == "deadlock" else set()
    finding = Finding(kind, stuck, list(state.waits()), 1.5)
    return make_report(finding, members, state, lambda asked: {rank: Recorder() for rank in asked}, str)


def test_a_report_groups_ranks_by_what_they_do() -> None:
    report = report_of(8, {7})
    odd, others = report["groups"]
    assert odd["ranks"] == report["odd"] == [7]
    assert odd["stands_at"]["line"] == 50
    assert others["ranks"] == list(range(7))
    assert others["missing"] == [7]
    assert others["call"]["bytes"] == 2048
    assert others["called_at"]["line"] == 30


def test_a_report_is_one_screen_at_a_thousand_ranks() -> None:
    report = report_of(1024, {7, 300})
    found = report_text.lines(report)
    assert len(found) < 30
    assert max(map(len, found)) < 200
    assert "ranks 7, 300:" in found[2]
    assert "ranks 0-6, 8-299, 301-1023: wait in all_reduce #1" in found[4]
    assert "ranks 7, 300 never called it" in "\n".join(found)
    assert json.loads(json.dumps(report)) == report


def test_a_rank_that_may_still_come_is_late() -> None:
    shown = "\n".join(report_text.warning(report_of(8, {2, 7}, "no progress")))
    assert "ranks 2, 7 have not called it yet" in shown
    assert "never" not in shown
    assert "the job goes on" in shown


def entry(number: int, call: str, line: int, *, completed: bool = False) -> Entry:
    frames = (Frame("/home/me/train.py", line, "main"),)
    return Entry("0", call, number, False, ((1024,),), ("BFloat16",), frames, completed, number, "")


def called_line(entries: list[Entry], posts: int) -> int:
    """Where the call was made that rank 0 waits for, the last of its posts: those before were answered."""
    state = state_of(2, [])
    for number in range(posts):
        for rank in (0, 1) if number < posts - 1 else (0,):
            state.handle(rank, replace(post(), token=number + 1, sequence=number), None)
    members = {rank: Rank(rank, Doing.BLOCKED, None, told(50)) for rank in range(2)}
    recorder = Recorder({"0": RecordedGroup("0", "default_pg", (0, 1))}, tuple(entries))
    finding = Finding("deadlock", {0, 1}, list(state.waits()), 1.5)
    report = make_report(finding, members, state, lambda asked: dict.fromkeys(asked, recorder), str)
    (group,) = (group for group in report["groups"] if group["ranks"] == [0])
    line: int = group["called_at"]["line"]
    return line


def test_the_call_is_the_first_that_is_not_complete() -> None:
    entries = [entry(1, "all_reduce", 30, completed=True), entry(2, "all_reduce", 31), entry(3, "all_reduce", 32)]
    assert called_line(entries, 2) == 31


def test_without_completed_entries_calls_are_counted() -> None:
    entries = [entry(1, "all_reduce", 30), entry(2, "all_reduce", 31), entry(3, "all_reduce", 32)]
    assert called_line(entries, 2) == 31
    assert called_line(entries, 1) == 30


def test_calls_of_an_ended_program_are_read() -> None:
    """Rank 1 waits for rank 0 in one call, and rank 0 for rank 1 in the one behind it."""
    state = state_of(2, [])
    state.handle(1, replace(post(), call=Call.RECEIVE, peer=0), None)
    state.handle(0, post(), None)
    state.handle(1, Drain(), None)
    groups = {"0": RecordedGroup("0", "default_pg", (0, 1))}
    reduce = entry(1, "all_reduce", 31)
    receive = replace(entry(1, "recv 1<-0", 30), is_p2p=True)
    recorders = {0: Recorder(groups, (reduce,)), 1: Recorder(groups, (receive, reduce))}
    members = {0: Rank(0, Doing.BLOCKED, None, told(50)), 1: Rank(1, Doing.BLOCKED, None, told(60))}
    finding = Finding("deadlock", {0, 1}, list(state.waits()), 1.5)
    said = "\n".join(report_text.lines(make_report(finding, members, state, lambda _: recorders, str)))
    assert "rank 1 has called it and queued it behind another call" in said
    assert "2,048 bytes, queued when the rank ended\n      called at train.py:30\n      rank 0 never sent it" in said
    assert "train.py:60" not in said, "of a program that has ended, no stack is the program's"


# ---- answers that fail ----


def test_failures_are_held_until_they_are_reported() -> None:
    server = Server(2, "secret")
    try:
        server.holds_failures = True
        server._put([(0, Failed(1, 5, "no"), None), (1, Done(1, (), False), None)])
        assert [rank for rank, _ in server.held_failures] == [0]
        server.turn()
        assert server.batches_out == 0, "others go on, and are gone when it is reported"
        server.release_failures()
        assert server.held_failures == []
        assert not server.holds_failures
    finally:
        server.close()


def test_a_report_without_room_in_its_folder_is_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, taken = tmp_path / "elsewhere", tmp_path / "taken"
    elsewhere.mkdir()
    taken.write_text("a file, so that nothing can be written below it", encoding="utf-8")
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    assert write_report(tmp_path, "hang.json", {"kind": "deadlock"}) == {"file": str(tmp_path / "hang.json")}
    file = Path(write_report(taken, "hang.json", {"kind": "deadlock"})["file"])
    assert file.parent == elsewhere
    assert json.loads(file.read_text(encoding="utf-8")) == {"kind": "deadlock"}
    assert list(elsewhere.iterdir()) == [file]
    monkeypatch.setattr(tempfile, "tempdir", str(taken))
    assert write_report(taken, "hang.json", {"kind": "deadlock"}) == {"file": None, "report": {"kind": "deadlock"}}
