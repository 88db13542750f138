"""Random programs of NCCL calls, each compared with what numpy says; a script for maya-torchrun.

    maya-torchrun --nproc 3 nccl_programs.py FIRST_SEED PROGRAMS

A program makes communicators by splitting, and posts operations of every kind on several streams, some of them in
groups, without waiting in between; then all ranks look at what they received. All ranks draw the same program from its
seed, and each knows everybody's inputs. Prints "seed S: N operations" for each program, or what differs, and exits with
1.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

NCCL = ctypes.CDLL("libnccl.so.2")
STREAMS = 3
TYPES = [
    *((0, torch.int8), (1, torch.uint8), (2, torch.int32), (3, torch.uint32), (4, torch.int64), (5, torch.uint64)),
    *((6, torch.float16), (7, torch.float32), (8, torch.float64), (9, torch.bfloat16)),
    *((10, torch.float8_e4m3fn), (11, torch.float8_e5m2)),
]
SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE, PREMULSUM = range(6)


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


def check(result: int, what: str) -> None:
    if result != 0:
        NCCL.ncclGetLastError.restype = ctypes.c_char_p
        raise RuntimeError(f"{what} returned {result}: {NCCL.ncclGetLastError(None).decode()}")


@dataclass
class Communicator:
    handle: ctypes.c_void_p
    members: list[int]  # ranks of the job

    def me(self, rank: int) -> int:
        return self.members.index(rank)


def world_communicator(rank: int, ranks: int) -> Communicator:
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
    identifier = UniqueId()
    if rank == 0:
        check(NCCL.ncclGetUniqueId(ctypes.byref(identifier)), "ncclGetUniqueId")
        store.set("identifier", bytes(identifier))
    identifier = UniqueId.from_buffer_copy(store.get("identifier"))
    handle = ctypes.c_void_p()
    check(NCCL.ncclCommInitRank(ctypes.byref(handle), ranks, identifier, rank), "ncclCommInitRank")
    return Communicator(handle, list(range(ranks)))


def split(parent: Communicator, rank: int, draw: random.Random) -> Communicator | None:
    """A part of the parent with its members in any order; None where this rank has no part."""
    colors = [draw.choice([-1, 0, 1]) for _ in parent.members]
    keys = [draw.randrange(3) for _ in parent.members]
    me = parent.me(rank)
    handle = ctypes.c_void_p()
    check(
        NCCL.ncclCommSplit(parent.handle, colors[me], keys[me], ctypes.byref(handle), None),
        "ncclCommSplit",
    )
    if colors[me] == -1:
        assert not handle.value
        return None
    chosen = [i for i in range(len(parent.members)) if colors[i] == colors[me]]
    chosen.sort(key=lambda i: (keys[i], i))
    made = Communicator(handle, [parent.members[i] for i in chosen])
    count, position = ctypes.c_int(), ctypes.c_int()
    NCCL.ncclCommCount(handle, ctypes.byref(count))
    NCCL.ncclCommUserRank(handle, ctypes.byref(position))
    assert (count.value, position.value) == (len(made.members), made.me(rank))
    return made


def values_of(case: int, rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank contributes: numbers that leave room for sums and products of eight."""
    generator = np.random.default_rng([case, rank])
    if dtype.is_floating_point:
        return torch.from_numpy(generator.choice([0.5, 0.75, 1.0, 1.25, -1.0, 1.5], count)).to(dtype)
    low = -3 if dtype.is_signed else 0
    return torch.from_numpy(generator.integers(low, 4, count)).to(dtype)


def reduce_all(parts: Sequence[torch.Tensor], operator: int, dtype: torch.dtype) -> torch.Tensor:
    """The reduction in double precision or whole numbers, rounded once."""
    wide = torch.stack([part.to(torch.float64 if dtype.is_floating_point else torch.int64) for part in parts])
    if operator in (SUM, PREMULSUM):
        result = wide.sum(0)
    elif operator == PRODUCT:
        result = wide.prod(0)
    elif operator == MAXIMUM:
        result = wide.amax(0)
    elif operator == MINIMUM:
        result = wide.amin(0)
    elif dtype.is_floating_point:
        result = wide.mean(0)
    else:
        result = torch.div(wide.sum(0), len(parts), rounding_mode="trunc")
    return result.to(dtype)


@dataclass
class Posted:
    """An operation of this rank: where its result will be, and what it is to be."""

    what: str
    received: torch.Tensor
    expected: torch.Tensor

    def problem(self) -> str | None:
        received, expected = self.received.cpu(), self.expected
        if expected.dtype.is_floating_point:
            tolerance = 2 * torch.finfo(expected.dtype).eps
            same = torch.allclose(received.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            same = bool(torch.equal(received.to(torch.int64), expected.to(torch.int64)))
        return None if same else f"{self.what}: received {received.tolist()}, expected {expected.tolist()}"


class Program:
    """One random program, as this rank runs it."""

    def __init__(self, seed: int, rank: int, world: Communicator, streams: list[torch.cuda.Stream]) -> None:
        self.draw = random.Random(seed)
        self.seed = seed
        self.rank = rank
        self.world = world
        self.streams = streams
        self.posted: list[Posted] = []
        self.calls: list[Callable[[], None]] = []
        self.kept: list[object] = []  # buffers and scalars that the calls still need
        self.case = seed * 1000

    def run(self) -> list[str]:
        parts = [split(self.world, self.rank, self.draw) for _ in range(self.draw.randrange(3))]
        for _ in range(self.draw.randrange(5, 25)):
            communicator = self.draw.choice([self.world, *parts])
            # Everybody draws the same numbers, whether or not they take part.
            shape = self._draw_shape()
            if communicator is not None:
                self._prepare(communicator, *shape)
            else:
                self.calls.append(lambda: None)
        groups = [self.draw.random() < 0.3 for _ in self.calls]
        torch.cuda.synchronize()  # the inputs are there
        open_group = False
        for call, in_group in zip(self.calls, groups, strict=True):
            if in_group and not open_group:
                check(NCCL.ncclGroupStart(), "ncclGroupStart")
            elif open_group and not in_group:
                check(NCCL.ncclGroupEnd(), "ncclGroupEnd")
            open_group = in_group
            call()
        if open_group:
            check(NCCL.ncclGroupEnd(), "ncclGroupEnd")
        torch.cuda.synchronize()
        problems = [problem for posted in self.posted if (problem := posted.problem())]
        for part in parts:
            if part is not None:
                check(NCCL.ncclCommDestroy(part.handle), "ncclCommDestroy")
        return problems

    def _draw_shape(self) -> tuple[str, int, torch.dtype, int, int, float, bool, torch.cuda.Stream, float, int]:
        draw = self.draw
        call = draw.choice(
            [
                *("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "all_to_all", "gather"),
                *("scatter", "messages"),
            ]
        )
        number, dtype = draw.choice(TYPES)
        self.case += 1
        return (
            *(call, number, dtype, draw.randrange(6), draw.choice([0, 1, 2, 7, 33]), draw.random()),
            *(draw.random() < 0.5, draw.choice(self.streams), draw.choice([0.5, 2.0, 1.0]), draw.randrange(1 << 30)),
        )

    def _prepare(
        self,
        communicator: Communicator,
        call: str,
        number: int,
        dtype: torch.dtype,
        operator: int,
        count: int,
        root_at: float,
        in_place: bool,
        stream: torch.cuda.Stream,
        scalar: float,
        message_seed: int,
    ) -> None:
        size, me = len(communicator.members), communicator.me(self.rank)
        root = int(root_at * size)
        if call == "messages":
            self._prepare_messages(communicator, number, dtype, count, stream, message_seed)
            return
        sends = {"reduce_scatter": size, "all_to_all": size, "scatter": size}
        receives = {"all_gather": size, "all_to_all": size, "gather": size}
        send_count, receive_count = count * sends.get(call, 1), count * receives.get(call, 1)
        inputs = [values_of(self.case, member, send_count, dtype) for member in communicator.members]
        handle, queue = communicator.handle, ctypes.c_void_p(stream.cuda_stream)

        reduces = call in ("all_reduce", "reduce", "reduce_scatter")
        scaled = inputs
        if reduces and operator == PREMULSUM:
            if not dtype.is_floating_point:
                scalar = 2
            scaled = [(part.double() * scalar).to(dtype) for part in inputs]
        own = slice(me * count, (me + 1) * count)
        results: dict[str, Callable[[], torch.Tensor]] = {
            "all_reduce": lambda: reduce_all(scaled, operator, dtype),
            "reduce": lambda: reduce_all(scaled, operator, dtype),
            "reduce_scatter": lambda: reduce_all([part[own] for part in scaled], operator, dtype),
            "broadcast": lambda: inputs[root],
            "all_gather": lambda: torch.cat(inputs),
            "all_to_all": lambda: torch.cat([part[own] for part in inputs]),
            "gather": lambda: torch.cat(inputs),
            "scatter": lambda: inputs[root][own],
        }
        send = inputs[me].cuda()
        receive = torch.zeros(receive_count, dtype=torch.float32).to(dtype).cuda()
        if in_place and call in ("all_reduce", "broadcast", "reduce"):
            receive = send
        self.kept += [send, receive]

        def post() -> None:
            chosen = ctypes.c_int(operator)
            if reduces and operator == PREMULSUM:
                factor = torch.tensor([scalar]).to(dtype)
                self.kept.append(factor)
                made = NCCL.ncclRedOpCreatePreMulSum(
                    ctypes.byref(chosen), ctypes.c_void_p(factor.data_ptr()), number, 1, handle
                )
                check(made, "ncclRedOpCreatePreMulSum")
            source, target = ctypes.c_void_p(send.data_ptr()), ctypes.c_void_p(receive.data_ptr())
            elements = ctypes.c_size_t(count)
            arguments: dict[str, tuple[str, tuple[object, ...]]] = {
                "all_reduce": ("ncclAllReduce", (number, chosen)),
                "reduce": ("ncclReduce", (number, chosen, root)),
                "reduce_scatter": ("ncclReduceScatter", (number, chosen)),
                "broadcast": ("ncclBroadcast", (number, root)),
                "all_gather": ("ncclAllGather", (number,)),
                "all_to_all": ("ncclAlltoAll", (number,)),
                "gather": ("ncclGather", (number, root)),
                "scatter": ("ncclScatter", (number, root)),
            }
            function, details = arguments[call]
            check(getattr(NCCL, function)(source, target, elements, *details, handle, queue), function)
            if reduces and operator == PREMULSUM:
                check(NCCL.ncclRedOpDestroy(chosen, handle), "ncclRedOpDestroy")

        self.calls.append(post)
        if call not in ("reduce", "gather") or me == root:
            what = (
                f"seed {self.seed} {call} of {count} {dtype}, operator {operator}, root {root}, {communicator.members}"
            )
            self.posted.append(Posted(what, receive, results[call]()))

    def _prepare_messages(
        self,
        communicator: Communicator,
        number: int,
        dtype: torch.dtype,
        count: int,
        stream: torch.cuda.Stream,
        seed: int,
    ) -> None:
        """Every member sends a few messages, to others or to itself, all in one group."""
        draw = random.Random(seed)
        size, me = len(communicator.members), communicator.me(self.rank)
        messages = [(draw.randrange(size), draw.randrange(size)) for _ in range(draw.randrange(1, 2 * size + 1))]
        queue = ctypes.c_void_p(stream.cuda_stream)
        calls: list[tuple[str, torch.Tensor, int]] = []
        for position, (sender, receiver) in enumerate(messages):
            content = values_of(self.case, 100 + position, count, dtype)
            if sender == me:
                calls.append(("ncclSend", content.cuda(), receiver))
            if receiver == me:
                target = torch.zeros(count, dtype=torch.float32).to(dtype).cuda()
                calls.append(("ncclRecv", target, sender))
                what = f"seed {self.seed} message {position} from {sender} of {communicator.members}"
                self.posted.append(Posted(what, target, content))
        self.kept += calls

        def post() -> None:
            check(NCCL.ncclGroupStart(), "ncclGroupStart")
            for function, buffer, peer in calls:
                address = ctypes.c_void_p(buffer.data_ptr())
                elements = ctypes.c_size_t(count)
                result = getattr(NCCL, function)(address, elements, number, peer, communicator.handle, queue)
                check(result, function)
            check(NCCL.ncclGroupEnd(), "ncclGroupEnd")

        self.calls.append(post)


def main() -> None:
    first_seed, programs = map(int, sys.argv[1:])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    world = world_communicator(rank, ranks)
    for seed in range(first_seed, first_seed + programs):
        program = Program(seed, rank, world, streams)
        problems = program.run()
        if problems:
            print(f"rank {rank}: " + "\n".join(problems), flush=True)
            sys.exit(1)
        if rank == 0:
            print(f"seed {seed}: {len(program.posted)} operations", flush=True)
    check(NCCL.ncclCommDestroy(world.handle), "ncclCommDestroy")


if __name__ == "__main__":
    main()
