"""The values of variables in a rank's frames, and of simple expressions of the program.

In: a rank's answer to the program rank_runtime/frame_values.py. Out: values by name. An expression is evaluated here,
from the values alone: names, attributes, comparisons, arithmetic, `len()` of containers and `get_rank()`. Everything
else is unknown.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[2] / "rank_runtime" / "frame_values.py"
QUESTION = f"run {str(PROGRAM).encode().hex()}"

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,  # plain values only: None, True, False
    ast.IsNot: operator.ne,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
}


class Unknown(Exception):
    """The value is not known."""


@dataclass(frozen=True)
class FrameValues:
    """The variables of one frame."""

    file: str
    line: int
    function: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class RankValues:
    """The variables of one rank."""

    rank: int
    threads: Sequence[Sequence[FrameValues]] = ()
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def frame(self, file: str, function: str) -> FrameValues | None:
        """The innermost frame of a function; None: the rank is not in it."""
        frames = (frame for thread in self.threads for frame in thread)
        return next((frame for frame in frames if (frame.file, frame.function) == (file, function)), None)

    def value(self, file: str, function: str, name: str) -> Any:
        """The value of a name as a function sees it."""
        frame = self.frame(file, function)
        for scope in (frame.values if frame else {}, self.modules.get(file, {})):
            if name in scope:
                return scope[name]
        raise Unknown

    def evaluate(self, file: str, function: str, node: ast.expr) -> Any:
        """The value of an expression in a function."""
        return evaluate(node, lambda name: self.value(file, function, name), self.rank)


def parse(rank: int, answer: bytes) -> RankValues:
    """Parse an answer; no values if it cannot be read."""
    try:
        content = json.loads(answer)
        threads = [
            [
                FrameValues(str(each["file"]), int(each["line"]), str(each["function"]), dict(each["values"]))
                for each in thread
            ]
            for thread in content["threads"]
        ]
        modules = {str(file): dict(values) for file, values in content["modules"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return RankValues(rank)
    return RankValues(rank, threads, modules)


def names_of(node: ast.AST) -> list[str]:
    """The names in an expression for which there may be values: `step`, `self.done`, `len(batch)`."""
    return list(dict.fromkeys(_names(node)))


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield ast.unparse(node)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "len":
            yield ast.unparse(node)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from _names(argument)
        if isinstance(node.func, ast.Attribute):
            yield from _names(node.func.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _names(child)


def evaluate(node: ast.expr, lookup: Callable[[str], Any], rank: int) -> Any:
    """The value of an expression whose names `lookup` knows."""

    def value(part: ast.expr) -> Any:
        return evaluate(part, lookup, rank)

    match node:
        case ast.Constant():
            return node.value
        case ast.Name() | ast.Attribute():
            return lookup(ast.unparse(node))
        case ast.BoolOp():
            return _connect(node, value)
        case ast.UnaryOp(op=ast.Not()):
            return not value(node.operand)
        case ast.UnaryOp(op=ast.USub()):
            return _calculated(operator.neg, value(node.operand))
        case ast.IfExp():
            return value(node.body if value(node.test) else node.orelse)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return _calculated(_ARITHMETIC[type(node.op)], value(node.left), value(node.right))
        case ast.Compare():
            return _compared(node, value)
        case ast.JoinedStr():
            return "".join(_formatted(part, value) for part in node.values)
        case ast.Call(func=ast.Name(id="len"), args=[_]):
            return lookup(ast.unparse(node))
        case ast.Call(func=ast.Attribute(attr="get_rank") | ast.Name(id="get_rank"), args=[], keywords=[]):
            return rank
        case ast.Tuple() | ast.List():
            return [value(element) for element in node.elts]
    raise Unknown


def _connect(node: ast.BoolOp, value: Callable[[ast.expr], Any]) -> Any:
    """`and`, `or`: one operand decides even if others are unknown."""
    decides = isinstance(node.op, ast.Or)
    unknown = False
    found: Any = not decides
    for part in node.values:
        try:
            found = value(part)
        except Unknown:
            unknown = True
            continue
        if bool(found) == decides:
            return found
    if unknown:
        raise Unknown
    return found


def _calculated(action: Callable[..., Any], *operands: Any) -> Any:
    texts = all(isinstance(operand, str) for operand in operands) and action is operator.add
    if not texts and not all(isinstance(operand, int | float) for operand in operands):
        raise Unknown
    try:
        return action(*operands)
    except (ArithmeticError, ValueError):
        raise Unknown from None


def _compared(node: ast.Compare, value: Callable[[ast.expr], Any]) -> bool:
    left = value(node.left)
    for kind, part in zip(node.ops, node.comparators, strict=True):
        right = value(part)
        if isinstance(kind, ast.In | ast.NotIn):
            if not isinstance(right, list | str):
                raise Unknown
            holds = (left in right) == isinstance(kind, ast.In)
        else:
            try:
                holds = bool(_COMPARISONS[type(kind)](left, right))
            except TypeError:
                raise Unknown from None
        if not holds:
            return False
        left = right
    return True


def _formatted(part: ast.expr, value: Callable[[ast.expr], Any]) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    if isinstance(part, ast.FormattedValue) and part.format_spec is None and part.conversion == -1:
        return str(value(part.value))
    raise Unknown
