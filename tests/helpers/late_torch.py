"""torch, imported by the first test that uses it.

Every process that runs tests imports all files of tests, and importing torch takes seconds. One file of the unit tests
needs it.
"""

from __future__ import annotations

import importlib
from typing import Any


def late_torch() -> Any:
    importlib.import_module("torch.distributed")
    return importlib.import_module("torch")
