"""The messages between ranks and the coordinator, and the order of their fields.

Declared here once: the build generates the header `messages.h` for the ranks' C code from these declarations
(rank_runtime/build/message_header.py). A changed declaration needs a higher VERSION. The kinds of Hello and Refused and
the first fields of Hello never change, so that two sides of different versions can report the mismatch.

A ZeroMQ message is a batch. Its first frame is a msgpack array of messages, each an array: kind, then the fields in the
order of their declaration. The other frames are payloads, one for each message whose `payload` is true, in order. A
rank has a DEALER socket, the coordinator a ROUTER; the messages of one rank arrive in the order of sending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, fields
from enum import IntEnum
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import msgpack

VERSION = 9


class Call(IntEnum):
    """A call on a communicator."""

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
    """Operators of reductions, numbered as NCCL numbers them; PREMULSUM sums inputs that their ranks have scaled."""

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


# The dataclasses are not frozen: that would make a Post three times as expensive to decode.

# ---- from a rank ----


@dataclass(slots=True)
class Hello:
    """The first message of a process. The coordinator does not answer a process without the run's secret."""

    KIND: ClassVar[int] = 1
    version: int
    secret: str
    rank: int
    process: int


@dataclass(slots=True)
class Join:
    """A member of a new communicator; complete when `ranks` members have sent the same key."""

    KIND: ClassVar[int] = 2
    request: int  # chosen by the rank; the answer carries it
    key: bytes  # the same for all members: made from the unique identifiers
    member: int  # rank in the communicator
    ranks: int
    node: int
    gpu: int  # number in the node
    bus_id: int  # its PCI address, as NCCL numbers it; unique among the members of a node


@dataclass(slots=True)
class Split:
    """ncclCommSplit: complete when every member of the parent has called it."""

    KIND: ClassVar[int] = 3
    request: int
    parent: int
    sequence: int  # number among this rank's splits and shrinks of the parent: 0, 1, ...
    color: int  # -1: the rank joins none of the new communicators
    key: int


@dataclass(slots=True)
class Shrink:
    """ncclCommShrink: complete when every member that is not excluded has called it."""

    KIND: ClassVar[int] = 4
    request: int
    parent: int
    sequence: int
    excluded: Sequence[int]


@dataclass(slots=True)
class Post:
    """One call that its stream has reached. Answered by Done, Failed or Abandoned."""

    KIND: ClassVar[int] = 5
    token: int  # chosen by the rank; the answer carries it
    communicator: int
    call: int  # Call
    sequence: int  # collectives: 0, 1, ... on the communicator; send and receive: on (communicator, sender, receiver)
    count: int  # elements, as the call counts: per rank for all-gather, reduce-scatter, all-to-all, gather, scatter
    data_type: int
    reduction: int  # 0 where the call has none
    peer: int  # root or peer; -1 where the call has none
    known: Sequence[int]  # the known bytes of the send buffer: start, end, start, end, ...
    payload: bool  # the known bytes follow, one part after the other; otherwise none are known
    arrival_ns: int = 0  # by the rank's clock: when its stream reaches the call or its group
    shared_bytes: int = 0  # of a send or recv: bytes of those in its group that share its way out of, or into, the rank
    guessed: bool = (
        False  # some known bytes were computed from placeholders, but must be consistent among ranks: counts
    )
    site: int = 0  # the rank's number of the CallSite; 0: unknown


@dataclass(slots=True)
class Leave:
    """The rank will not use the communicator again; its unanswered posts stay unanswered."""

    KIND: ClassVar[int] = 6
    communicator: int
    ending: int


@dataclass(slots=True)
class Alive:
    """The rank's progress, sent from time to time and when it changes."""

    KIND: ClassVar[int] = 7
    steps: int  # steps so far of the optimizer with the most steps
    host_ns: int = 0  # by the rank's clock


@dataclass(slots=True)
class Bye:
    """The last message of a process that ends normally."""

    KIND: ClassVar[int] = 8
    host_ns: int = 0  # by the rank's clock


@dataclass(slots=True)
class Ask:
    """Asks for the duration of a kernel, copy or local collective. Answered by Times."""

    KIND: ClassVar[int] = 9
    number: int  # chosen by the rank; the answer carries it
    record: int  # the kind of its trace record: trace_format.Kind
    signature: str  # of the record
    op: str  # signature of its op; empty: none
    size: int  # bytes of a copy or memset; otherwise 0


@dataclass(slots=True)
class Drain:
    """The rank's program has ended, and its process waits until its streams have completed their collectives. The rank
    still posts the queued ones."""

    KIND: ClassVar[int] = 10
    host_ns: int = 0  # by the rank's clock


@dataclass(slots=True)
class ProcessGroup:
    """A process group that the rank's program creates, whether or not the rank is a member. Sent only if some ranks of
    the job are absent: their groups are known from the present ones."""

    KIND: ClassVar[int] = 11
    name: str  # torch's
    description: str  # torch's group_desc, e.g. mesh_tp
    members: Sequence[int]  # ranks of the job, in the order of the group


@dataclass(slots=True)
class Describe:
    """Asks for what NCCL would log about a communicator. Answered by Described."""

    KIND: ClassVar[int] = 12
    request: int
    communicator: int
    handle: int  # the communicator's address in the rank, which NCCL logs


@dataclass(slots=True)
class RankPlace:
    """The place of a process in its job, as soon as the process knows it: only below `maya exec`, where the processes
    of several jobs connect before their ranks are known. The rank of their Hello means nothing."""

    KIND: ClassVar[int] = 13
    rank: int
    ranks: int  # of the job
    ranks_per_node: int  # 0: unknown
    job: str  # the same for all ranks of a job
    certain: bool  # stated by the program; otherwise from environment variables, which may be inherited


@dataclass(slots=True)
class CallSite:
    """A Python stack that calls collectives; sent before the first Post that has its number."""

    KIND: ClassVar[int] = 15
    number: int  # 1, 2, ... in the process
    frames: str  # lines "file<TAB>line<TAB>function", innermost first


# ---- from the coordinator ----


@dataclass(slots=True)
class Welcome:
    """The answer to Hello; the rank may send further messages before it arrives."""

    KIND: ClassVar[int] = 32
    version: int


@dataclass(slots=True)
class Refused:
    """The answer to an unacceptable Hello: another version, or a rank that is already connected."""

    KIND: ClassVar[int] = 33
    text: str


@dataclass(slots=True)
class Joined:
    """The answer to Join, Split and Shrink."""

    KIND: ClassVar[int] = 34
    request: int
    communicator: int  # 0: the rank joined none (Split with color -1); a rank with several members gets several
    member: int
    members: Sequence[int]  # ranks of the job, in the order of the communicator
    instance: int  # 0, 1, ... among the communicators with exactly these members; members and instance together are a
    # name that does not depend on timing


@dataclass(slots=True)
class RequestFailed:
    """The answer to a Join, Split or Shrink that cannot succeed."""

    KIND: ClassVar[int] = 35
    request: int
    result: int  # ncclResult_t
    text: str


@dataclass(slots=True)
class Done:
    """The answer to a Post: the call is complete."""

    KIND: ClassVar[int] = 36
    token: int
    known: Sequence[int]  # the known bytes of the receive buffer, as in Post
    payload: bool  # the known bytes follow, as in Post
    started_ns: int = 0  # by the clock of the cluster
    ended_ns: int = 0
    guessed: bool = False  # as in Post, for the bytes of some member


@dataclass(slots=True)
class Failed:
    """The answer to a Post that can never be completed."""

    KIND: ClassVar[int] = 37
    token: int
    result: int
    text: str


@dataclass(slots=True)
class Abandoned:
    """The answer to a Post of a draining rank: a missing member has ended or left the communicator."""

    KIND: ClassVar[int] = 39
    token: int
    text: str


@dataclass(slots=True)
class Times:
    """The answer to one or several Asks."""

    KIND: ClassVar[int] = 38
    numbers: Sequence[int]
    ns: Sequence[int]  # one for each number


@dataclass(slots=True)
class Described:
    """The answer to Describe."""

    KIND: ClassVar[int] = 40
    request: int
    text: str  # lines: a subsystem of NCCL_DEBUG_SUBSYS, a tab, the text


FromRank = (
    Hello
    | Join
    | Split
    | Shrink
    | Post
    | Leave
    | Alive
    | Bye
    | Ask
    | Drain
    | ProcessGroup
    | Describe
    | RankPlace
    | CallSite
)
FromCoordinator = Welcome | Refused | Joined | RequestFailed | Done | Failed | Times | Abandoned | Described
Message = FromRank | FromCoordinator

FROM_RANK = (
    *(Hello, Join, Split, Shrink, Post, Leave, Alive),
    *(Bye, Ask, Drain, ProcessGroup, Describe, RankPlace, CallSite),
)
FROM_COORDINATOR = (Welcome, Refused, Joined, RequestFailed, Done, Failed, Times, Abandoned, Described)


Payload = TypeVar("Payload", bound=Sized)


class MessageError(ValueError):
    """The bytes are not a batch of messages of this version."""


def pack(messages: Iterable[Message]) -> bytes:
    """The first frame of a batch."""
    frame: bytes = _PACKER.pack([[message.KIND, *_VALUES_OF[type(message)](message)] for message in messages])
    return frame


def unpack(frame: bytes, payloads: Sequence[Payload] = ()) -> list[tuple[Message, Payload | None]]:
    """The messages of a batch, each with its payload. The bytes are not trusted: everything is checked."""
    items = _array(frame)
    messages: list[tuple[Message, Payload | None]] = []
    used = 0
    for item in items:
        layout = _LAYOUTS.get(item[0]) if type(item) is list and item and type(item[0]) is int else None
        if layout is None:
            raise MessageError(f"no message: {_shortened(item)}")
        if [type(value) for value in item] != layout.types:
            raise MessageError(layout.complaint_about_types(item))
        if not layout.within_limits(item):
            raise MessageError(layout.complaint_about_limits(item))
        message = layout.make(*item[1:])
        payload = None
        if layout.payload:
            if item[layout.payload]:
                if used == len(payloads):
                    raise MessageError(f"{layout.name}: its payload is missing")
                payload = payloads[used]
                used += 1
            if item[layout.known] or payload is not None:
                _check_known(layout.name, item[layout.known], payload)
        elif layout.lists:
            for position in layout.lists:
                _check_numbers(layout, item, position)
        messages.append((message, payload))
    if used != len(payloads):
        raise MessageError(f"{len(payloads)} payloads, of which {len(payloads) - used} belong to no message")
    return messages


def unpack_hello(frame: bytes) -> tuple[int, str]:
    """Version and secret of a batch that begins with a Hello of any version."""
    items = _array(frame)
    if not items or type(items[0]) is not list or [type(value) for value in items[0][:3]] != [int, int, str]:
        raise MessageError("the first message is no Hello")
    kind, version, secret = items[0][:3]
    if kind != Hello.KIND:
        raise MessageError("the first message is no Hello")
    return version, secret


def _array(frame: bytes) -> list[Any]:
    try:
        items = msgpack.unpackb(frame)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise MessageError(f"{len(frame)} bytes that are not msgpack: {error}") from None
    if type(items) is not list:
        raise MessageError(f"a batch is an array of messages, not {_shortened(items)}")
    return items


def _check_known(name: str, known: Sequence[object], payload: Sized | None) -> None:
    """Check that the intervals are in order and that the payload has as many bytes."""
    if payload is None or len(known) % 2:
        raise MessageError(f"{name}: known intervals without {'an end' if payload is not None else 'a payload'}")
    last = total = 0
    for start, end in zip(known[::2], known[1::2], strict=True):
        if type(start) is not int or type(end) is not int or not last <= start < end:
            raise MessageError(f"{name}: {_shortened(start)} to {_shortened(end)} is no known interval after {last}")
        last = end
        total += end - start
    if total != len(payload):
        raise MessageError(f"{name}: {total} bytes are known, and the payload has {len(payload)}")


def _check_numbers(layout: _Layout, item: Sequence[Any], position: int) -> None:
    low, high = layout.limits_of(layout.field_name(position))
    for number in item[position]:
        if type(number) is not int or not low <= number <= high:
            raise MessageError(f"{layout.name}: {layout.field_name(position)} contains {_shortened(number)}")


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


_LARGEST_RANK = (1 << 31) - 1
_LARGEST_NUMBER = (1 << 63) - 1
# Limits of fields by name; the lower limit of all others is 0.
_LIMITS: dict[str, tuple[int, int]] = {
    "rank": (0, _LARGEST_RANK),
    "ranks": (1, _LARGEST_RANK),
    "members": (0, _LARGEST_RANK),
    "excluded": (0, _LARGEST_RANK),
    "member": (-1, _LARGEST_RANK),
    "color": (-1, _LARGEST_RANK),
    "peer": (-1, _LARGEST_RANK),
    "call": (0, max(Call)),
    "data_type": (0, max(DataType)),
    "reduction": (0, max(Reduction)),
    "ending": (0, max(Ending)),
}
_SIGNED_LIMITS = (-(1 << 31), (1 << 31) - 1)  # of an int of C
_TYPES: dict[str, type] = {"int": int, "str": str, "bytes": bytes, "bool": bool, "Sequence[int]": list}


class _Layout:
    """The checks of one kind of message, made from its declaration."""

    def __init__(self, declaration: type[Message]) -> None:
        self.name = declaration.__name__
        self.make: Callable[..., Message] = declaration
        self._fields = fields(declaration)
        declared = [_TYPES[str(field.type)] for field in self._fields]
        self.types: list[type] = [int, *declared]
        names = [field.name for field in self._fields]
        self.payload = 1 + names.index("payload") if "payload" in names else 0
        self.lists = [position for position, kind in enumerate(self.types) if kind is list]
        self.known = self.lists[0] if self.lists else 0
        self._limits = [
            (position, *self.limits_of(field.name))
            for position, field in enumerate(self._fields, start=1)
            if self.types[position] is int
        ]
        # One generated expression: a loop over the limits would double the time of unpacking.
        conditions = [f"{low} <= item[{position}] <= {high}" for position, low, high in self._limits]
        self.within_limits: Callable[[Sequence[Any]], bool] = eval(f"lambda item: {' and '.join(conditions) or True}")

    def limits_of(self, field: str) -> tuple[int, int]:
        if self.make is Split and field == "key":
            return _SIGNED_LIMITS
        return _LIMITS.get(field, (0, _LARGEST_NUMBER))

    def field_name(self, position: int) -> str:
        return self._fields[position - 1].name

    def complaint_about_types(self, item: Sequence[object]) -> str:
        if len(item) != len(self.types):
            return f"{self.name}: {len(item) - 1} fields, expected {len(self.types) - 1}"
        for position, (value, expected) in enumerate(zip(item, self.types, strict=True)):
            if type(value) is not expected:
                return (
                    f"{self.name}: {self.field_name(position)} is {_shortened(value)}, "
                    f"expected {'an array' if expected is list else expected.__name__}"
                )
        raise AssertionError("called only if something is wrong")

    def complaint_about_limits(self, item: Sequence[Any]) -> str:
        for position, low, high in self._limits:
            if not low <= item[position] <= high:
                return f"{self.name}: {self.field_name(position)} is {item[position]}, expected {low} to {high}"
        raise AssertionError("called only if something is wrong")


def _values_of(declaration: type[Message]) -> Callable[[Message], Iterable[object]]:
    names = [field.name for field in fields(declaration)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda message: [getattr(message, name) for name in names]


_PACKER = msgpack.Packer()
_DECLARATIONS: tuple[type[Message], ...] = (*FROM_RANK, *FROM_COORDINATOR)
_LAYOUTS = {declaration.KIND: _Layout(declaration) for declaration in _DECLARATIONS}
_VALUES_OF = {declaration: _values_of(declaration) for declaration in _DECLARATIONS}
