"""The installed commands, `maya` and `maya-torchrun`.

They are processes of our own, so in them the names of our packages mean our packages, even if PYTHONPATH has a module
that is called `coordinator`, `netmodel` or `rank_runtime`. A module in the current folder is no danger: Python does not
look there for a command. Ranks are the user's processes, and in them such a name means the user's module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).parents[2]
_PACKAGES = frozenset({"coordinator", "netmodel", "rank_runtime"})


class _OwnPackages(MetaPathFinder):
    """Finds our packages beside this one, before Python looks anywhere else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(_ROOT)], target) if fullname in _PACKAGES else None


def maya() -> None:
    """The command `maya`."""
    sys.meta_path.insert(0, _OwnPackages())
    from maya.cli.main import main

    main()


def maya_torchrun() -> int:
    """The command `maya-torchrun`; returns its exit code."""
    sys.meta_path.insert(0, _OwnPackages())
    from maya.launcher import main

    return main()
