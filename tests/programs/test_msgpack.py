"""The msgpack of the ranks, in C, against the Python package: each reads the other's bytes, and not beyond the end."""

from __future__ import annotations

import ctypes
import random

import msgpack
import pytest

from rank_runtime.build import Build

INTEGERS = sorted(
    {sign * (1 << bits) + offset for sign in (-1, 1) for bits in range(63) for offset in (-1, 0, 1)}
    | {-(1 << 63), (1 << 63) - 1}
)


class Packer(ctypes.Structure):
    _fields_ = [("bytes", ctypes.POINTER(ctypes.c_ubyte)), ("size", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]


class Unpacker(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("end", ctypes.c_void_p)]


class Bytes(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class Numbers(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(ctypes.c_int64)), ("count", ctypes.c_size_t)]


@pytest.fixture(scope="module")
def device(build: Build) -> ctypes.CDLL:
    library = ctypes.CDLL(str(build.libraries[0]))
    for kind in ("array", "number", "bool", "text", "bytes", "numbers"):
        getattr(library, f"maya_unpack_{kind}").restype = ctypes.c_bool
    library.maya_pack_number.argtypes = [ctypes.POINTER(Packer), ctypes.c_int64]
    library.maya_pack_array.argtypes = [ctypes.POINTER(Packer), ctypes.c_size_t]
    return library


def written(packer: Packer) -> bytes:
    return bytes(packer.bytes[: packer.size])


def test_the_writer_agrees_with_the_msgpack_package(device: ctypes.CDLL) -> None:
    packer = Packer()
    expected: list[object] = []
    for number in INTEGERS:
        device.maya_pack_number(ctypes.byref(packer), number)
        expected.append(number)
    for value in (True, False):
        device.maya_pack_bool(ctypes.byref(packer), value)
        expected.append(value)
    for size in (0, 1, 31, 32, 255, 256, 65535, 65536):
        text = b"x" * size
        argument = Bytes(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p), size)
        device.maya_pack_text(ctypes.byref(packer), argument)
        device.maya_pack_bytes(ctypes.byref(packer), argument)
        expected += [text.decode(), text]
    for count in (0, 1, 15, 16, 65535, 65536):
        numbers = (ctypes.c_int64 * count)(*range(count))
        device.maya_pack_numbers(ctypes.byref(packer), Numbers(numbers, count))
        expected.append(list(range(count)))
    reader = msgpack.Unpacker(max_buffer_size=0)
    reader.feed(written(packer))
    assert list(reader) == expected


def test_the_reader_agrees_with_the_msgpack_package(device: ctypes.CDLL) -> None:
    for number in INTEGERS:
        assert read(device, "number", msgpack.packb(number), ctypes.c_int64) == number
    for value in (True, False):
        assert read(device, "bool", msgpack.packb(value), ctypes.c_bool) == value
    for size in (0, 1, 31, 32, 255, 256, 65535, 65536):
        for kind, packed in (("text", msgpack.packb("y" * size)), ("bytes", msgpack.packb(b"y" * size))):
            assert read(device, kind, packed, Bytes) == b"y" * size
    for count in (0, 1, 15, 16, 65535, 65536):
        assert read(device, "numbers", msgpack.packb(list(range(count))), Numbers) == list(range(count))
    assert read(device, "number", msgpack.packb((1 << 64) - 1), ctypes.c_int64) is None  # too large for us
    others: list[object] = [None, 1.5, {}, "text", b"bytes", [1, "a"], [1.5]]
    for wrong in others:
        for kind, result in (("number", ctypes.c_int64), ("bool", ctypes.c_bool), ("numbers", Numbers)):
            assert read(device, kind, msgpack.packb(wrong), result) is None


def test_nothing_is_read_beyond_the_end(device: ctypes.CDLL) -> None:
    """Every beginning of a value, and random bytes: refused, or read within bounds."""
    generator = random.Random(0)
    values = [1 << 40, -(1 << 40), True, "text" * 20, b"bytes" * 20, list(range(300)), "y" * 70000]
    cases = [packed[:end] for packed in map(msgpack.packb, values) for end in range(min(len(packed), 400))]
    cases += [generator.randbytes(generator.randrange(12)) for _ in range(20000)]
    cases += [bytes([first, 255, 255, 255, 255, 255]) for first in range(256)]
    for case in cases:
        for kind, result in (
            ("number", ctypes.c_int64),
            ("bool", ctypes.c_bool),
            ("text", Bytes),
            ("bytes", Bytes),
            ("numbers", Numbers),
        ):
            read(device, kind, case, result)  # has its own checks


def read(device: ctypes.CDLL, kind: str, data: bytes, result: type) -> object:
    """The value, if `data` is one of that kind and nothing else; None otherwise."""
    buffer = ctypes.create_string_buffer(data, len(data) + 1)
    start = ctypes.addressof(buffer)
    unpacker, answer = Unpacker(start, start + len(data)), result()
    understood = getattr(device, f"maya_unpack_{kind}")(ctypes.byref(unpacker), ctypes.byref(answer))
    assert start <= unpacker.at <= start + len(data)
    if isinstance(answer, Bytes) and understood:
        assert start <= answer.bytes
        assert answer.bytes + answer.size <= start + len(data)
    if not understood or unpacker.at != start + len(data):
        return None
    if isinstance(answer, Bytes):
        return ctypes.string_at(answer.bytes, answer.size)
    return answer.items[: answer.count] if isinstance(answer, Numbers) else answer.value
