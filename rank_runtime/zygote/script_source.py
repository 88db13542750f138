"""Reads from a Python source file which modules it imports, and which environment variables it sets first.

In: source text, which is not run. Out: names. Imports inside functions are left out, because they may never run, and so
are imports for type checkers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Assignment:
    """An environment variable that the program sets; `value` is None if it is not a literal."""

    name: str | None  # None: not a literal
    value: str | None


def parse(text: str | bytes) -> ast.Module | None:
    """Parse the source; None if it is invalid, which Python will report when it runs it."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def imported_modules(tree: ast.Module, package: str = "") -> list[str]:
    """Modules in import order; `package` is the base of relative imports. `from a import b` may mean a module a.b, so
    both a and a.b are listed; a.b may turn out not to be a module."""
    names: list[str] = []
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, package)
            if module is not None:
                names += [module, *(f"{module}.{alias.name}" for alias in node.names if alias.name != "*")]
    return list(dict.fromkeys(names))


def assignments_before(tree: ast.Module, modules: frozenset[str]) -> list[Assignment]:
    """Environment variables set before the first import of one of these (top-level) modules."""
    assignments: list[Assignment] = []
    for node in tree.body:
        found = [name.partition(".")[0] for name in imported_modules(ast.Module([node], []))]
        if modules.intersection(found):
            break
        certain = not isinstance(node, (ast.If, ast.Try, ast.For, ast.While, ast.With))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for part in ast.walk(node):
            assignments += [a if certain else Assignment(a.name, None) for a in _assignments(part)]
    return assignments


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that presumably run when the module is imported."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            if not _is_type_checking(node.test):
                yield from _statements(node.body)
            yield from _statements(node.orelse)
        elif isinstance(node, ast.Try):
            yield from _statements(node.body)
            for handler in node.handlers:
                yield from _statements(handler.body)
            yield from _statements(node.orelse)
            yield from _statements(node.finalbody)
        elif isinstance(node, (ast.With, ast.ClassDef)):
            yield from _statements(node.body)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _absolute(node: ast.ImportFrom, package: str) -> str | None:
    if node.level == 0:
        return node.module
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return None
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _assignments(node: ast.AST) -> Iterator[Assignment]:
    """os.environ["A"] = "1", os.environ.setdefault("A", "1"), os.putenv("A", "1"), os.environ.update(...)."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environment(target.value):
                yield Assignment(_text(target.slice), _text(node.value))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner, method = node.func.value, node.func.attr
        if method == "update" and _is_environment(owner):
            yield from _updates(node)
        elif (method in ("setdefault", "pop") and _is_environment(owner)) or method in ("putenv", "unsetenv"):
            # The result of setdefault depends on the previous value.
            value = _text(node.args[1]) if method == "putenv" and len(node.args) > 1 else None
            yield Assignment(_text(node.args[0]) if node.args else None, value)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environment(target.value):
                yield Assignment(_text(target.slice), None)


def _updates(call: ast.Call) -> Iterator[Assignment]:
    for keyword in call.keywords:
        yield Assignment(keyword.arg, _text(keyword.value) if keyword.arg else None)
    for argument in call.args:
        if isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                yield Assignment(_text(key) if key else None, _text(value))
        else:
            yield Assignment(None, None)


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
