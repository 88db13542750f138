"""Finds assignments of a module that every rank can execute again, instead of importing the whole module.

    import os, time
    from uuid import uuid4
    STARTED = time.time()                           # these keep a value that is different in every process
    SESSION = uuid4().hex
    RANK = int(os.environ.get("RANK", "0"))
    IS_FIRST = RANK == 0                            # this depends on one of them

In: the source of a module, and the lines at which it read such a value. Out: the assignments to execute again, those
above and all that use their variables. There are none if a value goes anywhere else: into an argument of a function
that is not known to be pure, a class, an `if`. Functions may use the variables, as long as nobody calls them during the
import: the probe finds out (`VariableUses`).
"""

from __future__ import annotations

import ast
import builtins
import gc
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PURE_BUILTINS = frozenset(
    {
        *("abs", "bool", "bytes", "dict", "divmod", "float", "format", "frozenset", "hex", "int", "len", "list"),
        *("max", "min", "oct", "ord", "repr", "round", "set", "sorted", "str", "sum", "tuple"),
    }
)
_PURE_MODULES = frozenset({"datetime", "math", "time", "uuid"})
_PURE_FUNCTIONS = frozenset(
    {
        *(("os", name) for name in ("getenv", "getpid", "urandom", "fspath", "cpu_count", "getcwd")),
        *(("platform", name) for name in ("node", "system", "machine", "python_version")),
        *(("secrets", name) for name in ("token_bytes", "token_hex", "token_urlsafe")),
    }
)
_IMPURE_OF_PURE_MODULES = frozenset({"sleep", "tzset", "pthread_getcpuclockid", "clock_settime", "clock_settime_ns"})
_PURE_METHODS = frozenset(  # of texts, numbers, dates and mappings
    {
        *("as_integer_ratio", "astimezone", "capitalize", "ctime", "date", "decode", "encode", "endswith", "format"),
        *("get", "hex", "isdigit", "isoformat", "items", "join", "keys", "lower", "lstrip", "replace", "rsplit"),
        *("rstrip", "split", "startswith", "strftime", "strip", "time", "timestamp", "timetuple", "title", "upper"),
        *("values", "zfill"),
    }
)
_PURE_NODES = (
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.keyword, ast.slice, ast.Constant),
    *(ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.Tuple, ast.List, ast.Set, ast.Dict, ast.JoinedStr, ast.FormattedValue, ast.Call, ast.Starred, ast.Lambda),
    *(ast.arguments, ast.arg),
)
_MOST_DEPTH = 3  # of functions that call functions


@dataclass(frozen=True)
class RepeatedStatements:
    """Assignments of one module, and the variables that they assign."""

    lines: tuple[int, ...]  # where the assignments begin
    variables: frozenset[str]


def repeated_statements(source: bytes, module: ModuleType, lines: Iterable[int]) -> RepeatedStatements | None:
    """The assignments around these lines, and those that depend on them; None: they cannot be executed again."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    starts = {
        next((node.lineno for node in body if node.lineno <= line <= (node.end_lineno or 0)), 0) for line in lines
    }
    if 0 in starts:
        return None
    found: list[ast.stmt] = []
    variables: set[str] = set()
    for node in body:
        if node.lineno in starts or variables & _names_used_now(node):
            targets = _targets(node)
            if targets is None or not _is_pure(node.value, vars(module), frozenset(variables)):  # type: ignore[attr-defined]
                return None
            found.append(node)
            variables |= targets
        elif variables & _names_assigned(node):
            return None
    if any(name not in vars(module) for name in variables):  # deleted again
        return None
    return RepeatedStatements(tuple(node.lineno for node in found), frozenset(variables))


def compile_statements(source: bytes, origin: str, lines: Iterable[int]) -> CodeType:
    """The code of the statements that begin at these lines."""
    tree = ast.parse(source)
    wanted = frozenset(lines)
    tree.body = [node for node in tree.body if node.lineno in wanted]
    return compile(tree, origin, "exec", dont_inherit=True)


def _targets(node: ast.stmt) -> set[str] | None:
    """The variables of an assignment to variables; None for another statement."""
    if isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return {node.target.id}
    return None


def _names_assigned(node: ast.stmt) -> set[str]:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def _names_used_now(node: ast.AST) -> set[str]:
    """The names that a statement reads when it runs; the bodies of functions run later."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        now: list[ast.AST] = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        annotations = [argument.annotation for argument in ast.walk(node.args) if isinstance(argument, ast.arg)]
        now += [part for part in (*annotations, node.returns) if part is not None]
    elif isinstance(node, ast.Lambda):
        now = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    else:
        now = list(ast.iter_child_nodes(node))
    names = {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else set()
    return names.union(*map(_names_used_now, now))


def _is_pure(node: ast.AST, names: dict[str, Any], values: frozenset[str], depth: int = 0) -> bool:
    """Whether evaluating the expression has no other effect than its value. `values`: variables that hold values of
    pure expressions."""
    parts = list(ast.walk(node))
    if not all(isinstance(part, _PURE_NODES) for part in parts):
        return False
    return all(_is_pure_call(part.func, names, values, depth) for part in parts if isinstance(part, ast.Call))


def _is_pure_call(function: ast.expr, names: dict[str, Any], values: frozenset[str], depth: int) -> bool:
    path: list[str] = []
    root = function
    while isinstance(root, ast.Attribute):
        path.insert(0, root.attr)
        root = root.value
    if not isinstance(root, ast.Name) or root.id in values:
        # a method of a result or of a constant
        return bool(path) and path[-1] in _PURE_METHODS
    if root.id not in names:
        return not path and root.id in _PURE_BUILTINS and hasattr(builtins, root.id)
    called: Any = names[root.id]
    if path and called is sys.modules["os"]:
        return path[0] == "path" or path == ["environ", "get"] or ("os", ".".join(path)) in _PURE_FUNCTIONS
    for attribute in path:
        if not isinstance(called, (ModuleType, type)):
            return attribute in _PURE_METHODS and isinstance(called, (str, bytes, int, float, tuple, dict, list))
        called = getattr(called, attribute, None)
    module, name = str(getattr(called, "__module__", None)), str(getattr(called, "__name__", None))
    if module in _PURE_MODULES or getattr(getattr(called, "__self__", None), "__module__", None) in _PURE_MODULES:
        return name not in _IMPURE_OF_PURE_MODULES
    known = {(module, name), ("os" if module == "posix" else module, name)}
    if known & _PURE_FUNCTIONS or called is sys.modules["os"].environ.get:
        return True
    return type(called) is FunctionType and depth < _MOST_DEPTH and _is_pure_function(called, depth + 1)


def _is_pure_function(function: FunctionType, depth: int) -> bool:
    """Whether a function only computes: assignments to its own variables, `if` and `return`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    [definition] = tree.body
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return False
    arguments = {part.arg for part in ast.walk(definition.args) if isinstance(part, ast.arg)}
    local = frozenset(arguments | _names_in(definition.body))

    def is_pure(body: Sequence[ast.stmt]) -> bool:
        for node in body:
            if isinstance(node, ast.If):
                if not (is_pure_value(node.test) and is_pure(node.body) and is_pure(node.orelse)):
                    return False
            elif isinstance(node, ast.Return):
                if node.value is not None and not is_pure_value(node.value):
                    return False
            elif isinstance(node, ast.Expr):
                if not isinstance(node.value, ast.Constant):
                    return False
            elif _targets(node) is None or not is_pure_value(node.value):  # type: ignore[attr-defined]
                return False
        return True

    def is_pure_value(node: ast.expr) -> bool:
        return _is_pure(node, function.__globals__, local, depth)

    return is_pure(definition.body)


def _names_in(body: Sequence[ast.stmt]) -> set[str]:
    return set().union(*map(_names_assigned, body))


class VariableUses:
    """Tells in the probe when the variables of repeated statements are used while modules are being imported: what is
    made of them would stay the zygote's."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """`tell` gets the name of the module."""
        self._tell = tell
        self._code: dict[CodeType, str] = {}
        self._monitoring: Any = getattr(sys, "monitoring", None)
        self._tool: int | None = None

    def watch(self, module: ModuleType, variables: frozenset[str]) -> bool:
        """False if the uses cannot be observed."""
        users = [code for code in _codes(module) if variables.intersection(code.co_names)]
        if users and not self._begin():
            return False
        for code in users:
            self._code[code] = module.__name__
            self._monitoring.set_local_events(self._tool, code, self._monitoring.events.PY_START)
        properties = {name: _telling(name, lambda: self._tell(module.__name__)) for name in variables}
        try:
            module.__class__ = type("module", (type(module),), properties)
        except TypeError:
            return False
        return True

    def _begin(self) -> bool:
        if self._monitoring is None:
            return False
        if self._tool is None:
            self._tool = next((tool for tool in range(6) if self._monitoring.get_tool(tool) is None), None)
            if self._tool is None:
                return False
            self._monitoring.use_tool_id(self._tool, "maya-probe")
            events = self._monitoring.events
            self._monitoring.register_callback(self._tool, events.PY_START, self._started)
        return True

    def _started(self, code: CodeType, _: int) -> None:
        self._tell(self._code[code])


def _telling(name: str, tell: Callable[[], None]) -> property:
    def get(module: ModuleType) -> Any:
        tell()
        return vars(module)[name]

    def put(module: ModuleType, value: object) -> None:
        tell()
        vars(module)[name] = value

    return property(get, put)


def _codes(module: ModuleType) -> list[CodeType]:
    """The code of all functions that use the module's variables, and of functions within them."""
    variables = vars(module)
    functions = [item for item in gc.get_objects() if type(item) is FunctionType and item.__globals__ is variables]
    waiting: list[object] = [function.__code__ for function in functions]
    found: dict[CodeType, None] = {}
    while waiting:
        code = waiting.pop()
        if isinstance(code, CodeType) and code not in found:
            found[code] = None
            waiting += code.co_consts
    return list(found)
