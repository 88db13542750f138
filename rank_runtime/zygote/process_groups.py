"""Announces the process groups that a rank's program creates, so that the groups of absent ranks are known.

In: calls of torch.distributed that create process groups. Every rank makes them for all groups, also for those it is
not a member of. Out: a message to the coordinator for each group, before torch creates it. Gloo backends can be
created but not used: they would connect to absent ranks. Only in jobs with absent ranks (MAYA_PRESENT_RANKS);
docs/internals.md lists the functions of torch that are wrapped.
"""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VARIABLE = "MAYA_PRESENT_RANKS"
_MODULE = "torch.distributed.distributed_c10d"


def observe_process_groups(environment: Mapping[str, str]) -> None:
    """Announce all process groups that this process creates from now on."""
    if environment.get(VARIABLE, "0") == "0":
        return
    module = sys.modules.get(_MODULE)
    if module is not None:
        _observe(module)
    else:
        sys.meta_path.insert(0, _ImportObserver())


class _ImportObserver(MetaPathFinder):
    """Wraps the functions of the module when it is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_observe(module: ModuleType) -> None:
                execute(module)
                _observe(module)

            spec.loader.exec_module = execute_and_observe  # type: ignore[method-assign]
        return spec


def _observe(module: Any) -> None:
    """Wrap the functions through which every process group is created."""

    def new_group(arguments: Mapping[str, Any]) -> None:
        ranks = arguments["global_ranks_in_group"] or range(arguments["group_size"])  # empty: the default group
        _announce(str(arguments["group_name"]), ranks, arguments.get("group_desc"))

    def split_group(arguments: Mapping[str, Any]) -> None:
        parent = arguments.get("parent_pg") or module._get_default_group()
        ranks = list(module._world.pg_group_ranks[parent])
        for members in arguments.get("split_ranks") or ():
            _announce("", [ranks[member] for member in sorted(members)], arguments.get("group_desc"))

    _call_before(module, "_new_process_group_helper", new_group)
    _call_before(module, "split_group", split_group)
    if hasattr(module, "ProcessGroupGloo"):
        module.ProcessGroupGloo = _GlooWithoutPeers
        _fake_backend()._set_sequence_number_for_group = lambda backend: None  # torch calls it for Gloo


class _IsBackend(type):
    """torch asks whether a backend is an instance of ProcessGroupGloo."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _fake_backend())


class _GlooWithoutPeers(metaclass=_IsBackend):
    """In the place of torch's Gloo backend, which connects to every member: a backend that raises an error when it is
    used."""

    def __new__(cls, store: object, rank: int, size: int, *_: object, **__: object) -> Any:
        backend = _fake_backend()
        options = backend.Options()
        options.error_on_collective = True
        return backend._create_internal(rank, size, options)


def _fake_backend() -> Any:
    from torch._C import _distributed_c10d

    return _distributed_c10d.FakeProcessGroup


def _call_before(module: Any, name: str, observe: Callable[[Mapping[str, Any]], None]) -> None:
    """Call `observe` with a function's arguments before the function itself."""
    function = getattr(module, name)
    signature = inspect.signature(function)

    @wraps(function)
    def observed(*arguments: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **named).arguments
        except TypeError:
            bound = None  # the function itself says what is wrong
        if bound is not None:
            observe(bound)
        return function(*arguments, **named)

    for other in list(sys.modules.values()):  # also modules that have imported the function by name
        if getattr(other, "__dict__", {}).get(name) is function:
            setattr(other, name, observed)


def _announce(name: str, members: Sequence[int], description: str | None) -> None:
    announce = ctypes.CDLL(None).maya_announce_group
    announce.restype = ctypes.c_char_p
    array = (ctypes.c_int64 * len(members))(*members)
    problem = announce(name.encode(), (description or "").encode(), array, ctypes.c_size_t(len(members)))
    if problem is not None:
        raise RuntimeError(f"a process group cannot be announced to the coordinator: {problem.decode()}")
