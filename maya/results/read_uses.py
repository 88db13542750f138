"""What becomes of a value that the script has read from the GPU: does a branch depend on it, or is it only printed?

In: the text of a Python file and the line of a read. Out: a `ReadUse`. The analysis follows local names, arguments of
functions in the file, and values that they return there; it does not follow attributes into other functions, containers
that are passed on, or other modules. So it may miss branches, and a name that is assigned again may connect a branch
too many.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_MOST_CALLS = 4  # depth of functions that return the value
_READS = frozenset({"item", "tolist", "cpu", "numpy", "any", "all", "bool", "float", "int", "equal", "allclose"})
_COLLECTS = frozenset({"append", "extend", "add", "insert", "update", "appendleft"})
_PRINTS = frozenset({"info", "debug", "warning", "warn", "error", "write", "add_scalar", "add_scalars", "log_metrics"})
_SHOWS = frozenset({"set_postfix", "set_postfix_str", "set_description", "echo", "print"})
_NOT_VALUES = frozenset({"len", "isinstance", "hasattr", "type", "id"})
_LOGGERS = frozenset({"logger", "logging", "log"})

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_TESTED = (ast.If, ast.While, ast.IfExp, ast.Assert)


@dataclass(frozen=True, order=True)
class Branch:
    """A statement that may go another way with other values."""

    line: int
    what: str  # "if", "while", "assert", "for"; "if ... break" where it ends a loop or a function


@dataclass
class ReadUse:
    """The uses of one read."""

    branches: set[Branch] = field(default_factory=set)
    is_printed_only: bool = False


def use_of_read(source: str, line: int) -> ReadUse | None:
    """The uses of a value that `line` reads; None: the source cannot be understood."""
    try:
        return _File(ast.parse(source)).use(line, 0)
    except (SyntaxError, ValueError, RecursionError):
        return None


class _File:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._followed: set[str] = set()

    def use(self, line: int, depth: int) -> ReadUse | None:
        functions = [node for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        around = [function for function in functions if _spans(function, line)]
        scope: Scope = max(around, key=lambda function: function.lineno, default=self._tree)
        statements = [node for node in _inside(scope) if isinstance(node, ast.stmt) and _spans(node, line)]
        if not statements:
            return None
        read = max(statements, key=lambda node: (node.lineno, node.col_offset))
        use = ReadUse({branch for node in _inside(scope) for branch in _direct_branch(node, read, line)})
        values = _Values(scope)
        returned = values.begin(read)
        values.spread()
        use.branches |= values.branches()
        use.branches |= self._in_called_functions(scope, values, line, depth)
        returned = returned or values.are_returned()
        if returned and isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) and depth < _MOST_CALLS:
            self._follow_calls(scope.name, use, depth)
        use.is_printed_only = not use.branches and not returned and values.are_printed_only(read)
        return use

    def _follow_calls(self, function: str, use: ReadUse, depth: int) -> None:
        """Add the branches of callers in this file."""
        if function in self._followed:
            return
        self._followed.add(function)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and _is_call_of(node, function):
                found = self.use(node.lineno, depth + 1)
                use.branches |= found.branches if found is not None else set()

    def _in_called_functions(self, scope: Scope, values: _Values, line: int, depth: int) -> set[Branch]:
        """The branches in functions of this file that get the value as an argument. `line`: of the read, if inside."""
        found: set[Branch] = set()
        for node in _inside(scope) if depth < _MOST_CALLS else ():
            if not isinstance(node, ast.Call):
                continue
            places = [place for place, argument in enumerate(node.args) if _is_given(argument, values, line)]
            words = {each.arg for each in node.keywords if each.arg and _is_given(each.value, values, line)}
            for function in self._functions_called(node.func) if places or words else ():
                names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
                names = names[1:] if names[:1] in (["self"], ["cls"]) else names
                given = {names[place] for place in places if place < len(names)} | words & set(names)
                key = f"{function.name}:{function.lineno}:{sorted(given)}"
                if given and key not in self._followed:
                    self._followed.add(key)
                    inner = _Values(function, given)
                    inner.spread()
                    found |= inner.branches() | self._in_called_functions(function, inner, 0, depth + 1)
        return found

    def _functions_called(self, called: ast.expr) -> list[ast.FunctionDef]:
        """The functions of this file that a call may mean: by name, or a method of a known class."""
        if isinstance(called, ast.Name):
            functions = [node for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef)]
            return [each for each in functions if each.name == called.id] or self._methods(called.id, "__call__")
        return self._methods(_key(called.value), called.attr) if isinstance(called, ast.Attribute) else []

    def _methods(self, variable: str, method: str) -> list[ast.FunctionDef]:
        classes = {node.name: node for node in ast.walk(self._tree) if isinstance(node, ast.ClassDef)}
        made = {
            _key(node.value.func)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _key(node.targets[0]) == variable
        }
        found = (
            list(classes.values()) if variable in ("self", "cls") else [classes[name] for name in made & set(classes)]
        )
        functions = (each for one in found for each in one.body if isinstance(each, ast.FunctionDef))
        return [function for function in functions if function.name == method]


class _Values:
    """The names of a scope that depend on a value."""

    def __init__(self, scope: Scope, names: Iterable[str] = ()) -> None:
        self._nodes = list(_inside(scope))
        self._names = set(names)
        self._containers: set[str] = set()  # their contents depend on it, their length does not
        self._escapes = False
        self._read: ast.stmt | None = None

    def begin(self, read: ast.stmt) -> bool:
        """Note what the reading statement assigns; True: it returns the value."""
        self._read = read
        if isinstance(read, ast.Return):
            return True
        if not hasattr(read, "body"):
            self._take(read)
        elif isinstance(read, ast.For):
            self._names |= {_key(target) for target in _targets(read)} - {""}
        return False

    def _take(self, statement: ast.AST) -> None:
        for target in _targets(statement):
            key = _key(target)
            if isinstance(target, ast.Subscript):
                self._containers |= {key} if key else set()
            elif key:
                self._names.add(key)
            self._escapes = self._escapes or not isinstance(target, ast.Name)
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in _COLLECTS:
                if key := _key(call.func.value):
                    self._containers.add(key)
                self._escapes = True

    def spread(self) -> None:
        """Follow assignments until nothing changes."""
        while True:
            before = len(self._names), len(self._containers)
            for node in self._nodes:
                value = _value(node)
                if value is not None and self.decide(value):
                    self._take(node)
                if isinstance(node, ast.If | ast.While) and (node is self._read or self.decide(node.test)):
                    for inside in _below(node):  # what a branch assigns depends on its test
                        self._take(inside)
            if (len(self._names), len(self._containers)) == before:
                return

    def decide(self, expression: ast.AST | None) -> bool:
        """Whether the expression's value depends on ours. Identity, membership, types and lengths do not."""
        if expression is None:
            return False
        if isinstance(expression, ast.Compare) and all(
            isinstance(each, ast.Is | ast.IsNot | ast.In | ast.NotIn) for each in expression.ops
        ):
            return False
        if isinstance(expression, ast.Call) and _key(expression.func) in _NOT_VALUES:
            return False
        if isinstance(expression, ast.Name | ast.Attribute) and _key(expression) in self._names:
            return True
        if isinstance(expression, ast.Subscript | ast.Call | ast.For) and self._uses_contents(expression):
            return True
        return any(
            self.decide(child) for child in ast.iter_child_nodes(expression) if not isinstance(child, _FUNCTIONS)
        )

    def _uses_contents(self, node: ast.Subscript | ast.Call | ast.For) -> bool:
        parts = [node.value] if isinstance(node, ast.Subscript) else getattr(node, "args", [])
        return any(isinstance(part, ast.Name | ast.Attribute) and _key(part) in self._containers for part in parts)

    def branches(self) -> set[Branch]:
        return {_branch(node) for node in self._nodes if _is_tested(node) and self.decide(_test(node))}

    def are_returned(self) -> bool:
        returns = (node for node in self._nodes if isinstance(node, ast.Return | ast.Yield) and node.value is not None)
        return any(self.decide(node.value) or _key(node.value) in self._containers for node in returns if node.value)

    def are_printed_only(self, read: ast.stmt) -> bool:
        if _is_print(read):
            return True
        if self._escapes or not self._names:
            return False
        uses = [
            node for node in self._nodes if isinstance(node, ast.stmt) and node is not read and self._is_used_in(node)
        ]
        printed = [node for node in uses if _is_print(node)]
        return bool(printed) and all(_is_print(node) or _value(node) is not None for node in uses)

    def _is_used_in(self, node: ast.stmt) -> bool:
        """Whether a statement itself, without those inside it, uses one of the names."""
        parts = (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))
        names = (each for part in parts for each in ast.walk(part) if isinstance(each, ast.Name))
        return any(isinstance(name.ctx, ast.Load) and name.id in self._names for name in names)


# ---- nodes ----


def _inside(scope: Scope) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _FUNCTIONS):
            waiting += ast.iter_child_nodes(node)


def _below(node: ast.If | ast.While) -> Iterator[ast.AST]:
    """The assignments in the body of a branch."""
    waiting: list[ast.AST] = [*node.body, *node.orelse]
    while waiting:
        inside = waiting.pop()
        if isinstance(inside, ast.Assign | ast.AnnAssign | ast.AugAssign):
            yield inside
        elif not isinstance(inside, _FUNCTIONS):
            waiting += ast.iter_child_nodes(inside)


def _spans(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", 0)
    return first <= line <= (getattr(node, "end_lineno", None) or first)


def _is_tested(node: ast.AST) -> bool:
    return isinstance(node, _TESTED) or (isinstance(node, ast.comprehension) and bool(node.ifs))


def _test(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.comprehension):
        return ast.Tuple(elts=list(node.ifs), ctx=ast.Load())
    return getattr(node, "test", None)


def _branch(node: ast.AST) -> Branch:
    if isinstance(node, ast.comprehension):
        return Branch(node.ifs[0].lineno, "if")
    kinds = {ast.While: "while", ast.Assert: "assert", ast.For: "for"}
    what = next((name for kind, name in kinds.items() if isinstance(node, kind)), "if")
    ending = _ending(node) if isinstance(node, ast.If) else ""
    return Branch(getattr(node, "lineno", 0), f"{what} ... {ending}" if ending else what)


def _ending(node: ast.If) -> str:
    """How the body of an `if` ends a loop, a function or the program."""
    for statement in node.body:
        if isinstance(statement, ast.Break | ast.Return | ast.Raise | ast.Continue):
            return type(statement).__name__.lower()
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            name = ast.unparse(statement.value.func)
            if name in ("exit", "quit", "sys.exit", "os._exit"):
                return "exit"
    return ""


def _direct_branch(node: ast.AST, read: ast.stmt, line: int) -> Iterator[Branch]:
    """The branch whose test contains the read."""
    tested = node.iter if isinstance(node, ast.For) else _test(node)
    if tested is None:
        return
    if isinstance(node, ast.stmt):
        if node is read and _spans(tested, line):
            yield _branch(node)
    elif not isinstance(read, ast.If | ast.While) and any(
        _is_read(each) and _spans(each, line) for each in ast.walk(tested)
    ):
        yield _branch(node)


def _is_given(argument: ast.expr, values: _Values, line: int) -> bool:
    return values.decide(argument) or any(_is_read(each) and _spans(each, line) for each in ast.walk(argument))


def _is_read(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _READS


def _is_call_of(node: ast.Call, function: str) -> bool:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr == function and _key(node.func.value) in ("self", "cls")
    return isinstance(node.func, ast.Name) and node.func.id == function


def _is_print(node: ast.AST) -> bool:
    """Whether a statement only calls a function that shows its arguments."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    function = node.value.func
    if isinstance(function, ast.Name):
        return function.id == "print"
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr == "log":
        return _key(function.value).rpartition(".")[2] in _LOGGERS
    return function.attr in _PRINTS | _SHOWS


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        found = list(node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For | ast.AsyncFor):
        found = [node.target]
    else:
        found = []
    flat: list[ast.expr] = []
    while found:
        target = found.pop()
        if isinstance(target, ast.Tuple | ast.List):
            found += target.elts
        else:
            flat.append(target.value if isinstance(target, ast.Starred) else target)
    return flat


def _value(node: ast.AST) -> ast.AST | None:
    """What a node assigns, collects or loops over."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return node.value
    if isinstance(node, ast.For | ast.AsyncFor):
        return ast.Call(func=ast.Name(id="iter", ctx=ast.Load()), args=[node.iter], keywords=[])
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        if isinstance(function, ast.Attribute) and function.attr in _COLLECTS:
            return ast.Tuple(elts=list(node.value.args), ctx=ast.Load())
    return None


def _key(node: ast.AST | None) -> str:
    """A name that can be followed: `loss`, `self.best`; of `losses[0]` that of the container."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _key(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return _key(node.value) if isinstance(node, ast.Subscript) else ""
