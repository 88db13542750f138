"""What decides whether the program reaches a line of the user's source.

In: files and lines. Out: the conditions and loops around the line, the statements before it that leave the function or
the loop, handlers of exceptions, decorators, context managers. For a file that cannot be read or parsed, every
function finds nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from coordinator.hangs.source_tree import FUNCTIONS, around, children, parsed, spans
from maya.hangs.python_stacks import Frame

_LEAVING = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True)
class SourceCondition:
    """A branch around a line, or one that leaves the code before it."""

    line: int
    test: ast.expr
    is_else: bool  # the line is reached if the test is false
    words: str = ""  # what the source has in place of an `if`

    @property
    def text(self) -> str:
        return self.words or f"{'the else of ' if self.is_else else ''}`if {ast.unparse(self.test)}`"


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

    @property
    def is_for(self) -> bool:
        return self.head.startswith("for ")

    def contains(self, line: int) -> bool:
        return self.line <= line <= self.last_line


def branches(frame: Frame) -> list[SourceCondition]:
    """The branches around a line in its function, innermost first."""
    found = []
    for node in around(frame.file, frame.line):
        if isinstance(node, ast.If) and node.lineno < frame.line and node.body[0].lineno <= frame.line:
            is_else = bool(node.orelse) and frame.line >= node.orelse[0].lineno
            found.append(SourceCondition(node.lineno, node.test, is_else))
        elif isinstance(node, ast.IfExp) and not spans(node.test, frame.line):
            found.append(SourceCondition(node.lineno, node.test, spans(node.orelse, frame.line)))
        elif isinstance(node, ast.Match):
            found += _case(node, frame.line)
    return [*(guard for node in _expressions_on(frame) for guard in _guards(node, frame.line)), *found]


def _expressions_on(frame: Frame) -> list[ast.expr]:
    """The expressions around a line, or parts of it, in its innermost statement."""
    statement = next((node for node in around(frame.file, frame.line) if isinstance(node, ast.stmt)), None)
    outermost = [child for child in (children(statement) if statement else ()) if isinstance(child, ast.expr)]
    nodes = [node for child in outermost for node in ast.walk(child) if spans(node, frame.line)]
    return [node for node in nodes if isinstance(node, ast.expr)]


def _case(node: ast.Match, line: int) -> Iterator[SourceCondition]:
    """The case of a line, if its pattern is a value or several, or the case for all others."""
    before: list[ast.expr] = []
    for case in node.cases:
        values = _values_of(case.pattern)
        if values is None:
            return
        if case.body[0].lineno <= line <= (case.body[-1].end_lineno or 0):
            test = ast.Compare(node.subject, [ast.In()], [ast.Tuple(values or before, ast.Load())])
            words = f"`case {ast.unparse(case.pattern)}` of `match {ast.unparse(node.subject)}`"
            yield SourceCondition(case.pattern.lineno, test, is_else=not values, words=words)
            return
        before += values


def _values_of(pattern: ast.pattern) -> list[ast.expr] | None:
    """The values that a pattern stands for; none for `_`; None: it is another pattern."""
    match pattern:
        case ast.MatchValue():
            return [pattern.value]
        case ast.MatchSingleton():
            return [ast.Constant(pattern.value)]
        case ast.MatchOr():
            parts = [_values_of(part) for part in pattern.patterns]
            return [value for part in parts for value in part or ()] if all(parts) else None
        case ast.MatchAs(pattern=None, name=None):
            return []
    return None


def _guards(node: ast.expr, line: int) -> Iterator[SourceCondition]:
    """Conditions within an expression: `first and call()`, `call() if first else other` on one line, filters of
    comprehensions. Which of several calls a line makes is not known, so only one part may have calls."""
    match node:
        case ast.BoolOp(op=ast.And()) if _may_call(node.values[-1], line) and not any(map(_calls, node.values[:-1])):
            first = node.values[:-1]
            test = first[0] if len(first) == 1 else ast.BoolOp(ast.And(), first)
            yield SourceCondition(node.lineno, test, is_else=False, words=f"`{ast.unparse(test)} and …`")
        case ast.IfExp() if (
            spans(node.test, line) and not _calls(node.test) and _calls(node.body) != _calls(node.orelse)
        ):
            yield SourceCondition(node.lineno, node.test, is_else=_calls(node.orelse))
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() if _may_call(node.elt, line):
            for generator in node.generators:
                for test in generator.ifs:
                    words = f"a comprehension with `if {ast.unparse(test)}`"
                    yield SourceCondition(node.lineno, test, is_else=False, words=words)


def _may_call(node: ast.expr, line: int) -> bool:
    return spans(node, line) and _calls(node)


def _calls(node: ast.expr) -> bool:
    """Whether an expression has calls, except of len() and get_rank()."""
    names = [ast.unparse(each.func).rpartition(".")[2] for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(name not in ("len", "get_rank") for name in names)


def loops(frame: Frame) -> list[Loop]:
    """The loops around a line in its function, innermost first."""
    found = []
    for node in around(frame.file, frame.line):
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
    outwards = around(frame.file, frame.line)
    found: list[Leaving] = []
    inner: list[ast.AST] = []
    for node in outwards:
        if isinstance(node, ast.For | ast.While):
            found += _leavings_in(node, frame.line, inner, loop=node)
        elif isinstance(node, FUNCTIONS[:2]):
            found += _leavings_in(node, frame.line, inner, loop=None)
        inner.append(node)
    tree = parsed(frame.file)
    if tree is not None and outwards and not isinstance(outwards[-1], FUNCTIONS[:2]):
        found += _leavings_in(tree, frame.line, inner, loop=None)
    return list({each.line: each for each in found}.values())


def _leavings_in(
    scope: ast.AST,
    line: int,
    inner: list[ast.AST],
    loop: ast.For | ast.While | None,
) -> Iterator[Leaving]:
    for branch, statement in _conditional(scope, None):
        if branch in inner or spans(branch, line):
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
        elif not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield from _conditional(child, branch)


def swallowing_handlers(frame: Frame) -> list[tuple[int, int]]:
    """Lines of the `try` around a line, and of its handlers that go on instead of raising; innermost first."""
    found = []
    for node in around(frame.file, frame.line):
        if isinstance(node, ast.Try) and node.body[0].lineno <= frame.line <= (node.body[-1].end_lineno or 0):
            for handler in node.handlers:
                nodes = [each for part in handler.body for each in ast.walk(part)]
                if not any(isinstance(each, ast.Raise) or _is_exit(each) for each in nodes):
                    found.append((node.lineno, handler.lineno))
    return found


def suppressing_contexts(frame: Frame) -> list[tuple[int, int, str]]:
    """First and last line and text of `with suppress(...)` around a line, innermost first."""
    return [
        (node.lineno, node.end_lineno or node.lineno, ast.unparse(item.context_expr))
        for node in around(frame.file, frame.line)
        if isinstance(node, ast.With) and node.body[0].lineno <= frame.line
        for item in node.items
        if isinstance(item.context_expr, ast.Call)
        and ast.unparse(item.context_expr.func).rpartition(".")[2] == "suppress"
    ]


def _is_exit(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("exit", "_exit", "quit")


def decorators(frame: Frame) -> list[tuple[int, str, str]]:
    """Line and text of each decorator of a frame's function, and the function's name."""
    for node in around(frame.file, frame.line):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == frame.function:
            return [(each.lineno, ast.unparse(each), node.name) for each in node.decorator_list]
    return []


def with_contexts(frame: Frame) -> list[str]:
    """The context managers around a line in its function, innermost first, as source."""
    return [
        ast.unparse(item.context_expr)
        for node in around(frame.file, frame.line)
        if isinstance(node, ast.With | ast.AsyncWith)
        for item in node.items
    ]
