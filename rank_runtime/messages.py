"""The messages between ranks and the coordinator: what there is, and the order of the fields.

Declared here once: the ranks' side, which is C, is compiled with a header that the build makes from these declarations
(rank_runtime/build/message_header.py). Whoever changes a declaration raises VERSION.

A ZeroMQ message is a batch. Its first frame is a msgpack array of messages, each an array: kind, then the fields in the
order of their declaration. The other frames are payloads, one for each message whose `payload` is true, in order. A rank
has a DEALER socket, the coordinator a ROUTER; per rank, messages arrive in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, Union

import msgpack

VERSION = 1


class Call(IntEnum):
    """What a rank asks of a communicator."""

    ALL_REDUCE = 0
    REDUCE = 1
    REDUCE_SCATTER = 2
    BROADCAST = 3
    ALL_GATHER = 4
    ALL_TO_ALL = 5
    GATHER = 6
    SCATTER = 7
    SEND = 8
    RECEIVE = 9


class DataType(IntEnum):
    """Element types, numbered as NCCL numbers them."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8_E4M3 = 10
    FLOAT8_E5M2 = 11


class Reduction(IntEnum):
    """Operators of reductions, numbered as NCCL numbers them; PREMULSUM is a sum of inputs that their ranks scaled."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4
    PREMULSUM = 5


class Ending(IntEnum):
    """How a rank gives up a communicator."""

    DESTROYED = 0
    ABORTED = 1


# ---- from a rank ----


@dataclass(frozen=True)
class Hello:
    """The first message of a process. Whoever does not know the run's secret is not answered."""

    KIND: ClassVar[int] = 1
    version: int
    secret: str
    rank: int
    process: int


@dataclass(frozen=True)
class Join:
    """A member of a new communicator; complete when `ranks` members have come with the same key."""

    KIND: ClassVar[int] = 2
    request: int  # chosen by the rank; the answer carries it
    key: bytes  # the same for all members: made from the unique identifiers
    member: int  # rank in the communicator
    ranks: int


@dataclass(frozen=True)
class Split:
    """ncclCommSplit: complete when every member of the parent has called it."""

    KIND: ClassVar[int] = 3
    request: int
    parent: int
    sequence: int  # of this rank's splits and shrinks of the parent: 0, 1, ...
    color: int  # -1: no part in any of the new communicators
    key: int


@dataclass(frozen=True)
class Shrink:
    """ncclCommShrink: complete when every member that is not excluded has called it."""

    KIND: ClassVar[int] = 4
    request: int
    parent: int
    sequence: int
    excluded: Sequence[int]


@dataclass(frozen=True)
class Post:
    """One call whose turn has come in its stream. Answered by Done or Failed."""

    KIND: ClassVar[int] = 5
    token: int  # chosen by the rank; the answer carries it
    communicator: int
    call: int  # Call
    sequence: int  # collectives: 0, 1, ... on the communicator; send and receive: on (communicator, sender, receiver)
    count: int  # elements, as the call counts: per rank for all-gather, reduce-scatter, all-to-all, gather, scatter
    data_type: int
    reduction: int  # 0 where the call has none
    peer: int  # root or peer; -1 where the call has none
    known: Sequence[int]  # which bytes of the send buffer are known: start, end, start, end, ...
    payload: bool  # the send buffer follows; otherwise it counts as zeros, none of which is known


@dataclass(frozen=True)
class Leave:
    """The rank will not use the communicator again; posts that are not answered yet never will be."""

    KIND: ClassVar[int] = 6
    communicator: int
    ending: int


@dataclass(frozen=True)
class Alive:
    """Now and then, and when something changed: how far the rank is."""

    KIND: ClassVar[int] = 7
    steps: int  # optimizer steps so far


@dataclass(frozen=True)
class Bye:
    """The last message of a process that ends in an orderly way."""

    KIND: ClassVar[int] = 8


# ---- from the coordinator ----


@dataclass(frozen=True)
class Welcome:
    """The answer to Hello; the rank's other messages may have been sent before it arrives."""

    KIND: ClassVar[int] = 32
    version: int


@dataclass(frozen=True)
class Refused:
    """The answer to a Hello that cannot be accepted: another version, a rank that is taken."""

    KIND: ClassVar[int] = 33
    text: str


@dataclass(frozen=True)
class Joined:
    """The answer to Join, Split and Shrink."""

    KIND: ClassVar[int] = 34
    request: int
    communicator: int  # 0: the rank has no part in it (Split with color -1)
    member: int
    members: Sequence[int]  # ranks of the job, in the order of the communicator
    instance: int  # 0, 1, ... among the communicators with exactly these members; with them, a name that does not
    # depend on timing


@dataclass(frozen=True)
class RequestFailed:
    """The answer to a Join, Split or Shrink that cannot succeed."""

    KIND: ClassVar[int] = 35
    request: int
    result: int  # ncclResult_t
    text: str


@dataclass(frozen=True)
class Done:
    """The answer to a Post: the call is complete."""

    KIND: ClassVar[int] = 36
    token: int
    known: Sequence[int]  # which bytes of the payload are known, as in Post
    payload: bool  # what the receive buffer holds now follows; otherwise nothing of it is known


@dataclass(frozen=True)
class Failed:
    """The answer to a Post that can never be completed."""

    KIND: ClassVar[int] = 37
    token: int
    result: int
    text: str


FromRank = Union[Hello, Join, Split, Shrink, Post, Leave, Alive, Bye]
FromCoordinator = Union[Welcome, Refused, Joined, RequestFailed, Done, Failed]
Message = Union[FromRank, FromCoordinator]

FROM_RANK = (Hello, Join, Split, Shrink, Post, Leave, Alive, Bye)
FROM_COORDINATOR = (Welcome, Refused, Joined, RequestFailed, Done, Failed)


class MessageError(ValueError):
    """Bytes that are no batch of messages of this version."""


def pack(messages: Iterable[Message]) -> bytes:
    """The first frame of a batch."""
    return msgpack.packb([[m.KIND, *(getattr(m, f.name) for f in fields(m))] for m in messages])
