"""Small expressions in options and files: arithmetic, and, where allowed, comparisons and logic on named values.

In: the text of an expression, and values by name. Out: its value, or an `ExpressionError`. Nothing else is evaluated:
no calls but min and max, no attributes, no subscripts.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Value = int | float | str
_LONGEST = 400  # characters

_WHOLE: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    **_WHOLE,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, values: value in values,
    ast.NotIn: lambda value, values: value not in values,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max}


class ExpressionError(ValueError):
    """An expression that is not valid, or has no value for these names."""


class Expression:
    """An expression that has been read. `whole`: whole numbers, names, + - * // and parentheses only."""

    def __init__(self, text: str, *, whole: bool = False) -> None:
        self.text = text.strip()
        self._whole = whole
        try:
            if len(text) > _LONGEST:
                raise SyntaxError
            self._tree = ast.parse(self.text, mode="eval").body
            self.names = frozenset(_names(self._tree, whole))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"{text!r} is not an expression") from error

    def value(self, names: Mapping[str, Value]) -> Any:
        """The value; an `ExpressionError` if a name is not known, or the values do not fit the operators."""
        try:
            return _evaluate(self._tree, names)
        except KeyError as error:
            raise ExpressionError(f"{self.text!r}: there is no {error.args[0]}") from error
        except ZeroDivisionError as error:
            raise ExpressionError(f"{self.text!r} divides by zero") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise ExpressionError(f"{self.text!r}: {error}") from error


def _names(node: ast.expr, whole: bool) -> set[str]:
    """The names in a valid tree; a SyntaxError for one that is not."""
    operators = _WHOLE if whole else _ARITHMETIC
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return set()
        case ast.Name(id=name):
            return {name}
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in operators:
            return _names(left, whole) | _names(right, whole)
    if whole:
        raise SyntaxError
    parts: list[ast.expr]
    match node:
        case ast.Constant(value=float() | str() | bool()):
            parts = []
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            parts = [operand]
        case ast.BoolOp(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
            parts = values
        case ast.Compare(left=left, ops=operations, comparators=others) if _are_known(operations):
            parts = [left, *others]
        case ast.IfExp(test=test, body=body, orelse=other):
            parts = [test, body, other]
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as parts, keywords=[]) if name in _FUNCTIONS:
            pass
        case _:
            raise SyntaxError
    return {name for part in parts for name in _names(part, whole)}


def _are_known(operations: Sequence[ast.cmpop]) -> bool:
    return all(type(each) in _COMPARISONS for each in operations)


def _evaluate(node: ast.expr, names: Mapping[str, Value]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=operation, right=right):
            return _calculated(_ARITHMETIC[type(operation)], _evaluate(left, names), _evaluate(right, names))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, names)
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, names)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_evaluate(each, names) for each in values)
        case ast.BoolOp(values=values):
            return any(_evaluate(each, names) for each in values)
        case ast.Compare(left=left, ops=operations, comparators=others):
            values_of = [_evaluate(each, names) for each in (left, *others)]
            pairs = zip(operations, values_of, values_of[1:], strict=False)
            return all(_COMPARISONS[type(operation)](one, other) for operation, one, other in pairs)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _evaluate(body if _evaluate(test, names) else other, names)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(_evaluate(each, names) for each in elements)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_evaluate(each, names) for each in arguments))
    raise AssertionError(node)


def _calculated(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Only numbers are calculated with: "a" * 10**9 would fill the memory. A quotient without a rest stays whole."""
    for each in (left, right):
        if isinstance(each, str | tuple):
            raise TypeError(f"{each!r} is not a number")
    result = operation(left, right)
    return int(result) if isinstance(result, float) and result.is_integer() and abs(result) < 2**53 else result
