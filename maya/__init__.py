"""Maya runs an unmodified CUDA PyTorch script on a machine without GPUs and records what it asks of the device.

Here is what a user touches: the commands (`maya`, `maya-torchrun`), the catalogue of GPUs and the reader of traces.
"""

from __future__ import annotations

__version__ = "0.1.0"
