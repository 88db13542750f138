"""Registers the stand-in collectives with torch's dispatcher.

Every collective on a CPU tensor, from Python or C++, is an operator of torch's library `c10d` (c10d::allreduce_), whose
CPU kernel calls the group's backend for the CPU. In a job with absent ranks, kernels of this module take their place.

In: calls of these operators. Out: results in the tensors, and torch's Work objects. A call that need not wait completes
at once; otherwise a thread completes it, so that a program may start several and wait for them in any order.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d

from rank_runtime.absent_members.stand_in_collectives import Finish, StandInCollectives
from rank_runtime.absent_members.store_exchange import StoreExchange

Arguments = Mapping[str, Any]

c10d: Any = _distributed_c10d

_NO_PEERS = (
    "In a job with absent ranks (--represent), Gloo groups work on dense CPU tensors only: use NCCL for CUDA tensors, "
    "or run the job with --represent all."
)

_groups: dict[str, StandIn] = {}  # by torch's name of the group
_libraries: list[Any] = []  # a registration lasts as long as its library
_works: deque[Any] = deque(maxlen=4096)  # torch keeps no reference to the Python part of a Work


class StandIn:
    """The Gloo backend of one group."""

    def __init__(self, exchange: StoreExchange) -> None:
        self.exchange = exchange
        self.collectives = StandInCollectives(exchange)

    def completes_at_once(self) -> bool:
        """Whether no call of the group waits for another rank."""
        return self.exchange.is_alone and not self.exchange.known.may_have_siblings(self.exchange.group)


def add_group(name: str, stand_in: StandIn) -> None:
    """Use the stand-in for all CPU tensors of a group."""
    if not _libraries:
        _register()
    _groups[name] = stand_in


def _register() -> None:
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that a kernel is replaced
        for name, call in _CALLS.items():
            packet = getattr(torch.ops.c10d, name, None)
            if packet is not None:  # older versions of torch lack some
                library.impl(name, _kernel(packet.default._schema, call), "CPU", allow_override=True)


def _kernel(schema: Any, call: Callable[[StandIn, Arguments], Finish | Any]) -> Callable[..., Any]:
    names = [argument.name for argument in schema.arguments]
    returns = len(schema.returns)

    def kernel(*given: Any, **named: Any) -> Any:
        arguments = {**dict(zip(names, given, strict=False)), **named}
        stand_in = _stand_in(arguments["process_group"], schema.name)
        with _unobserved():
            finish = call(stand_in, arguments)
            if returns == 0:
                finish()
                return None
            if isinstance(finish, c10d.Work):
                work = finish
            else:
                work = _work(stand_in, finish, _tensors_of(given[0]), arguments.get("async_op", True))
        return (given[0], work.boxed()) if returns == 2 else work.boxed()

    return kernel


def _stand_in(boxed: Any, operator: str) -> StandIn:
    group = c10d.ProcessGroup.unbox(boxed)
    found = _groups.get(group.group_name)
    if found is None:
        raise RuntimeError(
            f"{operator} on a CPU tensor: process group {group.group_name} has no Gloo backend. In a job with absent "
            "ranks (--represent), only Gloo works on CPU tensors."
        )
    return found


@contextmanager
def _unobserved() -> Iterator[None]:
    """Keep the ops of the stand-in out of the trace and the clock: Gloo has none."""
    torch.autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch.autograd._enable_record_function(True)


def _work(stand_in: StandIn, finish: Finish, tensors: list[Any], is_async: bool) -> Any:
    """Complete a call now or in a thread, and give the program a Work for it."""
    begun: Any = torch.futures.Future()

    def complete(_: Any) -> list[Any]:
        with _unobserved():
            finish()
        return tensors

    if not is_async or stand_in.completes_at_once():
        finish()  # an exception goes to the caller
        begun.set_result(tensors)
        return c10d._create_work_from_future(begun)
    work = c10d._create_work_from_future(begun.then(complete))  # an exception becomes the Work's
    threading.Thread(target=begun.set_result, args=(None,), name="maya-gloo", daemon=True).start()
    return work


class StoreWithoutPeers(c10d.Store):  # type: ignore[misc]
    """The store of a Gloo backend whose collectives never get to it: all but those on CPU tensors."""

    def set(self, key: str, value: Any) -> None:
        """The address of this member."""

    def set_timeout(self, timeout: timedelta) -> None:
        pass

    def clone(self) -> StoreWithoutPeers:
        return self

    def get(self, key: str) -> bytes:
        raise RuntimeError(_NO_PEERS)

    def wait(self, *_: Any) -> None:
        raise RuntimeError(_NO_PEERS)


class _AnySourceWork(c10d.Work):  # type: ignore[misc]
    """A recv from any member, which knows its sender afterwards."""

    def __init__(self, receive: Callable[[], int]) -> None:
        super().__init__()
        self._receive = receive
        self._sender: int | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._sender is None:
            with _unobserved():
                self._sender = self._receive()
        return True

    def is_completed(self) -> bool:
        return self._sender is not None

    def source_rank(self) -> int:
        self.wait()
        assert self._sender is not None
        return self._sender

    _source_rank = source_rank


def _receive_any(stand_in: StandIn, arguments: Arguments) -> Any:
    tensor, tag = arguments["tensors"][0], arguments["tag"]
    work = _AnySourceWork(lambda: stand_in.collectives.recv_any_source(tensor, tag))
    _works.append(work)
    return work


# ---- operators ----


def _operation(arguments: Arguments) -> int:
    return int(arguments["reduce_op"].op())


def _parts(tensor: Any, count: int) -> list[Any]:
    """One part of a tensor for each member."""
    flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.contiguous().view(-1)
    return list(flat.chunk(count)) if flat.numel() else [flat] * count


def _writable_parts(tensor: Any, count: int) -> list[Any]:
    return list(tensor.view(-1).chunk(count)) if tensor.numel() else [tensor.view(-1)] * count


def _split(tensor: Any, sizes: Sequence[int], count: int) -> list[Any]:
    """The rows of a tensor for each member; without sizes, as many for each."""
    if not sizes:
        if tensor.shape[0] % count:
            raise ValueError("Tensor's dim 0 does not divide equally across group size")  # Gloo's text
        sizes = [tensor.shape[0] // count] * count
    return list(tensor.split(list(sizes)))


def _size(stand_in: StandIn) -> int:
    return len(stand_in.exchange.group.members)


def _all_gather_base(stand_in: StandIn, arguments: Arguments) -> Finish:
    output, given = arguments["output_tensor"], arguments["input_tensor"]
    return stand_in.collectives.all_gather([_writable_parts(output, _size(stand_in))], [given])


def _all_gather_into_tensors(stand_in: StandIn, arguments: Arguments) -> Finish:
    outputs = [_writable_parts(output, _size(stand_in)) for output in arguments["outputs"]]
    return stand_in.collectives.all_gather(outputs, arguments["inputs"])


def _reduce_scatter_base(stand_in: StandIn, arguments: Arguments) -> Finish:
    parts = _parts(arguments["input_tensor"], _size(stand_in))
    return stand_in.collectives.reduce_scatter([arguments["output_tensor"]], [parts], _operation(arguments))


def _reduce_scatter_tensors(stand_in: StandIn, arguments: Arguments) -> Finish:
    inputs = [_parts(each, _size(stand_in)) for each in arguments["inputs"]]
    return stand_in.collectives.reduce_scatter(arguments["outputs"], inputs, _operation(arguments))


def _all_to_all_base(stand_in: StandIn, arguments: Arguments) -> Finish:
    count = _size(stand_in)
    outputs = _split(arguments["output"], arguments["output_split_sizes"], count)
    return stand_in.collectives.all_to_all(outputs, _split(arguments["input"], arguments["input_split_sizes"], count))


def _gather(stand_in: StandIn, arguments: Arguments) -> Finish:
    outputs = arguments["output_tensors"]
    return stand_in.collectives.gather(
        outputs[0] if outputs else [], arguments["input_tensors"][0], arguments["root_rank"]
    )


def _scatter(stand_in: StandIn, arguments: Arguments) -> Finish:
    inputs = arguments["input_tensors"]
    return stand_in.collectives.scatter(
        arguments["output_tensors"][0], inputs[0] if inputs else [], arguments["root_rank"]
    )


def _monitored_barrier(stand_in: StandIn, arguments: Arguments) -> Finish:
    milliseconds = arguments["timeout"]
    timeout = timedelta(milliseconds=milliseconds) if milliseconds > 0 else None
    return lambda: stand_in.collectives.monitored_barrier(timeout, arguments["wait_all_ranks"])


_CALLS: dict[str, Callable[[StandIn, Arguments], Finish | Any]] = {
    "allreduce_": lambda group, given: group.collectives.all_reduce(given["tensors"], _operation(given)),
    "allreduce_coalesced_": lambda group, given: group.collectives.all_reduce(given["tensors"], _operation(given)),
    "reduce_": lambda group, given: group.collectives.reduce(given["tensors"], _operation(given), given["root_rank"]),
    "broadcast_": lambda group, given: group.collectives.broadcast(given["tensors"], given["root_rank"]),
    "allgather_": lambda group, given: group.collectives.all_gather(given["output_tensors"], given["input_tensors"]),
    "allgather_coalesced_": lambda group, given: group.collectives.all_gather(
        _by_input(given["output_lists"]), given["input_list"]
    ),
    "_allgather_base_": _all_gather_base,
    "allgather_into_tensor_coalesced_": _all_gather_into_tensors,
    "reduce_scatter_": lambda group, given: group.collectives.reduce_scatter(
        given["output_tensors"], given["input_tensors"], _operation(given)
    ),
    "_reduce_scatter_base_": _reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_tensors,
    "gather_": _gather,
    "scatter_": _scatter,
    "alltoall_": lambda group, given: group.collectives.all_to_all(given["output_tensors"], given["input_tensors"]),
    "alltoall_base_": _all_to_all_base,
    "barrier": lambda group, given: group.collectives.barrier(),
    "monitored_barrier_": _monitored_barrier,
    "send": lambda group, given: group.collectives.send(given["tensors"][0], given["dst"], given["tag"]),
    "recv_": lambda group, given: group.collectives.recv(given["tensors"][0], given["src"], given["tag"]),
    "recv_any_source_": _receive_any,
}


def _by_input(lists: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """allgather_coalesced has one list for each member; here there is one for each input."""
    return [list(parts) for parts in zip(*lists, strict=True)]


def _tensors_of(value: Any) -> list[Any]:
    """All tensors of a nested list."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in _tensors_of(each)]
