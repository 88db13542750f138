"""Evaluate the mask function in a FlexAttention kernel that Inductor generated: the visible share of attention.

In: the kernel's source, the numbers of queries and keys, and the sizes of the blocks that the kernel skips if nothing
in them is visible. Out: the share of (query, key) pairs in blocks that are not skipped.

The function is a list of assignments (`tmp3 = tmp1 >= tmp2`) over the positions m and n of query and key, off_z and
off_h of sequence and head. It is evaluated with numpy at a few positions of every block. Values that it loads from
memory (document ids, lengths) are unknown: conditions on them count as true, which gives an upper bound, and the result
says so. A block mask may hide more than the function (`BlockMask.from_kv_blocks`); this is not visible here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import numpy as np
import numpy.typing as npt

_ASSIGNMENTS = re.compile(r"if not IS_FULL_BLOCKS:\n((?:\s+\w+ = .*\n|\s*\n)*?)\s+mask_mod_output = (.*)\n")
_PLACES = 5  # sampled positions per block and direction, including its corners
_QUERY_BLOCKS = 128  # most sampled blocks, evenly spaced
_KEY_BLOCKS = 2048


@dataclass(frozen=True)
class Visible:
    """The pairs that a mask leaves visible."""

    share: float  # of all pairs
    exact: bool  # False: the mask depends on values in memory, and conditions on them count as true


@dataclass(frozen=True)
class _Truth:
    """A condition with operands that may be unknown."""

    may_hold: npt.NDArray[np.bool_]
    may_fail: npt.NDArray[np.bool_]


_UNKNOWN = object()
_EVERYTHING = Visible(1.0, exact=True)


def visible(source: str, queries: int, keys: int, query_block: int, key_block: int) -> Visible:
    """The visible share of `queries` x `keys` by the mask in a kernel's source; 1 without a mask."""
    match = _ASSIGNMENTS.search(source)
    if match is None or queries < 1 or keys < 1:
        return _EVERYTHING
    try:
        statements = ast.parse(dedent(match[1]) + f"result = {match[2]}").body
    except SyntaxError:
        return Visible(1.0, exact=False)
    rows, row_sizes = _blocks(queries, query_block, _QUERY_BLOCKS)
    columns, column_sizes = _blocks(keys, key_block, _KEY_BLOCKS)
    shape = (rows.size, columns.size)
    names: dict[str, Any] = {"m": rows.reshape(-1, 1), "n": columns.reshape(1, -1), "off_z": 0, "off_h": 0}
    try:
        with np.errstate(all="ignore"):
            for statement in statements:
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    names[statement.targets[0].id] = _value(statement.value, names)
            truth = _truth(names["result"])
    except (ArithmeticError, TypeError, ValueError):  # numpy lacks the operator for these operands
        return Visible(1.0, exact=False)
    may_hold = np.broadcast_to(truth.may_hold, shape).reshape(*rows.shape, *columns.shape).any(axis=(1, 3))
    may_fail = np.broadcast_to(truth.may_fail & truth.may_hold, shape)
    weights = np.outer(row_sizes, column_sizes).astype(np.float64)
    return Visible(float((may_hold * weights).sum() / weights.sum()), exact=not may_fail.any())


def _blocks(length: int, block: int, most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sampled positions on an axis, one row per block, and the length of each block."""
    count = -(-length // block)
    chosen = np.arange(count) if count <= most else ((np.arange(most) + 0.5) * count / most).astype(np.int64)
    starts = chosen * block
    sizes = np.minimum(block, length - starts)
    places = np.linspace(0.0, 1.0, _PLACES)
    return starts[:, None] + np.rint(places * (sizes[:, None] - 1)).astype(np.int64), sizes


def _truth(value: Any) -> _Truth:
    if isinstance(value, _Truth):
        return value
    if value is _UNKNOWN:
        return _Truth(np.array(True), np.array(True))
    holds = np.asarray(value).astype(bool)
    return _Truth(holds, ~holds)


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.LShift: np.left_shift,
    ast.RShift: np.right_shift,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "div_floor_integer": np.floor_divide,
    "remainder_integer": np.mod,
}


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """A number, an array of them, a `_Truth`, or `_UNKNOWN`."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id, _UNKNOWN)
    if isinstance(node, ast.BinOp):
        return _binary(node.op, _value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.UnaryOp):
        return _unary(node.op, _value(node.operand, names))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _value(node.left, names), _value(node.comparators[0], names)
        compare = _COMPARISONS.get(type(node.ops[0]))
        if compare is None or not (_is_number(left) and _is_number(right)):
            return _UNKNOWN
        return _truth(compare(left, right))
    if isinstance(node, ast.Call):
        return _call(node, names)
    return _UNKNOWN


def _is_number(value: Any) -> bool:
    return value is not _UNKNOWN and not isinstance(value, (_Truth, str, type(None)))


def _binary(operator: ast.operator, left: Any, right: Any) -> Any:
    conditions = isinstance(left, _Truth) or isinstance(right, _Truth)
    if isinstance(operator, (ast.BitAnd, ast.BitOr)) and (conditions or left is _UNKNOWN or right is _UNKNOWN):
        one, other = _truth(left), _truth(right)
        if isinstance(operator, ast.BitAnd):
            return _Truth(one.may_hold & other.may_hold, one.may_fail | other.may_fail)
        return _Truth(one.may_hold | other.may_hold, one.may_fail & other.may_fail)
    compute = _ARITHMETIC.get(type(operator))
    return compute(left, right) if compute and _is_number(left) and _is_number(right) else _UNKNOWN


def _unary(operator: ast.unaryop, value: Any) -> Any:
    if isinstance(operator, (ast.Invert, ast.Not)) and isinstance(value, _Truth):
        return _Truth(value.may_fail, value.may_hold)
    if isinstance(operator, ast.USub) and _is_number(value):
        return np.negative(value)
    return _UNKNOWN


def _call(node: ast.Call, names: dict[str, Any]) -> Any:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "to" and isinstance(node.func, ast.Attribute):  # x.to(tl.int32)
        return _value(node.func.value, names)
    if name == "full" and len(node.args) > 1:  # tl.full([1], 128, tl.int32)
        return _value(node.args[1], names)
    arguments = [_value(argument, names) for argument in node.args]
    if name == "where" and len(arguments) == 3:
        return _where(*arguments)
    compute = _FUNCTIONS.get(name)
    return compute(*arguments) if compute and all(map(_is_number, arguments)) else _UNKNOWN


def _where(condition: Any, chosen: Any, other: Any) -> Any:
    truth = _truth(condition)
    if isinstance(chosen, _Truth) or isinstance(other, _Truth):
        one, two = _truth(chosen), _truth(other)
        return _Truth(
            (truth.may_hold & one.may_hold) | (truth.may_fail & two.may_hold),
            (truth.may_hold & one.may_fail) | (truth.may_fail & two.may_fail),
        )
    known = not (truth.may_hold & truth.may_fail).any()
    return np.where(truth.may_hold, chosen, other) if known and _is_number(chosen) and _is_number(other) else _UNKNOWN
