"""Answers to ranks: the form of an answer, and the values of ncclResult_t in it."""

from __future__ import annotations

from coordinator.arithmetic import Buffer
from rank_runtime.messages import FromCoordinator

Outgoing = tuple[int, FromCoordinator, Buffer | None]  # rank, message, payload

SYSTEM_ERROR = 2
INVALID_ARGUMENT = 4
INVALID_USAGE = 5
