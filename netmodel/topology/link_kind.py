"""What a link is made of."""

from __future__ import annotations

from enum import IntEnum


class LinkKind(IntEnum):
    """A link's efficiency is calibrated by its kind."""

    NVLINK = 0
    PCIE = 1
    NETWORK = 2
