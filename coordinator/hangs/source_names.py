"""Follows names and calls in the user's source.

In: frames of the program, and names. Out: what is assigned to a name, what a caller passes for a parameter, where a
function is handed to a library, the arguments of calls on a line, and the call of backward() before a line. For a file
that cannot be read or parsed, every function finds nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from coordinator.hangs.source_tree import FUNCTIONS, around, parsed, spans
from maya.hangs.python_stacks import Frame


def assigned(frame: Frame, name: str) -> list[ast.expr]:
    """The expressions that a frame's function assigns to a name, or that it iterates over with it; if there are none,
    those of the module."""
    function = next((node for node in around(frame.file, frame.line) if isinstance(node, FUNCTIONS[:2])), None)
    for scope in filter(None, (function, parsed(frame.file))):
        found = [value for node in _own_nodes(scope) for value in _assigned_by(node, name)]
        if found:
            return found
    return []


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module without those of inner functions and classes."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield from _own_nodes(child)


def _assigned_by(node: ast.AST, name: str) -> Iterator[ast.expr]:
    match node:
        case ast.Assign(targets=targets, value=value):
            pass
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            targets = [target]
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            targets = [target]
        case _:
            return
    if any(isinstance(each, ast.Name) and each.id == name for target in targets for each in ast.walk(target)):
        yield value


def calls_function(frame: Frame, function: str) -> bool:
    """Whether a line calls a function by its name."""
    tree = parsed(frame.file)
    return any(
        isinstance(node, ast.Call) and spans(node, frame.line) and ast.unparse(node.func).rpartition(".")[2] == function
        for node in (ast.walk(tree) if tree else ())
    )


def argument_of(frame: Frame, name: str, outer: Frame) -> ast.expr | None:
    """The expression that a caller, at its line, passes for a parameter of a frame's function."""
    function = next((node for node in around(frame.file, frame.line) if isinstance(node, FUNCTIONS[:2])), None)
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if name not in parameters and name not in [each.arg for each in function.args.kwonlyargs]:
        return None
    tree = parsed(outer.file)
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.Call) or not spans(node, outer.line):
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
    tree = parsed(file)
    called = {id(node.func) for node in (ast.walk(tree) if tree else ()) if isinstance(node, ast.Call)}
    return [
        node.lineno
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Name)
        and node.id == function
        and isinstance(node.ctx, ast.Load)
        and id(node) not in called
    ]


def arguments_on(frame: Frame) -> list[ast.expr]:
    """The arguments of all calls on a line."""
    tree = parsed(frame.file)
    calls = [node for node in (ast.walk(tree) if tree else ()) if isinstance(node, ast.Call)]
    return [argument for node in calls if node.lineno == frame.line for argument in node.args]


def call_arguments(frame: Frame, names: tuple[str, ...]) -> list[ast.expr] | None:
    """The arguments of the call of a method of one of these names on a line."""
    tree = parsed(frame.file)
    for node in ast.walk(tree) if tree else ():
        is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
        if isinstance(node, ast.Call) and is_named and spans(node, frame.line):
            return list(node.args)
    return None


def backward_before(frame: Frame) -> Frame | None:
    """The last call of backward() above a line; if there is none, the last one below it, as in a loop."""
    tree = parsed(frame.file)
    lines = sorted(
        node.func.end_lineno or node.lineno
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
    )
    before = [line for line in lines if line <= frame.line]
    if not lines:
        return None
    return Frame(frame.file, before[-1] if before else lines[-1], frame.function)
