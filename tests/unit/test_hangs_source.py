"""What the source and the values of variables say about a call that some ranks make and others do not."""

from __future__ import annotations

import ast
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from coordinator.hangs.frame_values import RankValues, Unknown, parse
from coordinator.hangs.source_hints import CERTAIN, LIKELY, Hint, Side, UnsharedCall, hints_about
from coordinator.hangs.user_source import leavings, loops, swallowing_handlers
from maya.hangs.python_stacks import Frame

Values = dict[str, Any]


class Program:
    """A source file whose marks (`# call`) name lines."""

    def __init__(self, folder: Path, text: str) -> None:
        self.file = str(folder / "train.py")
        self.text = textwrap.dedent(text)
        Path(self.file).write_text(self.text, encoding="utf-8")

    def line(self, mark: str) -> int:
        (found,) = (n for n, line in enumerate(self.text.splitlines(), 1) if line.endswith(f"# {mark}"))
        return found

    def frame(self, mark: str, function: str = "main") -> Frame:
        return Frame(self.file, self.line(mark), function)

    def values(self, rank: int, mark: str, values: Values, function: str = "main") -> RankValues:
        """A rank that is at a line."""
        frame = {"file": self.file, "line": self.line(mark), "function": function, "values": values}
        return parse(rank, json.dumps({"threads": [[frame]], "modules": {}}).encode())

    def hints(self, callers: RankValues | None, others: RankValues | None, *frames: Frame) -> list[Hint]:
        call = UnsharedCall(
            frames or (self.frame("call"),),
            Side((0,), callers),
            Side((1,), others, has_ended=others is None),
        )
        return hints_about(call)


def test_values_decide_which_condition_divides_the_ranks(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def main():
            if ready:
                if loss < 4:
                    reduce()  # call
            done()  # after
        """,
    )
    one = program.values(0, "call", {"ready": True, "loss": 3.5})
    other = program.values(1, "after", {"ready": True, "loss": 4.5})
    ((certainty, text),) = program.hints(one, other)
    assert certainty == CERTAIN
    assert "is inside `if loss < 4` (train.py:4)" in text
    assert text.endswith("; loss is 3.5 on rank 0, 4.5 on rank 1")


def test_a_condition_that_holds_on_both_sides_gives_no_hint(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def main():
            if rank < 8:
                reduce()  # call
            done()  # after
        """,
    )
    one, other = program.values(0, "call", {"rank": 0}), program.values(1, "after", {"rank": 1})
    assert program.hints(one, other) == []
    ((certainty, text),) = program.hints(None, None)
    assert certainty == LIKELY
    assert "`if rank < 8`" in text


def test_a_condition_on_the_round_alone_gives_no_hint(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def main():
            for step in range(10):
                if step % 2 == 0:
                    reduce()  # call
                wait()  # elsewhere
        """,
    )
    one, other = program.values(0, "call", {"step": 2}), program.values(1, "elsewhere", {"step": 3})
    assert not any("is inside" in text for _, text in program.hints(one, other))


def test_the_parameters_of_a_function_that_has_returned_are_those_that_its_caller_passes(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def evaluate(samples, *, steps):
            if not samples:
                return None
            reduce()  # call

        def main():
            evaluate(data.size, steps=3)  # outer
            done()  # after
        """,
    )
    inner, outer = program.frame("call", "evaluate"), program.frame("outer")
    one = program.values(0, "call", {"samples": 16}, "evaluate")
    other = program.values(1, "after", {"data.size": 0})
    ((certainty, text),) = program.hints(one, other, inner, outer)
    assert certainty == CERTAIN
    assert "`return` under `if not samples` (train.py:4) skips train.py:5" in text
    assert "samples is 16 on rank 0, 0 on rank 1" in text


def test_statements_that_leave_are_those_of_the_same_function_and_loop(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def main():
            if first:
                return
            for step in steps:
                for part in parts:
                    if inner:
                        break
                if second:
                    continue
                reduce()  # call
                if third:
                    break
            if late:
                return
            def other():
                if unrelated:
                    return
        """,
    )
    found = {leaving.condition.text for leaving in leavings(program.frame("call"))}
    assert found == {"`if first`", "`if second`", "`if third`"}
    (loop,) = loops(program.frame("call"))
    assert (loop.head, loop.counters) == ("for step in steps", ("step",))


def test_handlers_that_end_the_program_swallow_nothing(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def main():
            try:
                reduce()  # call
            except ValueError:
                raise SystemExit
            except KeyError:
                sys.exit(1)
            except OSError as error:
                print(error)
        """,
    )
    assert swallowing_handlers(program.frame("call")) == [(3, 9)]


def test_broken_source_gives_no_hint(tmp_path: Path) -> None:
    program = Program(tmp_path, "def main(:\n    reduce()  # call")
    assert program.hints(None, None) == []
    missing = UnsharedCall((Frame("/nowhere/train.py", 3, "main"),), Side((0,)), Side((1,)))
    assert hints_about(missing) == []


# ---- values ----


def evaluated(expression: str, **values: Any) -> Any:
    rank = parse(3, json.dumps({"threads": [], "modules": {"train.py": values}}).encode())
    return rank.evaluate("train.py", "main", ast.parse(expression, mode="eval").body)


def test_expressions_are_evaluated_from_values_alone() -> None:
    assert evaluated("step % 4 == 3 and not done", step=7, done=False) is True
    assert evaluated("known or missing", known=True) is True, "one operand decides"
    assert evaluated("known and missing", known=False) is False
    assert evaluated("f'epoch-{epoch}'", epoch=3) == "epoch-3"
    assert evaluated("dist.get_rank() == 3") is True
    assert evaluated("0 < step <= 7", step=7) is True
    assert evaluated("4 if fast else 8", fast=False) == 8


@pytest.mark.parametrize(
    "expression",
    ["missing", "known and missing", "open('/etc/passwd')", "step // 0", "items[0]", "'a' * 10**9", "step.real"],
)
def test_everything_else_is_unknown(expression: str) -> None:
    with pytest.raises(Unknown):
        evaluated(expression, known=True, step=7)


def test_damaged_answers_have_no_values() -> None:
    for answer in (b"", b"{", b"[]", b'{"threads": [[{}]], "modules": {}}', b'{"threads": 3}'):
        assert parse(2, answer) == RankValues(2)


def test_a_case_that_the_other_side_does_not_match_is_certain(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def main():
            match role:
                case "trainer" | "helper":
                    reduce()  # call
                case _:
                    score()
            done()  # after
        """,
    )
    callers = program.values(0, "call", {"role": "helper"})
    ((certainty, text),) = program.hints(callers, program.values(1, "after", {"role": "evaluator"}))
    assert certainty == CERTAIN
    assert "is inside `case 'trainer' | 'helper'` of `match role`" in text
    assert "role is 'helper' on rank 0, 'evaluator' on rank 1" in text
    assert program.hints(callers, program.values(1, "after", {"role": "helper"})) == []


@pytest.mark.parametrize(
    ("line", "condition"),
    [
        ("verbose and reduce()", "`verbose and …`"),
        ("loss = reduce() if verbose else 0", "`if verbose`"),
        ("loss = 0 if verbose else reduce()", "the else of `if verbose`"),
        ("losses = [reduce(each) for each in parts if verbose]", "a comprehension with `if verbose`"),
    ],
)
def test_conditions_inside_an_expression_count(line: str, condition: str, tmp_path: Path) -> None:
    program = Program(tmp_path, f"def main():\n    verbose = dist.get_rank() == 0\n    {line}  # call\n")
    ((certainty, text),) = program.hints(None, None)
    assert certainty == LIKELY
    assert f"is inside {condition} " in text


@pytest.mark.parametrize(
    "line", ["ready() and reduce()", "first() if verbose else second()", "[reduce() for _ in range(4)]"]
)
def test_an_expression_with_several_calls_gives_no_hint(line: str, tmp_path: Path) -> None:
    program = Program(tmp_path, f"def main():\n    verbose = rank == 0\n    {line}  # call\n")
    assert program.hints(None, None) == []


def test_a_condition_is_about_ranks_if_its_names_were_assigned_so(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def main():
            quiet = arguments.quiet
            mine = [part for part in parts if part.owner == rank]
            for part in mine:
                if not part.ready:
                    continue
                if not quiet:
                    reduce()  # call
        """,
    )
    texts = [text for _, text in program.hints(None, None)]
    assert [text.partition(" (")[0] for text in texts[:1]] == ["`continue` under `if not part.ready`"]
    assert not any("quiet" in text for text in texts)


def test_a_loop_that_runs_equally_often_everywhere_is_no_reason(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def main():
            for step in range(4):
                reduce()  # call
        """,
    )
    assert program.hints(None, None) == []


def test_a_hook_that_one_rank_registers_is_found(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def log_norm(module, inputs, output):
            reduce()  # call

        if rank == 0:
            model.register_forward_hook(log_norm)
        model(batch)  # outer
        """,
    )
    frames = (program.frame("call", "log_norm"), program.frame("outer", "<module>"))
    ((certainty, text),) = program.hints(None, None, *frames)
    assert certainty == LIKELY
    assert "is inside `if rank == 0`" in text


def test_suppressed_exceptions_may_skip_a_call(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def main():
            with suppress(KeyError):
                reduce()  # call
            done()  # after
        """,
    )
    ((_, text),) = program.hints(None, program.values(1, "after", {}))
    assert "`with suppress(KeyError)` (train.py:3) goes on after its block" in text
    assert program.hints(None, program.values(1, "call", {})) == []
