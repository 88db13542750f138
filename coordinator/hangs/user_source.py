"""Parses the user's source around a line.

In: files and lines. Out: the rank condition that encloses a line, and the call of backward() before a line. For a file
that cannot be read or parsed, every function finds nothing.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from maya.hangs.python_stacks import Frame


@cache
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def rank_condition(file: str, line: int) -> tuple[int, str] | None:
    """The innermost branch around a line whose condition mentions a rank: the branch's line and source."""
    tree = _tree(file)
    found = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.If | ast.While) and node.lineno < line <= (node.end_lineno or 0):
            condition = ast.unparse(node.test)
            other = node.orelse and line >= node.orelse[0].lineno
            if "rank" in condition.lower():
                found.append((node.lineno, f"{'the else of ' if other else ''}`if {condition}`"))
    return max(found, default=None)


def backward_before(frame: Frame) -> Frame | None:
    """The last call of backward() above a line; if there is none, the last one below it, as in a loop."""
    tree = _tree(frame.file)
    lines = sorted(
        node.func.end_lineno or node.lineno
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
    )
    before = [line for line in lines if line <= frame.line]
    if not lines:
        return None
    return Frame(frame.file, before[-1] if before else lines[-1], "backward")


def mentions(file: str, name: str) -> bool:
    """Whether a file uses a name anywhere."""
    tree = _tree(file)
    return any(
        (isinstance(node, ast.Attribute) and node.attr == name) or (isinstance(node, ast.Name) and node.id == name)
        for node in (ast.walk(tree) if tree else ())
    )
