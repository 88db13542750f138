"""Lists of objects from absent ranks.

torch sends an object as two tensors, its size and its pickled bytes. Objects of an absent rank that are gathered are
those of its stand-in (known_groups.py): all_gather_object gets both tensors from there; over NCCL, gather_object
consists of send/recv, so its bytes from absent ranks are placeholders that cannot be unpickled. What an absent rank
sends or broadcasts is known from its sibling; without one, already its size would be a placeholder. Then

    broadcast_object_list    every member gets the objects in the list of the absent rank's stand-in
    recv_object_list         the list keeps its objects
    scatter_object_list      the object is the first one of the stand-in's list, or None
    _broadcast_object        (of torch's optimizers, from every rank in turn) the last object of a present rank

In: calls of these functions, for groups of any backend. Out: the same calls, with another source where it is absent; a
line on stderr, and one in the summary.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from rank_runtime.absent_members.known_groups import GroupMembers, KnownGroups
from rank_runtime.absent_members.store_exchange import ASSUMED
from rank_runtime.module_hooks import after_import

Call = Callable[..., Any]


def observe_object_collectives(module: Any, groups: KnownGroups) -> None:
    """Wrap the functions of torch.distributed that receive objects from one rank."""
    objects = _ObjectCollectives(module, groups)
    module._tensor_to_object = objects.unpickling(module._tensor_to_object)
    for name, call in (
        ("broadcast_object_list", objects.broadcast),
        ("recv_object_list", objects.receive),
        ("scatter_object_list", objects.scatter),
        ("gather_object", objects.gather),
    ):
        function = getattr(module, name, None)
        if function is not None:
            replace_everywhere(name, function, _bound(function, call))

    def observe_optimizer(optimizer: Any) -> None:
        function = getattr(optimizer, "_broadcast_object", None)
        if function is not None:
            optimizer._broadcast_object = _bound(function, objects.broadcast_one)

    after_import("torch.distributed.optim.zero_redundancy_optimizer", observe_optimizer)


def replace_everywhere(name: str, function: Any, replacement: Any) -> None:
    """Replace a function, also in modules that have imported it by name."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is function:
            setattr(module, name, replacement)


def say(text: str) -> None:
    print(f"maya: [rank {os.environ.get('RANK', '?')}] {text}", file=sys.stderr, flush=True)


def _bound(function: Call, call: Callable[[Call, dict[str, Any]], Any]) -> Call:
    signature = inspect.signature(function)

    @wraps(function)
    def observed(*arguments: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **named).arguments
        except TypeError:
            return function(*arguments, **named)  # it says itself what is wrong
        return call(function, bound)

    return observed


class _ObjectCollectives:
    """The wrapped functions."""

    def __init__(self, module: Any, groups: KnownGroups) -> None:
        self._module = module
        self._groups = groups
        self._gathering = threading.local()  # its attribute `on`: this thread gathers objects
        self._last: dict[str, Any] = {}  # for each group, the last object that a present rank broadcast

    def gather(self, function: Call, given: dict[str, Any]) -> Any:
        """The objects of absent members are those of their stand-ins."""
        self._gathering.on = True
        try:
            result = function(**given)
        finally:
            self._gathering.on = False
        gathered, group = given.get("object_gather_list"), self._group(given)
        if gathered and group is not None and len(gathered) == len(group.members):
            gathered[:] = [gathered[place] for place in group.stand_ins]
        return result

    def unpickling(self, function: Call) -> Call:
        """torch's function that unpickles a received object; placeholder bytes from an absent rank become None."""

        @wraps(function)
        def unpickle(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except Exception:
                if not getattr(self._gathering, "on", False):
                    raise
                return None

        return unpickle

    def broadcast(self, function: Call, given: dict[str, Any]) -> Any:
        place = self._unknown_source(given, default=0)
        if place is None:
            return function(**given)
        group = self._group(given)
        assert group is not None
        given.pop("group_src", None)
        given["src"] = group.members[group.stand_ins[place]]
        self._report("broadcast_object_list", group, place, f"the objects of rank {given['src']}")
        return function(**given)

    def broadcast_one(self, function: Call, given: dict[str, Any]) -> Any:
        """As `broadcast`, of a function in which only the source has the object."""
        group = self._group(given)
        place = self._unknown_source({"group": given.get("group"), "src": given.get("src_rank")}, default=None)
        if place is not None and group is not None:
            given["src_rank"] = group.members[group.stand_ins[place]]
            given["obj"] = self._last.get(group.name)
            if given["obj"] is None:
                self._report("broadcast of an object", group, place, "None")
            else:
                self._report("broadcast of an object", group, place, "the last object of a present rank")
        received = function(**given)
        if group is not None:
            self._last[group.name] = received
        return received

    def receive(self, function: Call, given: dict[str, Any]) -> Any:
        place = self._unknown_source(given, default=None)  # by default, from any rank
        if place is None:
            return function(**given)
        group = self._group(given)
        assert group is not None
        self._report("recv_object_list", group, place, "the list keeps its objects")
        return group.members[place]

    def scatter(self, function: Call, given: dict[str, Any]) -> Any:
        place = self._unknown_source(given, default=0)
        if place is None:
            return function(**given)
        group = self._group(given)
        assert group is not None
        stand_in = group.members[group.stand_ins[place]]
        given.pop("group_src", None)
        given["src"] = stand_in
        if given.get("scatter_object_input_list") is None and stand_in == self._module.get_rank():
            given["scatter_object_input_list"] = [None] * len(group.members)
        self._report("scatter_object_list", group, place, f"the objects of rank {stand_in}, or None")
        return function(**given)

    def _group(self, given: dict[str, Any]) -> GroupMembers | None:
        pg = given.get("group") or self._module.group.WORLD
        return self._groups.named(pg.group_name) if hasattr(pg, "group_name") else None

    def _unknown_source(self, given: dict[str, Any], default: int | None) -> int | None:
        """The place of the source, if it is absent and no sibling is present."""
        group = self._group(given)
        if group is None:
            return None
        place = given.get("group_src")
        if place is None:
            source = default if given.get("src") is None else given["src"]
            place = group.members.index(source) if source in group.members else None
        if place is None or not 0 <= place < len(group.members) or group.is_present(place):
            return None
        if self._groups.has_sibling(group, place) and self._is_on_gpu(given):
            return None  # NCCL's calls go to the coordinator, which knows the siblings of all groups
        return place if self._groups.sibling(group, place) is None else None

    def _is_on_gpu(self, given: dict[str, Any]) -> bool:
        device = given.get("device") or self._module._get_object_coll_device(given.get("group"))
        return str(device).startswith("cuda")

    def _report(self, call: str, group: GroupMembers, place: int, assumed: str) -> None:
        rank = group.members[place]
        say(f"{call}: rank {rank} is absent, and so are its objects; assumed: {assumed}. Add {rank} to --represent.")
        store = self._module._get_default_store()
        store.set(f"{ASSUMED}{call} from rank {rank} ({assumed})", b"-")
