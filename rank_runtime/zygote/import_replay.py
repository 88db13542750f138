"""Side effects of an import that the zygote records and takes back, and that a rank repeats when it imports the module.

In: the modules that the zygote imports. Out: for each module a list of `Replay`s, in order:

- entries added to or removed from sys.path, sys.meta_path, sys.path_hooks and warnings.filters;
- questions about the GPU that do not initialize it: a rank asks again, and takes the module if the answer is the same;
- the process id, where a module keeps it in a variable: a rank puts its own there;
- assignments that keep the time, random bytes or a variable of the rank (`repeated_statements`): a rank executes them
  again.

Changes of the environment are in the probe's records, because ranks check what modules read there (`shared_modules`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, Protocol

from rank_runtime.zygote.observed_loader import observe

# Functions of torch._C that ask for the GPU without initializing it. In the zygote they would leave marks that forked
# processes inherit, so that `ReplayRecorder` answers itself.
_COUNT_QUERY, _ACCELERATOR_QUERY = DEVICE_QUERIES = ("_cuda_getDeviceCount", "_accelerator_getAccelerator")


class OwnProcessId(int):
    """A process id that a module got. The type shows where the module keeps it."""

    __slots__ = ()


class Replay(Protocol):
    """A side effect that a rank repeats."""

    def is_possible(self) -> bool:
        """Whether repeating it now has the same outcome as in a new process."""

    def repeat(self) -> None: ...


# ---- lists of the interpreter ----


class InterpreterLists:
    """The present entries of the lists that modules may change."""

    def __init__(self) -> None:
        self.lists: tuple[list[Any], ...] = (
            list(sys.path),
            list(sys.meta_path),
            list(sys.path_hooks),
            list(warnings.filters),
        )

    def restore(self) -> None:
        for live, saved in zip(_live_lists(), self.lists, strict=True):
            live[:] = saved
        _forget_warnings()

    def is_same(self) -> bool:
        return all(_equal(live, saved) for live, saved in zip(_live_lists(), self.lists, strict=True))


def _live_lists() -> tuple[list[Any], ...]:
    return sys.path, sys.meta_path, sys.path_hooks, warnings.filters  # type: ignore[return-value]


def _forget_warnings() -> None:
    mutated = getattr(warnings, "_filters_mutated_lock_held", None) or getattr(warnings, "_filters_mutated", None)
    if mutated is not None:
        with contextlib.suppress(RuntimeError), getattr(warnings, "_lock", contextlib.nullcontext()):
            mutated()


def _equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(a is b or a == b for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class ListEdit:
    """Entries put at the front and at the end of a list, after others were removed."""

    removed: tuple[Any, ...]
    front: tuple[Any, ...]
    end: tuple[Any, ...]

    def is_possible(self, entries: Sequence[Any]) -> bool:
        return all(entry in entries for entry in self.removed)

    def apply(self, entries: list[Any]) -> None:
        for entry in self.removed:
            entries.remove(entry)
        entries[:0] = self.front
        entries.extend(self.end)


def list_edits(before: Sequence[Any], now: Sequence[Any]) -> ListEdit | None:
    """The edit that makes `now` from `before`; None: entries were put elsewhere, and in another list their place would
    not be known."""
    for added in range(len(now) + 1):
        for front in range(added + 1):
            middle = now[front : len(now) - added + front]
            if _equal(middle, [entry for entry in before if entry in middle]):
                end = now[front + len(middle) :]
                removed = tuple(entry for entry in before if entry not in middle)
                if (before and now and not middle) or any(entry in removed for entry in end):
                    return None
                return ListEdit(removed, tuple(now[:front]), tuple(end))
    return None


class ListReplay:
    """Changes of the lists."""

    def __init__(self, before: InterpreterLists, now: InterpreterLists) -> None:
        self._edits = [list_edits(old, new) for old, new in zip(before.lists, now.lists, strict=True)]

    def is_possible(self) -> bool:
        return all(
            edit is not None and edit.is_possible(live) for edit, live in zip(self._edits, _live_lists(), strict=True)
        )

    def repeat(self) -> None:
        for edit, live in zip(self._edits, _live_lists(), strict=True):
            assert edit is not None, "it is possible"
            edit.apply(live)
        _forget_warnings()


# ---- the GPU, the process id, assignments ----


class _DeviceQuery:
    def __init__(self, query: Callable[..., Any], arguments: tuple[Any, ...], answer: object) -> None:
        self._query = query
        self._arguments = arguments
        self._answer = answer

    def is_possible(self) -> bool:
        return bool(self._query(*self._arguments) == self._answer)

    def repeat(self) -> None:
        """`is_possible` has asked."""


class _ProcessIdReplay:
    def __init__(self, module: ModuleType) -> None:
        self._places = list(places_of_process_id(module))

    def is_possible(self) -> bool:
        return True

    def repeat(self) -> None:
        for owner, name in self._places:
            if type(vars(owner).get(name)) is OwnProcessId:  # the module may have changed it after the fork
                setattr(owner, name, os.getpid())


def places_of_process_id(module: ModuleType) -> Iterator[tuple[Any, str]]:
    """The variables of the module, of its classes and of its objects that hold the process id."""
    for name, value in list(vars(module).items()):
        if type(value) is OwnProcessId:
            yield module, name
        elif not isinstance(value, ModuleType):
            for attribute, held in _attributes(value).items():
                if type(held) is OwnProcessId:
                    yield value, attribute


def keeps_process_id(module: ModuleType, process: int) -> bool:
    """Whether the module keeps the process id elsewhere: in a container, or in a text, as a path in /proc."""
    digits = str(process)

    def is_it(value: object) -> bool:
        if isinstance(value, (int, float)):
            return value == process
        return isinstance(value, (str, bytes, os.PathLike)) and digits in str(value)

    for value in list(vars(module).values()):
        if is_it(value) and type(value) is not OwnProcessId:
            return True
        if isinstance(value, type) and value.__module__ != module.__name__:
            continue
        if isinstance(value, ModuleType):
            continue
        if isinstance(value, (list, tuple, set, frozenset, dict)):
            inside = gc.get_referents(value)  # an iteration could run code of the module
        else:
            inside = [held for held in _attributes(value).values() if type(held) is not OwnProcessId]
        if any(map(is_it, inside)):
            return True
    return False


def _attributes(value: object) -> dict[str, object]:
    """The variables of an object or a class, without running its code."""
    lookup = type.__getattribute__ if isinstance(value, type) else object.__getattribute__
    try:
        return dict(lookup(value, "__dict__"))
    except (AttributeError, TypeError):
        return {}


class _StatementsReplay:
    def __init__(self, code: CodeType, module: ModuleType) -> None:
        self._code = code
        self._module = module

    def is_possible(self) -> bool:
        return True

    def repeat(self) -> None:
        exec(self._code, vars(self._module))


# ---- in the zygote ----


def _device_count() -> int:
    """The number of virtual GPUs that a rank sees."""
    count = ctypes.c_int(0)
    ctypes.CDLL(None).cudaGetDeviceCount(ctypes.byref(count))
    return count.value


class ReplayRecorder:
    """Records side effects between `begin` and `take_back`."""

    def __init__(self) -> None:
        self._repeated: dict[str, CodeType | None] = {}
        self.brought: dict[str, list[str]] = {}  # names that appeared in sys.modules while a module was executed
        self._seen: set[str] = set()  # names in sys.modules
        self.replays: dict[str, list[tuple[int, Replay]]] = {}
        self.libraries: dict[str, list[Any]] = {}  # libraries of operators that a module registers
        self._executing: list[str] = []
        self._reads_process_id: set[str] = set()
        self._count = 0
        self._at_start = self._lists = InterpreterLists()
        self._wrapped: list[tuple[Any, str, Any]] = []

    @property
    def executing(self) -> str | None:
        """The module that is being executed."""
        return self._executing[-1] if self._executing else None

    def expect(self, name: str, repeated: CodeType | None) -> None:
        """Observe this module; `repeated`: the statements that ranks execute again."""
        self._repeated[name] = repeated

    def begin(self) -> None:
        self._seen.update(sys.modules)
        self._wrap(os, "getpid", self._noted_process_id)
        torch_c = getattr(sys.modules.get("torch"), "_C", None)
        for name in DEVICE_QUERIES:
            if hasattr(torch_c, name):
                self._answer(torch_c, name)
        library = getattr(sys.modules.get("torch.library"), "Library", None)
        if library is not None:
            self._wrap(library, "__init__", self._noted_library)
        sys.meta_path.insert(0, self)
        self._at_start = self._lists = InterpreterLists()

    def take_back(self) -> None:
        self._at_start.restore()
        sys.meta_path.remove(self)
        for owner, name, original in self._wrapped:
            setattr(owner, name, original)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._repeated:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    observe(spec, self)
                return spec
        return None

    def begin_module(self, name: str) -> None:
        self._note_modules()
        self._note_lists()
        self._executing.append(name)

    def end_module(self, name: str, error: BaseException | None, module: ModuleType | None) -> None:
        self._note_modules()
        self._note_lists()
        self._executing.pop()
        if module is None or error is not None:
            return
        if name in self._reads_process_id:
            self._add(name, _ProcessIdReplay(module))
        code = self._repeated[name]
        if code is not None:
            self._add(name, _StatementsReplay(code, module))

    def _note_modules(self) -> None:
        new: list[str] = []
        for name in reversed(sys.modules):  # new names are at the end
            if name in self._seen:
                break
            new.insert(0, name)
        self._seen.update(new)
        if self._executing:
            self.brought.setdefault(self._executing[-1], []).extend(new)

    def _note_lists(self) -> None:
        if self._lists.is_same():
            return
        now = InterpreterLists()
        if self._executing:
            self._add(self._executing[-1], ListReplay(self._lists, now))
        self._lists = now

    def _add(self, name: str, replay: Replay) -> None:
        self._count += 1
        self.replays.setdefault(name, []).append((self._count, replay))

    def _wrap(self, owner: Any, name: str, noted: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            result = original(*arguments, **keywords)
            return noted(original, arguments, result) if self._executing else result  # a module may keep it

        self._wrapped.append((owner, name, original))
        setattr(owner, name, wrapper)

    def _noted_process_id(self, _: Callable[[], int], __: tuple[Any, ...], result: int) -> int:
        self._reads_process_id.add(self._executing[-1])
        return OwnProcessId(result)

    def _answer(self, torch_c: Any, name: str) -> None:
        """Answer a question for the GPU without torch."""
        query = getattr(torch_c, name)

        def answer(*arguments: Any) -> object:
            if not self._executing:  # a module may keep this function
                return query(*arguments)
            count = _device_count()
            found = count if name == _COUNT_QUERY else torch_c.device("cuda") if count else None
            self._add(self._executing[-1], _DeviceQuery(query, arguments, found))
            return found

        self._wrapped.append((torch_c, name, query))
        setattr(torch_c, name, answer)

    def _noted_library(self, _: Callable[..., Any], arguments: tuple[Any, ...], result: object) -> object:
        self.libraries.setdefault(self._executing[-1], []).append(arguments[0])
        return result
