"""Distributed checkpoints (torch.distributed.checkpoint) of a job with absent ranks.

Every rank sends the coordinator of the save its plan: the items it will write. Torch divides replicated tensors among
the ranks, so an absent rank has those of its stand-in, and present ranks write as much as in a job with all ranks. It
has no shards, which would be its stand-in's, and no other objects, so that present ranks write these. What is assigned
to absent ranks is missing in the checkpoint: torch's check that the shards fill each tensor passes over that, and
loading leaves such a tensor as it is. In such a job, present ranks can load the checkpoint again; it is not a complete
one.

In: torch's modules, when they are imported. Out: the same functions, which know about absent ranks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rank_runtime.absent_members.known_groups import KnownGroups
from rank_runtime.absent_members.store_exchange import ASSUMED
from rank_runtime.module_hooks import after_import

_PACKAGE = "torch.distributed.checkpoint"
_INCOMPLETE = "invalid fill"  # in torch's text about a tensor whose shards do not fill it


def observe_checkpoints(groups: KnownGroups) -> None:
    after_import(f"{_PACKAGE}.utils", lambda module: _let_absent_ranks_write_nothing(module, groups))
    after_import(f"{_PACKAGE}.default_planner", _accept_missing_shards)
    after_import(f"{_PACKAGE}.default_planner", _read_what_was_written)


def _let_absent_ranks_write_nothing(module: Any, groups: KnownGroups) -> None:
    wrapper = module._DistWrapper

    def without_items(plans: Any, pg: Any) -> Any:
        from torch.distributed import distributed_c10d, group
        from torch.distributed.checkpoint.planner import SavePlan, WriteItemType

        pg = pg or group.WORLD
        known = groups.named(pg.group_name) if hasattr(pg, "group_name") else None
        if plans is None or known is None or len(plans) != len(known.members):
            return plans
        if not any(isinstance(plan, SavePlan) for plan in plans):
            return plans
        distributed_c10d._get_default_store().set(f"{ASSUMED}checkpoints have the shards of present ranks only", b"-")

        def without_shards(plan: Any) -> Any:
            return dataclasses.replace(plan, items=[item for item in plan.items if item.type == WriteItemType.TENSOR])

        return [
            plan if known.is_present(place) or not isinstance(plan, SavePlan) else without_shards(plan)
            for place, plan in enumerate(plans)
        ]

    def wrapped(name: str) -> None:
        function = getattr(wrapper, name)

        def gather(self: Any, object: Any) -> Any:
            return without_items(function(self, object), self.group)

        setattr(wrapper, name, gather)

    for name in ("gather_object", "all_gather_object"):
        if hasattr(wrapper, name):
            wrapped(name)


def _read_what_was_written(module: Any) -> None:
    """Leave out items of a load that absent ranks would have written."""
    function = getattr(module, "create_default_local_load_plan", None)
    if function is None:
        return

    def create(state_dict: Any, metadata: Any, *arguments: Any, **named: Any) -> Any:
        plan = function(state_dict, metadata, *arguments, **named)
        written = getattr(metadata, "storage_data", None)
        if not isinstance(written, dict):
            return plan
        return dataclasses.replace(plan, items=[item for item in plan.items if item.storage_index in written])

    module.create_default_local_load_plan = create


def _accept_missing_shards(module: Any) -> None:
    function = getattr(module, "_validate_global_plan", None)
    if function is None:
        return

    def validate(*arguments: Any, **named: Any) -> Any:
        was_disabled, module.logger.disabled = module.logger.disabled, True  # it has a line for each tensor
        try:
            found = function(*arguments, **named)
        finally:
            module.logger.disabled = was_disabled
        if isinstance(found, bool):  # older versions of torch do not say what is wrong
            return True
        return [error for error in found if _INCOMPLETE not in error]

    module._validate_global_plan = validate
