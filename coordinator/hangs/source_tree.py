"""Parses the user's source, and finds what is around a line.

In: files and lines. Out: nodes of the syntax tree. For a file that cannot be read or parsed, there are none.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import cache

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@cache
def parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def spans(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node that have lines."""
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            yield child
        else:  # a case of a match statement, an item of a with statement, the `for` of a comprehension
            yield from children(child)


@cache
def around(file: str, line: int) -> tuple[ast.AST, ...]:
    """The statements and expressions around a line in its function, innermost first; the function comes last."""
    found: list[ast.AST] = []
    node: ast.AST | None = parsed(file)
    while node is not None:
        inner = [child for child in children(node) if spans(child, line)]
        if not inner and isinstance(node, ast.Module):
            break
        if not isinstance(node, ast.Module):
            if isinstance(node, FUNCTIONS[:2]) and node.body[0].lineno <= line:
                found.clear()
            found.append(node)
        node = min(inner, key=_extent, default=None)
    return tuple(reversed(found))


def _extent(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", 0)) - int(getattr(node, "lineno", 0))
