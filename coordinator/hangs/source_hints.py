"""Hints from the source around a call: why some ranks make it and others do not.

In: the frames of a call that some ranks made and others did not, and values of variables on both sides. Out: hints, the
most certain first. All frames of the program count, from the call outwards: the reason is often in a caller.

A hint is certain if the values of both sides show that the code goes different ways. Otherwise it must speak of ranks,
or follow from where the ranks are. A condition that holds on both sides is no reason, and gives no hint.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.hangs import source_names, user_source
from coordinator.hangs.frame_values import RankValues, Unknown, evaluate, names_of
from coordinator.hangs.user_source import Loop, SourceCondition
from maya.hangs.python_stacks import Frame
from maya.util.ranks import ranks_text

_ABOUT_RANKS = re.compile(
    r"rank|main_process|master|process_zero|process_index|coordinator|leader|chief|is_(main|first|last|primary|writer)"
    r"|global_zero|stage",
    re.IGNORECASE,
)
_ONE_RANK_ONLY = re.compile(r"rank_zero|rank0|rank_0|main_process|master|process_zero|local_zero", re.IGNORECASE)
_MOST_NAMES = 3
_LONGEST_VALUE = 40

Hint = tuple[int, str]  # how certain it is, from 0: certain; the text
CERTAIN, LIKELY, POSSIBLE = 0, 1, 2


@dataclass(frozen=True)
class Side:
    """Ranks on one side of a call."""

    ranks: tuple[int, ...]
    values: RankValues | None = None  # of one of them; None: it has ended, or did not answer
    has_ended: bool = False


@dataclass(frozen=True)
class UnsharedCall:
    """A call that some ranks made and others did not."""

    frames: tuple[Frame, ...]  # of the program, from the call outwards
    callers: Side
    others: Side
    is_p2p: bool = False
    inside: tuple[Frame, ...] = ()  # of libraries, below the program's frames


def hints_about(call: UnsharedCall) -> list[Hint]:
    """All hints about a call, from the call outwards."""
    found: list[Hint] = []
    for frame in call.frames:
        found += _conditions(call, frame)
        found += _leavings(call, frame)
        found += _decorators(call, frame)
        found += _registrations(call, frame)
        found += _loops(call, frame)
    if call.frames and call.frames[-1].function != "<module>":  # a thread: where it was started
        outermost = call.frames[-1]
        for line in source_names.uses_of(outermost.file, outermost.function):
            found += _conditions(call, Frame(outermost.file, line, "<module>"))
    for frame in call.inside:
        found += _bounds_of_loops(call, frame)
    if not found:
        found += _swallowed(call)
    return found


def _registrations(call: UnsharedCall, frame: Frame) -> Iterator[Hint]:
    """Conditions around the line that hands a function to a library, which calls it: hooks, callbacks."""
    outer = _caller(call, frame)
    if outer is not None and not source_names.calls_function(outer, frame.function):
        for line in source_names.uses_of(frame.file, frame.function):
            yield from _conditions(call, Frame(frame.file, line, "<module>"))


def _about_ranks(frame: Frame, expression: ast.expr, depth: int = 2) -> bool:
    """Whether an expression speaks of ranks, or the names in it were assigned from one that does."""
    if _ABOUT_RANKS.search(ast.unparse(expression)):
        return True
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)} if depth else set()
    return any(
        _about_ranks(frame, value, depth - 1) for name in sorted(names) for value in source_names.assigned(frame, name)
    )


def _place(frame: Frame, line: int) -> str:
    return f"{Path(frame.file).name}:{line}"


# ---- conditions ----


def _conditions(call: UnsharedCall, frame: Frame) -> Iterator[Hint]:
    if call.is_p2p:  # which rank sends and which receives is the point of a branch
        return
    for condition in user_source.branches(frame):
        certainty = _certainty(call, frame, condition, reached=True)
        if certainty is None:
            continue
        text = (
            f"{frame.place} is inside {condition.text} ({_place(frame, condition.line)}): a collective must be called "
            "by all ranks of its group"
        )
        yield certainty, text + _values_text(call, frame, condition.test)


def _leavings(call: UnsharedCall, frame: Frame) -> Iterator[Hint]:
    handlers = user_source.swallowing_handlers(frame) or [
        handler for outer in call.frames for handler in user_source.swallowing_handlers(outer)
    ]
    for leaving in user_source.leavings(frame):
        if leaving.word == "raise" and not handlers:
            continue
        certainty = _certainty(call, frame, leaving.condition, reached=False)
        if leaving.word == "break" and _has_broken_out(call, frame, leaving.condition):
            certainty = CERTAIN
        if certainty is None:
            continue
        verb = "skips" if leaving.line < frame.line else "keeps some ranks from"
        text = f"`{leaving.word}` under {leaving.condition.text} ({_place(frame, leaving.line)}) {verb} {frame.place}"
        if leaving.word == "raise":
            text += f", and the handler at line {handlers[0][1]} goes on"
        yield certainty, text + _values_text(call, frame, leaving.condition.test)


def _has_broken_out(call: UnsharedCall, frame: Frame, condition: SourceCondition) -> bool:
    """Whether the other side is behind the loop, with values that satisfy the condition of a `break`."""
    holds = _holds(call, call.others, frame, condition.test)
    return holds is (not condition.is_else) and any(_has_left(call, frame, loop) for loop in user_source.loops(frame))


def _certainty(call: UnsharedCall, frame: Frame, condition: SourceCondition, *, reached: bool) -> int | None:
    """How certain it is that a condition divides the sides; None: it does not, or nothing speaks for it. `reached`: the
    callers satisfied it."""
    wanted = reached != condition.is_else
    callers, others = (_holds(call, side, frame, condition.test) for side in (call.callers, call.others))
    differing = {name for name, *_ in _differing(call, frame, condition.test)}
    counters = {name for loop in user_source.loops(frame) for name in loop.counters}
    if others is wanted and not differing:
        return None  # it holds on the other side as well
    if callers is wanted and others is (not wanted) and not (differing and differing <= counters):
        return CERTAIN
    return LIKELY if _about_ranks(frame, condition.test) else None


def _value(call: UnsharedCall, side: Side, frame: Frame, name: str) -> Any:
    """The value of a name in a frame's function on one side. If the function has returned, its parameters have the
    values that its caller passes."""
    if side.values is None:
        raise Unknown
    outer = _caller(call, frame)
    if side.values.frame(frame.file, frame.function) is None and outer is not None:
        length = name.startswith("len(")
        root, _, rest = name.removeprefix("len(").removesuffix(")").partition(".")
        argument = source_names.argument_of(frame, root, outer)
        if argument is not None and (rest or length):
            passed = f"{ast.unparse(argument)}.{rest}" if rest else ast.unparse(argument)
            return _value(call, side, outer, f"len({passed})" if length else passed)
        if argument is not None:
            return evaluate(argument, lambda inner: _value(call, side, outer, inner), side.values.rank)
    return side.values.value(frame.file, frame.function, name)


def _caller(call: UnsharedCall, frame: Frame) -> Frame | None:
    """The frame that called a frame of the call."""
    index = call.frames.index(frame) + 1 if frame in call.frames else len(call.frames)
    return call.frames[index] if index < len(call.frames) else None


def _holds(call: UnsharedCall, side: Side, frame: Frame, test: ast.expr) -> bool | None:
    """Whether a condition holds on a side; None: unknown."""
    if side.values is None:
        return None
    try:
        return bool(evaluate(test, lambda name: _value(call, side, frame, name), side.values.rank))
    except Unknown:
        return None


def _values_text(call: UnsharedCall, frame: Frame, *expressions: ast.expr) -> str:
    """`; step is 3 on rank 0, 2 on rank 1`, for names that differ between the sides. What only repeats the rank's own
    number says nothing."""
    found = [
        f"{name} is {one} on rank {first}, {other} on rank {second}"
        for name, (one, first), (other, second) in _differing(call, frame, *expressions)
    ]
    return f"; {'; '.join(found[:_MOST_NAMES])}" if found else ""


def _differing(
    call: UnsharedCall, frame: Frame, *expressions: ast.expr
) -> list[tuple[str, tuple[str, int], tuple[str, int]]]:
    """Names whose values differ between the sides, but not because they are the ranks' own numbers."""
    found = []
    for name in dict.fromkeys(name for expression in expressions for name in names_of(expression)):
        one, other = _shown_value(call, call.callers, frame, name), _shown_value(call, call.others, frame, name)
        if one is None or other is None or one[0] == other[0]:
            continue
        if one[0] != str(one[1]) or other[0] != str(other[1]):
            found.append((name, one, other))
    return found


def _shown_value(call: UnsharedCall, side: Side, frame: Frame, name: str) -> tuple[str, int] | None:
    if side.values is None:
        return None
    try:
        text = repr(_value(call, side, frame, name))
    except Unknown:
        return None
    return (text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"), side.values.rank


def _decorators(call: UnsharedCall, frame: Frame) -> Iterator[Hint]:
    for line, text, function in user_source.decorators(frame):
        if _ONE_RANK_ONLY.search(text):
            yield (
                LIKELY,
                f"{frame.place} is in {function}(), which `@{text}` ({_place(frame, line)}) runs on some ranks only: a "
                "collective must be called by all ranks of its group",
            )


# ---- loops ----


def _loops(call: UnsharedCall, frame: Frame) -> Iterator[Hint]:
    """Loops that the sides run different numbers of times, or in which they are at different rounds."""
    for loop in user_source.loops(frame):
        head = f"the loop `{loop.head}` ({_place(frame, loop.line)})"
        has_left = _has_left(call, frame, loop)
        if (has_left and not names_of(loop.bound)) or (loop.is_for and frame.line == loop.line):
            continue  # it runs equally often everywhere, or the call makes what it iterates over
        bounds = _values_text(call, frame, *_bounds(loop)) if has_left or loop.is_for else ""
        differs = bool(bounds) or (has_left and _about_ranks(frame, loop.bound))
        counters = [ast.Name(name) for name in loop.counters if name != "_"]
        if has_left:
            verb = "has" if len(call.others.ranks) == 1 else "have"
            text = f"{ranks_text(call.others.ranks)} {verb} left {head}, in which the call at {frame.place} is"
            round_ = _rounds(call, frame, loop)
            certainty = CERTAIN if bounds else LIKELY if differs else POSSIBLE
            yield certainty, text + round_ + bounds
        elif bounds:
            yield CERTAIN, f"the ranks run {head} different numbers of times{bounds}"
        elif counters:
            rounds = _values_text(call, frame, *counters)
            if rounds:
                yield POSSIBLE, f"the ranks are in different rounds of {head}{rounds}"


def _bounds(loop: Loop) -> list[ast.expr]:
    """What decides how often a loop runs, with the lengths of what a `for` iterates over."""
    names = [node for node in ast.walk(loop.bound) if isinstance(node, ast.Name)] if loop.is_for else []
    return [loop.bound, *(ast.Call(ast.Name("len", ast.Load()), [name], []) for name in names)]


def _bounds_of_loops(call: UnsharedCall, frame: Frame) -> Iterator[Hint]:
    """Loops of a library that the sides run different numbers of times."""
    for loop in user_source.loops(frame):
        bounds = _values_text(call, frame, loop.bound)
        if bounds and loop.is_for:
            head = f"`{loop.head}` ({_place(frame, loop.line)}, in {frame.function})"
            yield CERTAIN, f"the ranks run {head} different numbers of times{bounds}"


def _has_left(call: UnsharedCall, frame: Frame, loop: Loop) -> bool:
    """Whether the other side is behind a loop around the call."""
    side = call.others
    if side.has_ended:
        return True
    if side.values is None:
        return False
    found = side.values.frame(frame.file, frame.function)
    if found is not None:
        return found.line > loop.last_line
    for outer in call.frames[call.frames.index(frame) + 1 :]:
        found = side.values.frame(outer.file, outer.function)
        if found is not None:
            return found.line > outer.line  # the function has returned
    return False


def _rounds(call: UnsharedCall, frame: Frame, loop: Loop) -> str:
    """The round that the callers are in."""
    for name in loop.counters:
        shown = _shown_value(call, call.callers, frame, name) if name != "_" else None
        if shown is not None:
            return f" ({name} is {shown[0]} there)"
    return ""


# ---- exceptions ----


def _swallowed(call: UnsharedCall) -> Iterable[Hint]:
    """A handler that goes on is a reason only if the other ranks are past it."""
    for frame in call.frames:
        for first, last, text in user_source.suppressing_contexts(frame):
            if _is_outside(call, frame, first, last):
                yield (
                    POSSIBLE,
                    f"an exception before {frame.place} would skip the call: `with {text}` ({_place(frame, first)}) "
                    "goes on after its block",
                )
                return
        for first, handler in user_source.swallowing_handlers(frame):
            if _is_outside(call, frame, first, handler - 1):
                yield (
                    POSSIBLE,
                    f"an exception in the `try` around {frame.place} ({_place(frame, first)}) would skip the call: the "
                    f"handler at line {handler} goes on",
                )
                return


def _is_outside(call: UnsharedCall, frame: Frame, first: int, last: int) -> bool:
    """Whether the other ranks have left these lines of a frame's function, or have ended."""
    where = None if call.others.values is None else call.others.values.frame(frame.file, frame.function)
    return call.others.has_ended or (where is not None and not first <= where.line <= last)


# ---- calls that all ranks made ----


def differing_values(frame: Frame, sides: tuple[Side, Side]) -> str:
    """`; name is 'head' on rank 0, 'body' on rank 1`, for the names on the line of a call."""
    arguments = source_names.arguments_on(frame)
    return _values_text(UnsharedCall((frame,), *sides), frame, *arguments)
