"""Announces the process groups that a rank's program creates, so that the groups of absent ranks are known.

In: calls of torch.distributed that create process groups. Every rank makes them for all groups, also for those it is
not a member of. Out: a message to the coordinator for each group, before torch creates it. A group with a Gloo backend
gets a stand-in for it (rank_runtime/absent_members). Only in jobs with absent ranks (MAYA_PRESENT_RANKS);
docs/internals.md lists the functions of torch that are wrapped.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from rank_runtime.absent_members.checkpoint_plans import observe_checkpoints
from rank_runtime.absent_members.known_groups import GroupMembers, KnownGroups, parse_present
from rank_runtime.absent_members.object_collectives import observe_object_collectives, replace_everywhere, say
from rank_runtime.absent_members.own_stores import replace_own_stores
from rank_runtime.absent_members.store_exchange import StoreExchange
from rank_runtime.module_hooks import after_import

VARIABLE = "MAYA_PRESENT_RANKS"
LIST_VARIABLE = "MAYA_PRESENT_LIST"
_MODULE = "torch.distributed.distributed_c10d"
_OBSERVED = "_maya_observed"

_has_warned = False


def observe_process_groups(environment: Mapping[str, str]) -> None:
    """Announce all process groups that this process creates from now on."""
    if environment.get(VARIABLE, "0") == "0":
        return
    after_import(_MODULE, _observe)


def _observe(module: Any) -> None:
    """Wrap the functions through which every process group is created."""
    if _OBSERVED in vars(module):
        return
    setattr(module, _OBSERVED, True)
    groups = KnownGroups(int(os.environ["WORLD_SIZE"]), parse_present(os.environ[LIST_VARIABLE]))

    def new_group(arguments: dict[str, Any]) -> None:
        arguments["store"] = _store_of_the_job(module, arguments["store"])
        ranks = arguments["global_ranks_in_group"] or range(arguments["group_size"])  # empty: the default group
        groups.add(str(arguments["group_name"]), ranks)
        _announce(str(arguments["group_name"]), ranks, arguments.get("group_desc"))

    def stand_in(arguments: Mapping[str, Any], created: Any) -> None:
        group = groups.named(str(arguments["group_name"]))
        pg = created[0]
        if group is not None and _has_gloo(pg):
            timeout = arguments.get("timeout") or module.default_pg_timeout
            _use_stand_in(pg, group, groups, arguments["store"], timeout)

    def split_group(arguments: dict[str, Any]) -> None:
        parent = arguments.get("parent_pg") or module._get_default_group()
        ranks = list(module._world.pg_group_ranks[parent])
        for members in arguments.get("split_ranks") or ():
            _announce("", [ranks[member] for member in sorted(members)], arguments.get("group_desc"))

    _wrap(module, "_new_process_group_helper", new_group, stand_in)

    def stand_in_of_split(arguments: Mapping[str, Any], pg: Any) -> None:
        """Only the name of the own group is known, so the siblings of absent members are not."""
        parent = arguments.get("parent_pg") or module._get_default_group()
        ranks = list(module._world.pg_group_ranks[parent])
        for split in arguments.get("split_ranks") or ():
            members = [ranks[member] for member in sorted(split)]
            is_own = hasattr(pg, "group_name") and module._get_default_group().rank() in members
            group = groups.add(pg.group_name if is_own else "", members)
            if is_own and group is not None and _has_gloo(pg):
                timeout = arguments.get("timeout") or module.default_pg_timeout
                _use_stand_in(pg, group, groups, module._get_default_store(), timeout)

    _wrap(module, "split_group", split_group, stand_in_of_split)
    if hasattr(module, "ProcessGroupGloo"):
        _replace_gloo(module)
    observe_object_collectives(module, groups)
    observe_checkpoints(groups)
    after_import("torch.distributed.rendezvous", lambda _: replace_own_stores(sys.modules["torch.distributed"]))


def _store_of_the_job(module: Any, store: Any) -> Any:
    """The store that the coordinator serves, in the place of a program's own (a file, say), in which absent ranks would
    never set a key."""
    from torch._C._distributed_c10d import TCPStore

    inner = store
    while isinstance(inner, module.PrefixStore):
        inner = inner.underlying_store
    port = int(os.environ["MASTER_PORT"])
    if isinstance(inner, TCPStore) and inner.port == port:
        return store
    client = TCPStore(os.environ["MASTER_ADDR"], port, is_master=False, wait_for_workers=False)
    return module.PrefixStore("own_store", client)


def _use_stand_in(pg: Any, group: GroupMembers, groups: KnownGroups, store: Any, timeout: Any) -> None:
    from rank_runtime.absent_members.stand_in_kernels import StandIn, add_group  # imports torch

    add_group(pg.group_name, StandIn(StoreExchange(store, group, pg.rank(), groups, timeout)))


# ---- Gloo ----


def _has_gloo(pg: Any) -> bool:
    """Whether the backend for CPU tensors is Gloo."""
    import torch

    if not hasattr(pg, "_device_types") or torch.device("cpu") not in pg._device_types:
        return False
    return isinstance(pg._get_backend(torch.device("cpu")), _GlooWithoutPeers)


def _replace_gloo(module: Any) -> None:
    real = _GlooWithoutPeers.real = module.ProcessGroupGloo
    for name in ("Device", "Options", "_Options", "create_device", "create_default_device"):
        if hasattr(real, name):
            setattr(_GlooWithoutPeers, name, getattr(real, name))
    for other in list(sys.modules.values()):
        if getattr(other, "__dict__", {}).get("ProcessGroupGloo") is real and other.__name__ != "torch._C":
            vars(other)["ProcessGroupGloo"] = _GlooWithoutPeers
    module._create_process_group_wrapper = _compare_nothing
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"  # for backends that torch makes itself when it splits a group


def _compare_nothing(wrapped_pg: Any, *_: object, **__: object) -> Any:
    """In the place of torch's function for TORCH_DISTRIBUTED_DEBUG=DETAIL, whose comparison needs all ranks."""
    global _has_warned
    if not _has_warned:
        _has_warned = True
        say("TORCH_DISTRIBUTED_DEBUG=DETAIL compares no calls, because ranks are absent (--represent)")
    return wrapped_pg


class _IsGloo(type):
    """torch asks whether a backend is an instance of ProcessGroupGloo."""

    real: Any

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.real)


class _GlooWithoutPeers(metaclass=_IsGloo):
    """In the place of torch's Gloo backend: one that connects to no member before it is used. Collectives on CPU
    tensors never use it (rank_runtime/absent_members/stand_in_kernels.py); all others raise an error."""

    real: Any = None
    device: Any = None  # the same for all groups, and so is the store, whose Python part torch does not keep alive
    store: Any = None

    def __new__(cls, store: object, rank: int, size: int, *_: object, **named: Any) -> Any:
        from rank_runtime.absent_members.stand_in_kernels import StoreWithoutPeers  # imports torch

        if cls.device is None:
            cls.device = cls.real.create_default_device(lazy_init=True)
            cls.store = StoreWithoutPeers()
        options = cls.real._Options()
        options._devices = [cls.device]
        options._threads = 1
        if named.get("timeout") is not None:
            options._timeout = named["timeout"]
        return cls.real(cls.store, rank, size, options)


def _wrap(
    module: Any,
    name: str,
    before: Callable[[dict[str, Any]], None],
    after: Callable[[Mapping[str, Any], Any], None] | None = None,
) -> None:
    """Call `before` with a function's arguments, which it may change, before the function itself, and `after` with its
    result as well."""
    function = getattr(module, name)
    signature = inspect.signature(function)

    @wraps(function)
    def observed(*arguments: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **named)
        except TypeError:
            return function(*arguments, **named)  # it says itself what is wrong
        before(bound.arguments)
        result = function(*bound.args, **bound.kwargs)
        if after is not None:
            after(bound.arguments, result)
        return result

    replace_everywhere(name, function, observed)


def _announce(name: str, members: Sequence[int], description: str | None) -> None:
    announce = ctypes.CDLL(None).maya_announce_group
    announce.restype = ctypes.c_char_p
    array = (ctypes.c_int64 * len(members))(*members)
    problem = announce(name.encode(), (description or "").encode(), array, ctypes.c_size_t(len(members)))
    if problem is not None:
        raise RuntimeError(f"a process group cannot be announced to the coordinator: {problem.decode()}")
