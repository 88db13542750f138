"""The CUDA runtime and NCCL by hand, for programs that tests run as ranks: ctypes and numpy, without torch.

In: the environment of a rank, with the fake libraries preloaded. Out: device buffers, streams, events and communicators
whose methods are NCCL's calls; a result that is not ncclSuccess raises NcclError.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])

SUCCESS, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE, IN_PROGRESS = 0, 2, 4, 5, 7
SUM, PROD, MAX, MIN, AVG = range(5)
INT8, UINT8, INT32, UINT32, INT64, UINT64, FP16, FP32, FP64, BF16, E4M3, E5M2 = range(12)
TYPES = {
    np.dtype(np.int8): INT8,
    np.dtype(np.uint8): UINT8,
    np.dtype(np.int32): INT32,
    np.dtype(np.uint32): UINT32,
    np.dtype(np.int64): INT64,
    np.dtype(np.uint64): UINT64,
    np.dtype(np.float16): FP16,
    np.dtype(np.float32): FP32,
    np.dtype(np.float64): FP64,
}
NOT_READY = 600
NON_BLOCKING = 1

cuda = ctypes.CDLL(os.environ["CUDA_RUNTIME"])
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetLastError.restype = ctypes.c_char_p
size_t = ctypes.c_size_t


class NcclError(Exception):
    """A call of NCCL that did not succeed."""

    def __init__(self, function: str, result: int) -> None:
        super().__init__(f"{function}: {result}: {nccl.ncclGetLastError(None).decode()}")
        self.result = result


def check(function: str, *arguments: Any) -> None:
    """Call a function of NCCL, and raise what is wrong."""
    result = getattr(nccl, function)(*arguments)
    if result != SUCCESS:
        raise NcclError(function, result)


def checked(function: str, *arguments: Any) -> None:
    """Call a function of the CUDA runtime that is to succeed."""
    error = getattr(cuda, function)(*arguments)
    assert error == 0, (function, error)


checked("cudaSetDevice", RANK % 8)  # no two ranks of a node on one GPU, as in every program


class Stream:
    """A non-blocking stream, as torch makes them."""

    def __init__(self, flags: int = NON_BLOCKING) -> None:
        self.handle = ctypes.c_void_p()
        checked("cudaStreamCreateWithFlags", ctypes.byref(self.handle), flags)

    def synchronize(self) -> None:
        checked("cudaStreamSynchronize", self.handle)

    def is_idle(self) -> bool:
        answer = cuda.cudaStreamQuery(self.handle)
        assert answer in (0, NOT_READY), answer
        return bool(answer == 0)

    def wait_for(self, event: Event) -> None:
        checked("cudaStreamWaitEvent", self.handle, event.handle, 0)


class Event:
    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        checked("cudaEventCreateWithFlags", ctypes.byref(self.handle), 2)

    def record(self, stream: Stream) -> None:
        checked("cudaEventRecord", self.handle, stream.handle)

    def is_complete(self) -> bool:
        answer = cuda.cudaEventQuery(self.handle)
        assert answer in (0, NOT_READY), answer
        return bool(answer == 0)


class Graph:
    """What was submitted to `stream` inside `with graph.capture(stream)`."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[None]:
        graph = ctypes.c_void_p()
        checked("cudaStreamBeginCapture", stream.handle, 0)
        yield
        checked("cudaStreamEndCapture", stream.handle, ctypes.byref(graph))
        checked("cudaGraphInstantiate", ctypes.byref(self.handle), graph, ctypes.c_ulonglong(0))

    def launch(self, stream: Stream) -> None:
        checked("cudaGraphLaunch", self.handle, stream.handle)


HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_callbacks: list[Any] = []  # the runtime calls them later, so they must live


def hold(stream: Stream) -> threading.Event:
    """Keep the stream busy until the event is set."""
    gate = threading.Event()
    callback = HostFunction(lambda _: gate.wait())
    _callbacks.append(callback)
    checked("cudaLaunchHostFunc", stream.handle, callback, None)
    return gate


class Buffer:
    """Device memory with an array's bytes, or unwritten memory if there is no array."""

    def __init__(self, values: Any = None, *, count: int = 0, dtype: Any = np.float32) -> None:
        array = None if values is None else np.ascontiguousarray(values)
        self.dtype = np.dtype(dtype) if array is None else array.dtype
        self.count = count if array is None else array.size
        self.bytes = self.count * self.dtype.itemsize
        self.address = ctypes.c_void_p()
        checked("cudaMalloc", ctypes.byref(self.address), size_t(max(self.bytes, 1)))
        if array is not None:
            self.write(array)

    def write(self, array: Any) -> None:
        array = np.ascontiguousarray(array, self.dtype)
        source = array.ctypes.data_as(ctypes.c_void_p)
        checked("cudaMemcpy", self.address, source, size_t(array.nbytes), 1)

    def read(self) -> Any:
        """The contents, when all work of the legacy stream is done."""
        array = np.full(self.count, 7, self.dtype)
        target = array.ctypes.data_as(ctypes.c_void_p)
        checked("cudaMemcpy", target, self.address, size_t(self.bytes), 2)
        return array

    def at(self, element: int) -> ctypes.c_void_p:
        """The address of an element."""
        assert self.address.value is not None
        return ctypes.c_void_p(self.address.value + element * self.dtype.itemsize)


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def unique_id(name: str) -> UniqueId:
    """The same for all ranks that use the same name, as if one had made it and told the others."""
    return UniqueId(name.encode())


class Config(ctypes.Structure):
    """ncclConfig_t as far as tests need it."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("rest", ctypes.c_int * 3),
    ]

    def __init__(self, blocking: int) -> None:
        super().__init__(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, blocking)


class Communicator:
    """An ncclComm_t."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.handle = handle

    @classmethod
    def join(cls, name: str = "world", ranks: int = WORLD, rank: int = RANK) -> Communicator:
        handle = ctypes.c_void_p()
        check("ncclCommInitRank", ctypes.byref(handle), ranks, unique_id(name), rank)
        return cls(handle)

    @classmethod
    def join_without_waiting(cls, name: str = "world", ranks: int = WORLD, rank: int = RANK) -> Communicator:
        handle = ctypes.c_void_p()
        config = Config(blocking=0)
        result = nccl.ncclCommInitRankConfig(ctypes.byref(handle), ranks, unique_id(name), rank, ctypes.byref(config))
        assert result == IN_PROGRESS, result
        return cls(handle)

    def split(self, color: int, key: int = 0) -> Communicator | None:
        handle = ctypes.c_void_p(1)
        check("ncclCommSplit", self.handle, color, key, ctypes.byref(handle), None)
        return Communicator(handle) if handle.value else None

    def shrink(self, excluded: Sequence[int], flags: int = 0) -> Communicator:
        handle = ctypes.c_void_p()
        ranks = (ctypes.c_int * len(excluded))(*excluded)
        check("ncclCommShrink", self.handle, ranks, len(excluded), ctypes.byref(handle), None, flags)
        return Communicator(handle)

    def ask(self, function: str) -> int:
        answer = ctypes.c_int(-1)
        check(function, self.handle, ctypes.byref(answer))
        return answer.value

    @property
    def rank(self) -> int:
        return self.ask("ncclCommUserRank")

    @property
    def ranks(self) -> int:
        return self.ask("ncclCommCount")

    @property
    def error(self) -> int:
        return self.ask("ncclCommGetAsyncError")

    def call(self, name: str, *arguments: Any, stream: Stream | None = None) -> None:
        check(f"nccl{name}", *arguments, self.handle, stream.handle if stream else None)

    def all_reduce(
        self,
        sent: Buffer,
        received: Buffer | None = None,
        op: int = SUM,
        *,
        kind: int | None = None,
        stream: Stream | None = None,
    ) -> None:
        kind = TYPES[sent.dtype] if kind is None else kind
        target = (received or sent).address
        self.call("AllReduce", sent.address, target, size_t(sent.count), kind, op, stream=stream)

    def send(self, sent: Buffer, peer: int, *, stream: Stream | None = None) -> None:
        self.call("Send", sent.address, size_t(sent.count), TYPES[sent.dtype], peer, stream=stream)

    def receive(self, received: Buffer, peer: int, *, stream: Stream | None = None) -> None:
        self.call("Recv", received.address, size_t(received.count), TYPES[received.dtype], peer, stream=stream)

    def destroy(self) -> None:
        check("ncclCommDestroy", self.handle)

    def abort(self) -> None:
        check("ncclCommAbort", self.handle)


@contextmanager
def group() -> Iterator[None]:
    check("ncclGroupStart")
    yield
    check("ncclGroupEnd")


def refusal(call: Callable[[], object]) -> int:
    """The result of a call that NCCL does not grant."""
    try:
        call()
    except NcclError as error:
        return error.result
    return SUCCESS
