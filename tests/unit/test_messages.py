"""The messages between ranks and the coordinator: they round-trip, and no bytes do any harm."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rank_runtime.messages import (
    FROM_COORDINATOR,
    FROM_RANK,
    VERSION,
    Call,
    DataType,
    Done,
    Ending,
    Hello,
    Join,
    Joined,
    Message,
    MessageError,
    Post,
    Reduction,
    Shrink,
    Split,
    pack,
    unpack,
    unpack_hello,
)

POST = Post(
    token=1,
    communicator=2,
    call=Call.ALL_REDUCE,
    sequence=3,
    count=4,
    data_type=DataType.FLOAT32,
    reduction=0,
    peer=-1,
    known=[0, 16],
    payload=True,
)


def _values(annotation: str, name: str) -> st.SearchStrategy[Any]:
    if annotation == "str":
        return st.text(max_size=20)
    if annotation == "bytes":
        return st.binary(max_size=20)
    if annotation == "bool":
        return st.just(False)
    if annotation == "Sequence[int]":
        return st.just([]) if name == "known" else st.lists(st.integers(0, 5000), max_size=20)
    largest = {"call": max(Call), "data_type": max(DataType), "reduction": max(Reduction), "ending": max(Ending)}
    return st.integers(1, largest.get(name, (1 << 31) - 1))


def _messages() -> st.SearchStrategy[Message]:
    def of(declaration: type[Message]) -> st.SearchStrategy[Message]:
        return st.builds(
            declaration, **{field.name: _values(str(field.type), field.name) for field in fields(declaration)}
        )

    return st.one_of([of(declaration) for declaration in (*FROM_RANK, *FROM_COORDINATOR)])


def _packed(*item: object) -> bytes:
    frame: bytes = msgpack.packb([list(item)])
    return frame


def _items(message: Message, **changed: object) -> list[object]:
    return [message.KIND, *(changed.get(field.name, getattr(message, field.name)) for field in fields(message))]


@given(st.lists(_messages(), max_size=5))
def test_every_message_round_trips(messages: list[Message]) -> None:
    assert unpack(pack(messages)) == [(message, None) for message in messages]


def test_payloads_go_to_the_messages_that_announce_them() -> None:
    without = Done(7, (), False)
    batch = unpack(pack([POST, without, Done(8, (0, 3), True)]), [b"0123456789abcdef", b"abc"])
    assert [(message.KIND, payload) for message, payload in batch] == [
        (5, b"0123456789abcdef"),
        (36, None),
        (36, b"abc"),
    ]


def test_every_message_has_a_kind_of_its_own() -> None:
    kinds = [declaration.KIND for declaration in (*FROM_RANK, *FROM_COORDINATOR)]
    assert len(set(kinds)) == len(kinds)


@given(st.binary(max_size=200), st.lists(st.binary(max_size=3), max_size=3))
def test_no_bytes_do_any_harm(frame: bytes, payloads: list[bytes]) -> None:
    with suppress(MessageError):
        unpack(frame, payloads)
    with suppress(MessageError):
        unpack_hello(frame)


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(st.lists(_ANYTHING, max_size=12) | _ANYTHING, max_size=3), st.integers(1, 40))
def test_no_values_do_any_harm(items: list[Any], kind: int) -> None:
    for item in items:
        if isinstance(item, list) and item:
            item[0] = kind
    frame = msgpack.packb(items)
    with suppress(MessageError):
        unpack(frame, [b"payload"])
    with suppress(MessageError):
        unpack_hello(frame)


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        ([99], "no message: [99]"),
        (["Post"], "no message: ['Post']"),
        ([[5]], "no message: [[5]]"),
        ([True, 1], "no message: [True, 1]"),
        (_items(POST)[:-1], "Post: 13 fields, expected 14"),
        (_items(POST, token="1"), "Post: token is '1', expected int"),
        (_items(POST, token=True), "Post: token is True, expected int"),
        (_items(POST, payload=1), "Post: payload is 1, expected bool"),
        (_items(POST, known={}), "Post: known is {}, expected an array"),
        (_items(POST, token=-1), f"Post: token is -1, expected 0 to {(1 << 63) - 1}"),
        (_items(POST, count=1 << 63), f"Post: count is {1 << 63}, expected 0 to {(1 << 63) - 1}"),
        (_items(POST, call=10), "Post: call is 10, expected 0 to 9"),
        (_items(POST, data_type=12), "Post: data_type is 12, expected 0 to 11"),
        (_items(POST, reduction=6), "Post: reduction is 6, expected 0 to 5"),
        (_items(POST, peer=-2), f"Post: peer is -2, expected -1 to {(1 << 31) - 1}"),
        (_items(POST, known=[0]), "Post: known intervals without an end"),
        (_items(POST, known=[4, 4]), "Post: 4 to 4 is no known interval after 0"),
        (_items(POST, known=[0, 8, 4, 12]), "Post: 4 to 12 is no known interval after 8"),
        (_items(POST, known=[0, "8"]), "Post: 0 to '8' is no known interval after 0"),
        (_items(POST, known=[0, 17]), "Post: 17 bytes are known, and the payload has 16"),
        (_items(Join(1, b"key", 0, 0, 0, 0, 4096)), f"Join: ranks is 0, expected 1 to {(1 << 31) - 1}"),
        (_items(Split(1, 1, 0, 0, 1 << 31)), f"Split: key is {1 << 31}, expected {-(1 << 31)} to {(1 << 31) - 1}"),
        (_items(Shrink(1, 1, 0, [1, -1])), "Shrink: excluded contains -1"),
        (_items(Joined(1, 1, 0, [None], 0)), "Joined: members contains None"),  # type: ignore[list-item]
    ],
)
def test_errors_name_the_wrong_field(item: list[object], complaint: str) -> None:
    with pytest.raises(MessageError) as raised:
        unpack(_packed(*item), [bytes(16)])
    assert str(raised.value) == complaint


def test_missing_and_surplus_payloads_are_refused() -> None:
    with pytest.raises(MessageError, match="Post: its payload is missing"):
        unpack(pack([POST]))
    with pytest.raises(MessageError, match="2 payloads, of which 1 belong to no message"):
        unpack(pack([POST]), [bytes(16), bytes(16)])
    with pytest.raises(MessageError, match="known intervals without a payload"):
        unpack(_packed(*_items(POST, payload=False)))


def test_the_version_of_any_hello_can_be_read() -> None:
    assert unpack_hello(pack([Hello(VERSION, "secret", 3, 4711)])) == (VERSION, "secret")
    assert unpack_hello(_packed(Hello.KIND, 99, "secret", {"a field": "of the future"})) == (99, "secret")
    for frame in (pack([POST]), pack([]), _packed(Hello.KIND, "1", "secret")):
        with pytest.raises(MessageError, match="the first message is no Hello"):
            unpack_hello(frame)
