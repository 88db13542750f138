"""Arguments with arithmetic on the world size in braces: "--batch={4096//nproc}".

In: a text and a world size. Out: the text with every {…} replaced by its value, or a `TemplateError`. The arithmetic is
whole numbers, nproc, + - * // and parentheses; nothing else is evaluated. {{ and }} stand for braces.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

NAME = "nproc"
_LONGEST = 200  # characters of an expression
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class TemplateError(ValueError):
    """Braces without arithmetic between them."""


def fill(text: str, nproc: int) -> str:
    """The text for one world size."""

    def value(found: re.Match[str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        if found[1] is None:
            raise TemplateError(f"{text!r}: a single {found[0]}; write {found[0] * 2} for a brace, or {{{NAME}}}")
        return str(_value(text, found[1], nproc))

    return _PIECE.sub(value, text)


def _value(text: str, expression: str, nproc: int) -> int:
    try:
        if len(expression) > _LONGEST:
            raise SyntaxError
        return _evaluate(ast.parse(expression.strip(), mode="eval").body, nproc)
    except ZeroDivisionError as error:
        raise TemplateError(f"{text!r}: {{{expression}}} divides by zero for {NAME} = {nproc}") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TemplateError(
            f"{text!r}: {{{expression}}} is not arithmetic on {NAME}; write e.g. {{{NAME}}}, {{{NAME}//8}} or "
            f"{{2*({NAME}-1)}} (whole numbers, + - * // and parentheses), and {{{{ or }}}} for a brace"
        ) from error


def _evaluate(node: ast.expr, nproc: int) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name == NAME:
            return nproc
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_evaluate(left, nproc), _evaluate(right, nproc))
    raise SyntaxError
