"""Ranks of a job as the coordinator's state machine sees them: their messages and the answers. No sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.answers import Outgoing
from coordinator.arithmetic import Buffer
from coordinator.state import State
from rank_runtime.messages import Call, DataType, Done, Failed, Join, Joined, Message, Post, RequestFailed

GPUS = 8  # of a node


class Ranks:
    """All ranks of a job; remembers the answers to each."""

    def __init__(self, world_size: int) -> None:
        self.state = State()
        self.world_size = world_size
        self.answers: list[list[tuple[Message, bytes | None]]] = [[] for _ in range(world_size)]
        for rank in range(world_size):
            self.state.start(rank)

    def say(self, rank: int, message: Message, payload: Buffer | None = None) -> None:
        outgoing: list[Outgoing] = self.state.handle(rank, message, payload)
        for to, answer, answer_payload in outgoing:
            self.answers[to].append((answer, None if answer_payload is None else bytes(answer_payload)))

    def told(self, rank: int) -> list[tuple[Message, bytes | None]]:
        """What the rank has been told since it last looked."""
        told, self.answers[rank] = self.answers[rank], []
        return told

    def join(self, members: Sequence[int], key: bytes = b"") -> int:
        """A communicator of these ranks, in this order."""
        for member, rank in enumerate(members):
            self.say(rank, join(rank, key or repr(members).encode(), member, len(members)))
        numbers = set()
        for member, rank in enumerate(members):
            ((answer, _),) = self.told(rank)
            assert isinstance(answer, Joined)
            assert (answer.member, list(answer.members)) == (member, list(members))
            numbers.add(answer.communicator)
        (number,) = numbers
        return number

    def post(self, rank: int, communicator: int, sequence: int, payload: bytes | None = None, **fields: Any) -> None:
        """By default an all-reduce of one fp32, of which everything is known if there is a payload."""
        self.say(rank, post(communicator, sequence, payload, **fields), payload)


def join(rank: int, key: bytes, member: int, ranks: int, request: int = 1) -> Join:
    """Of a rank that has a GPU of its own."""
    node, gpu = divmod(rank, GPUS)
    return Join(request, key, member, ranks, node, gpu, (gpu + 1) << 12)


def post(communicator: int, sequence: int, payload: bytes | None = None, **fields: Any) -> Post:
    return Post(
        token=fields.get("token", sequence),
        communicator=communicator,
        call=fields.get("call", Call.ALL_REDUCE),
        sequence=sequence,
        count=fields.get("count", 1),
        data_type=fields.get("data_type", DataType.FLOAT32),
        reduction=fields.get("reduction", 0),
        peer=fields.get("peer", -1),
        known=fields.get("known", [0, len(payload)] if payload else []),
        payload=payload is not None,
    )


def failure(answers: Sequence[tuple[Message, bytes | None]]) -> str:
    """The text of the one answer, which is a failure."""
    ((answer, payload),) = answers
    assert payload is None
    assert isinstance(answer, Failed | RequestFailed), answer
    return answer.text


def done(token: int) -> list[tuple[Message, bytes | None]]:
    """The one answer to a post without a payload."""
    return [(Done(token, (), False), None)]
