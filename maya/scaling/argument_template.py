"""Arguments with arithmetic on the world size in braces: "--batch={4096//nproc}".

In: a text and a world size. Out: the text with every {…} replaced by its value, or a `TemplateError`. The arithmetic is
whole numbers, nproc, + - * // and parentheses; nothing else is evaluated. {{ and }} stand for braces.
"""

from __future__ import annotations

import re

from maya.util.expressions import Expression, ExpressionError

NAME = "nproc"
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


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
        arithmetic = Expression(expression, whole=True)
        if not arithmetic.names <= {NAME}:
            raise ExpressionError(expression)
    except ExpressionError as error:
        raise TemplateError(
            f"{text!r}: {{{expression}}} is not arithmetic on {NAME}; write e.g. {{{NAME}}}, {{{NAME}//8}} or "
            f"{{2*({NAME}-1)}} (whole numbers, + - * // and parentheses), and {{{{ or }}}} for a brace"
        ) from error
    try:
        return int(arithmetic.value({NAME: nproc}))
    except ExpressionError as error:
        raise TemplateError(f"{text!r}: {{{expression}}} divides by zero for {NAME} = {nproc}") from error
