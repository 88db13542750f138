"""Parses the user's source around a line.

In: files and lines. Out: what decides whether the program reaches the line: the conditions and loops around it, the
statements before it that leave the function or the loop, handlers of exceptions, decorators; and the call of backward()
before a line. For a file that cannot be read or parsed, every function finds nothing.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from maya.hangs.python_stacks import Frame

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LEAVING = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True)
class SourceCondition:
    """A branch around a line, or one that leaves the code before it."""

    line: int
    test: ast.expr
    is_else: bool  # the line is reached if the test is false

    @property
    def text(self) -> str:
        return f"{'the else of ' if self.is_else else ''}`if {ast.unparse(self.test)}`"


@dataclass(frozen=True)
class Leaving:
    """A statement that leaves the function or loop of a line without reaching it, and the condition for it."""

    line: int
    word: str  # return, continue, break, raise, exit
    condition: SourceCondition


@dataclass(frozen=True)
class Loop:
    """A loop around a line."""

    line: int
    last_line: int
    head: str  # `for step in range(4)`
    counters: tuple[str, ...]  # names that the loop assigns
    bound: ast.expr  # what decides how often it runs

    def contains(self, line: int) -> bool:
        return self.line <= line <= self.last_line


@cache
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _spans(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


@cache
def _around(file: str, line: int) -> tuple[ast.AST, ...]:
    """The statements and expressions around a line in its function, innermost first; the function comes last."""
    found: list[ast.AST] = []
    node: ast.AST | None = _tree(file)
    while node is not None:
        inner = [child for child in ast.iter_child_nodes(node) if _spans(child, line)]
        if not inner and isinstance(node, ast.Module):
            break
        if not isinstance(node, ast.Module):
            if isinstance(node, _FUNCTIONS[:2]) and node.body[0].lineno <= line:
                found.clear()
            found.append(node)
        node = min(inner, key=_extent, default=None)
    return tuple(reversed(found))


def _extent(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", 0)) - int(getattr(node, "lineno", 0))


def branches(frame: Frame) -> list[SourceCondition]:
    """The branches around a line in its function, innermost first."""
    found = []
    for node in _around(frame.file, frame.line):
        if isinstance(node, ast.If) and node.lineno < frame.line and node.body[0].lineno <= frame.line:
            is_else = bool(node.orelse) and frame.line >= node.orelse[0].lineno
            found.append(SourceCondition(node.lineno, node.test, is_else))
        elif isinstance(node, ast.IfExp) and not _spans(node.test, frame.line):
            found.append(SourceCondition(node.lineno, node.test, _spans(node.orelse, frame.line)))
    return found


def loops(frame: Frame) -> list[Loop]:
    """The loops around a line in its function, innermost first."""
    found = []
    for node in _around(frame.file, frame.line):
        last = getattr(node, "end_lineno", None) or 0
        if isinstance(node, ast.For) and node.lineno <= frame.line:
            counters = tuple(each.id for each in ast.walk(node.target) if isinstance(each, ast.Name))
            head = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
            found.append(Loop(node.lineno, last, head, counters, node.iter))
        elif isinstance(node, ast.While) and node.lineno <= frame.line:
            counters = tuple(dict.fromkeys(each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)))
            found.append(Loop(node.lineno, last, f"while {ast.unparse(node.test)}", counters, node.test))
    return found


def leavings(frame: Frame) -> list[Leaving]:
    """Conditional statements that leave the function or the loop of a line: those before it, and those anywhere in a
    loop around it, because they end later rounds."""
    around = _around(frame.file, frame.line)
    found: list[Leaving] = []
    inner: list[ast.AST] = []
    for node in around:
        if isinstance(node, ast.For | ast.While):
            found += _leavings_in(node, frame.line, inner, loop=node)
        elif isinstance(node, _FUNCTIONS[:2]):
            found += _leavings_in(node, frame.line, inner, loop=None)
        inner.append(node)
    tree = _tree(frame.file)
    if tree is not None and around and not isinstance(around[-1], _FUNCTIONS[:2]):
        found += _leavings_in(tree, frame.line, inner, loop=None)
    return list({each.line: each for each in found}.values())


def _leavings_in(
    scope: ast.AST,
    line: int,
    inner: list[ast.AST],
    loop: ast.For | ast.While | None,
) -> Iterator[Leaving]:
    for branch, statement in _conditional(scope, None):
        if branch in inner or _spans(branch, line):
            continue
        is_before = statement.lineno < line
        belongs = not isinstance(statement, ast.Break | ast.Continue) or loop is not None
        if not belongs or not (is_before or loop is not None):
            continue
        if isinstance(statement, ast.Continue) and not is_before:
            continue
        is_else = bool(branch.orelse) and statement.lineno >= branch.orelse[0].lineno
        word = "exit" if isinstance(statement, ast.Expr) else type(statement).__name__.lower()
        yield Leaving(statement.lineno, word, SourceCondition(branch.lineno, branch.test, is_else))


def _conditional(node: ast.AST, branch: ast.If | None) -> Iterator[tuple[ast.If, ast.stmt]]:
    """The statements of a scope that leave it, with the innermost branch around each; not those of inner functions, nor
    break and continue of inner loops."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _LEAVING) or (isinstance(child, ast.Expr) and _is_exit(child.value)):
            if branch is not None:
                yield branch, child
        elif isinstance(child, ast.For | ast.While):
            yield from (
                (each, statement)
                for each, statement in _conditional(child, branch)
                if not isinstance(statement, ast.Break | ast.Continue)
            )
        elif isinstance(child, ast.If):
            yield from _conditional(child, child)
        elif not isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            yield from _conditional(child, branch)


def swallowing_handlers(frame: Frame) -> list[tuple[int, int]]:
    """Lines of the `try` around a line, and of its handlers that go on instead of raising; innermost first."""
    found = []
    for node in _around(frame.file, frame.line):
        if isinstance(node, ast.Try) and node.body[0].lineno <= frame.line <= (node.body[-1].end_lineno or 0):
            for handler in node.handlers:
                nodes = [each for part in handler.body for each in ast.walk(part)]
                if not any(isinstance(each, ast.Raise) or _is_exit(each) for each in nodes):
                    found.append((node.lineno, handler.lineno))
    return found


def _is_exit(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("exit", "_exit", "quit")


def decorators(frame: Frame) -> list[tuple[int, str, str]]:
    """Line and text of each decorator of a frame's function, and the function's name."""
    for node in _around(frame.file, frame.line):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == frame.function:
            return [(each.lineno, ast.unparse(each), node.name) for each in node.decorator_list]
    return []


def with_contexts(frame: Frame) -> list[str]:
    """The context managers around a line in its function, innermost first, as source."""
    return [
        ast.unparse(item.context_expr)
        for node in _around(frame.file, frame.line)
        if isinstance(node, ast.With | ast.AsyncWith)
        for item in node.items
    ]


def argument_of(frame: Frame, name: str, outer: Frame) -> ast.expr | None:
    """The expression that a caller, at its line, passes for a parameter of a frame's function."""
    function = next((node for node in _around(frame.file, frame.line) if isinstance(node, _FUNCTIONS[:2])), None)
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if name not in parameters and name not in [each.arg for each in function.args.kwonlyargs]:
        return None
    tree = _tree(outer.file)
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.Call) or not _spans(node, outer.line):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if called != frame.function:
            continue
        for keyword in node.keywords:
            if keyword.arg == name:
                return keyword.value
        offset = 1 if parameters[:1] in (["self"], ["cls"]) else 0
        position = parameters.index(name) - offset if name in parameters else -1
        return node.args[position] if 0 <= position < len(node.args) else None
    return None


def uses_of(file: str, function: str) -> list[int]:
    """The lines that name a function without calling it, as an argument: `Thread(target=function)`."""
    tree = _tree(file)
    called = {id(node.func) for node in (ast.walk(tree) if tree else ()) if isinstance(node, ast.Call)}
    return [
        node.lineno
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Name)
        and node.id == function
        and isinstance(node.ctx, ast.Load)
        and id(node) not in called
    ]


def call_arguments(frame: Frame, names: tuple[str, ...]) -> list[ast.expr] | None:
    """The arguments of the call of a method of one of these names on a line."""
    tree = _tree(frame.file)
    for node in ast.walk(tree) if tree else ():
        is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
        if isinstance(node, ast.Call) and is_named and _spans(node, frame.line):
            return list(node.args)
    return None


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
    return Frame(frame.file, before[-1] if before else lines[-1], frame.function)
