"""Which modules are imported before the fork."""

from __future__ import annotations

import contextlib
import importlib

# What the coordinator needs, too.
FIRST = ("torch", "torch.distributed")

# Imported by torch itself or by usual scripts sooner or later: a rank that did so on its own would need some 100 MB more.
TORCH = (
    "torch.distributed.tensor.parallel",
    "torch.distributed.tensor.experimental",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.pipelining",
    "torch.distributed.optim",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.nn.parallel",
    "torch.optim.swa_utils",
    "torch.utils.checkpoint",
    "torch.utils.data.distributed",
    "torch.profiler",
    "torch._dynamo",
    "torch._inductor",
)


def import_modules(names: tuple[str, ...]) -> None:
    """Those that there are: releases of torch differ."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
