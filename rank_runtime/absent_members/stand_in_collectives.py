"""The collectives of a Gloo group that has absent members, on CPU tensors.

In: the tensors of a call. Out: a function that waits for the other present members and writes the results; the call
itself has given this member's contribution (store_exchange.py). Values are Gloo's: an absent member contributes what
its stand-in contributes (known_groups.py). If the sender or root is absent, its sibling's values count; without one,
the values are zeros, and the summary says so.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from rank_runtime.absent_members.store_exchange import ExchangeError, StoreExchange, others

Tensor = Any
Finish = Callable[[], None]

SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)  # torch's ReduceOp.RedOpType
_NAMES = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
_POLL_SECONDS = 0.01
_TYPES = frozenset(
    {
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
    }
)


class StandInCollectives:
    """The collectives of one group."""

    def __init__(self, exchange: StoreExchange) -> None:
        self._exchange = exchange
        self._group = exchange.group
        self._place = exchange.place
        self._others = others(exchange.group, exchange.place)

    # ---- all contribute ----

    def all_reduce(self, tensors: Sequence[Tensor], operation: int) -> Finish:
        signature = _signature(f"all_reduce({_NAMES[operation]})", tensors)
        collect = self._gather_from_all(signature, tensors)

        def finish() -> None:
            _write(tensors, self._reduced(collect(), operation))

        return finish

    def reduce(self, tensors: Sequence[Tensor], operation: int, root: int) -> Finish:
        signature = _signature(f"reduce({_NAMES[operation]}, to {self._rank(root)})", tensors)
        collect = self._gather_to(root, signature, tensors)

        def finish() -> None:
            if self._place == root:
                _write(tensors, self._reduced(collect(), operation))

        return finish

    def all_gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> Finish:
        """`outputs`: for each input, one tensor for each member."""
        collect = self._gather_from_all(_signature("all_gather", inputs), inputs)

        def finish() -> None:
            contributions = collect()
            for at, parts in enumerate(outputs):
                self._check_parts(parts)
                _write(parts, [contributions[place][at] for place in self._group.stand_ins])

        return finish

    def gather(self, outputs: Sequence[Tensor], given: Tensor, root: int) -> Finish:
        collect = self._gather_to(root, _signature(f"gather(to {self._rank(root)})", [given]), [given])

        def finish() -> None:
            if self._place == root:
                contributions = collect()
                self._check_parts(outputs)
                _write(outputs, [contributions[place][0] for place in self._group.stand_ins])

        return finish

    def reduce_scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], operation: int) -> Finish:
        """`inputs`: for each output, one tensor for each member."""
        for parts in inputs:
            self._check_parts(parts)
        flat = [tensor for parts in inputs for tensor in parts]
        signature = _signature(f"reduce_scatter({_NAMES[operation]})", flat)
        call = self._exchange.next_call()
        size = len(self._group.members)
        mine = _snapshot(flat)
        for to in self._others:  # each member needs only its own part
            self._exchange.contribute(call, signature, _bytes([mine[at * size + to] for at in range(len(inputs))]), to)

        def finish() -> None:
            own = [mine[at * size + self._place] for at in range(len(inputs))]
            contributions = {self._place: own}
            for place in self._others:
                contributions[place] = _tensors(self._exchange.collect_part(call, signature, place), own)
            _write(outputs, self._reduced(contributions, operation))

        return finish

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Finish:
        """One tensor for and from each member; they may have different sizes."""
        self._check_parts(inputs)
        self._check_parts(outputs)
        signature = f"all_to_all {_type(inputs)}"
        call = self._exchange.next_call()
        mine = _snapshot(inputs)
        for to in self._others:
            self._exchange.contribute(call, signature, _bytes([mine[to]]), to)

        def finish() -> None:
            received = {self._place: mine[self._place].reshape(-1)}
            for place in self._others:
                data = self._exchange.collect_part(call, signature, place)
                received[place] = _flat(data, mine[0].dtype)
            for place, output in enumerate(outputs):
                self._write_part(output, received[self._group.stand_ins[place]], place)

        return finish

    def barrier(self) -> Finish:
        collect = self._gather_from_all("barrier", [])

        def finish() -> None:
            collect()

        return finish

    def monitored_barrier(self, timeout: timedelta | None, wait_all: bool) -> None:
        """Blocks. A member that does not come is named, as by Gloo."""
        limit = timeout or self._exchange.timeout
        call = self._exchange.next_call()
        self._exchange.contribute(call, "monitored_barrier", b"")
        readers = len(self._others)
        late: list[int] = []
        deadline = time.monotonic() + limit.total_seconds()
        for place in self._others:
            left = timedelta(seconds=max(deadline - time.monotonic(), 0.001))
            try:
                self._exchange.collect(call, "monitored_barrier", [place], readers=readers, timeout=left)
            except ExchangeError as error:
                if "does not match" in str(error):
                    raise
                late.append(self._rank(place))
                if not wait_all:
                    break
        if late:
            ranks = ", ".join(map(str, late))
            raise RuntimeError(
                f"[Rank {self._rank(self._place)}]: Rank{'s' * (len(late) > 1)} {ranks} failed to pass "
                f"monitoredBarrier in {round(limit.total_seconds() * 1000)} ms"
            )

    # ---- from a root ----

    def broadcast(self, tensors: Sequence[Tensor], root: int) -> Finish:
        signature = _signature(f"broadcast(from {self._place_text(root)})", tensors)
        call = self._exchange.next_call()
        if self._place == root:
            payload = _bytes(tensors)
            if self._others:
                self._exchange.contribute(call, signature, payload)
            self._exchange.give_siblings(f"all/{call}", signature, payload, None)
            return _nothing

        def finish() -> None:
            payload: bytes | None
            if self._group.is_present(root):
                payload = self._exchange.collect(call, signature, [root], readers=len(self._others))[root]
            else:
                payload = self._from_sibling(root, f"all/{call}", signature, None, "broadcast")
            _write(tensors, _tensors(payload, tensors) if payload is not None else _zeros(tensors))

        return finish

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> Finish:
        signature = _signature(f"scatter(from {self._place_text(root)})", [output])
        call = self._exchange.next_call()
        if self._place == root:
            self._check_parts(inputs)
            for to in self._others:
                self._exchange.contribute(call, signature, _bytes([inputs[to]]), to)
            self._exchange.give_siblings(f"all/{call}", signature, _bytes(inputs), None)
            mine = _snapshot([inputs[self._place]])
            return lambda: _write([output], mine)

        def finish() -> None:
            if self._group.is_present(root):
                _write([output], _tensors(self._exchange.collect_part(call, signature, root), [output]))
                return
            payload = self._from_sibling(root, f"all/{call}", signature, None, "scatter")
            if payload is None:
                _write([output], _zeros([output]))
                return
            size = output.numel() * output.element_size()
            _write([output], _tensors(payload[self._place * size : (self._place + 1) * size], [output]))

        return finish

    # ---- send/recv ----

    def send(self, tensor: Tensor, to: int, tag: int) -> Finish:
        self._exchange.send(_signature("send/recv", [tensor]), _bytes([tensor]), to, tag)
        return _nothing

    def recv(self, tensor: Tensor, sender: int, tag: int) -> Finish:
        signature = _signature("send/recv", [tensor])
        number = self._exchange.reserve_receive(sender, tag)

        def finish() -> None:
            payload: bytes | None
            if self._group.is_present(sender):
                payload = self._exchange.receive(signature, sender, tag, number)
            else:
                what = f"{self._place}/{tag}/{number}"
                payload = self._from_sibling(sender, what, signature, self._place, "recv")
            _write([tensor], _tensors(payload, [tensor]) if payload is not None else _zeros([tensor]))

        return finish

    def recv_any_source(self, tensor: Tensor, tag: int) -> int:
        """Blocks; the place of the sender. Absent members are assumed to send only if no other member is present."""
        signature = _signature("send/recv", [tensor])
        deadline = time.monotonic() + self._exchange.timeout.total_seconds()
        while self._others:
            for sender in self._others:
                payload = self._exchange.receive_if_sent(signature, sender, tag)
                if payload is not None:
                    _write([tensor], _tensors(payload, [tensor]))
                    return sender
            if time.monotonic() >= deadline:
                raise ExchangeError(f"recv on Gloo group {self._group.name}: no rank has sent anything")
            time.sleep(_POLL_SECONDS)
        sender = next(place for place in range(len(self._group.members)) if place != self._place)
        self.recv(tensor, sender, tag)()
        return sender

    # ---- parts ----

    def _gather_from_all(self, signature: str, tensors: Sequence[Tensor]) -> Callable[[], dict[int, list[Tensor]]]:
        call = self._exchange.next_call()
        mine = _snapshot(tensors)
        self._exchange.contribute(call, signature, _bytes(mine))

        def collect() -> dict[int, list[Tensor]]:
            found = self._exchange.collect(call, signature, self._others, readers=len(self._others))
            return {self._place: mine, **{place: _tensors(data, mine) for place, data in found.items()}}

        return collect

    def _gather_to(self, root: int, signature: str, tensors: Sequence[Tensor]) -> Callable[[], dict[int, list[Tensor]]]:
        """As `_gather_from_all`, for one member; nobody reads what goes to an absent one."""
        call = self._exchange.next_call()
        mine = _snapshot(tensors)
        if self._place != root and self._group.is_present(root):
            self._exchange.contribute(call, signature, _bytes(mine))

        def collect() -> dict[int, list[Tensor]]:
            found = self._exchange.collect(call, signature, self._others, readers=1)
            return {self._place: mine, **{place: _tensors(data, mine) for place, data in found.items()}}

        return collect

    def _reduced(self, contributions: dict[int, list[Tensor]], operation: int) -> list[Tensor]:
        """The reduction over all members: each contribution counts for the members that it stands for."""
        shares = self._group.shares
        results: list[Tensor] = []
        for parts in zip(*(_weighted(contributions[place], operation, shares[place]) for place in shares), strict=True):
            total = parts[0]
            for part in parts[1:]:
                total = _combined(total, part, operation)
            results.append(total.div_(len(self._group.members)) if operation == AVG else total)
        return results

    def _from_sibling(self, sender: int, what: str, signature: str, to: int | None, call: str) -> bytes | None:
        payload = self._exchange.take_from_sibling(sender, what, signature, to)
        if payload is None:
            self._exchange.assume(f"zeros: {call} from rank {self._rank(sender)} (Gloo group {self._group.name})")
        return payload

    def _write_part(self, output: Tensor, flat: Tensor, place: int) -> None:
        """Write what a member sends; a stand-in's part may have another size than the absent member's."""
        count = output.numel()
        if flat.numel() < count and not self._group.is_present(place):
            flat = torch.cat([flat, torch.zeros(count - flat.numel(), dtype=flat.dtype)])
        elif flat.numel() != count and self._group.is_present(place):
            raise ExchangeError(
                f"all_to_all on Gloo group {self._group.name}: rank {self._rank(place)} sends {flat.numel()} elements, "
                f"rank {self._rank(self._place)} expects {count}"
            )
        output.copy_(flat[:count].reshape(output.shape))

    def _check_parts(self, parts: Sequence[Tensor]) -> None:
        if len(parts) != len(self._group.members):
            raise ValueError(f"{len(parts)} tensors for {len(self._group.members)} members of the group")

    def _rank(self, place: int) -> int:
        return self._group.members[place] if 0 <= place < len(self._group.members) else place

    def _place_text(self, place: int) -> str:
        """A place, because siblings have other ranks in it."""
        if not 0 <= place < len(self._group.members):
            raise ValueError(f"there is no rank {place} in a group of {len(self._group.members)}")
        return f"member {place}"


def _nothing() -> None:
    pass


# ---- tensors and bytes ----


def _signature(call: str, tensors: Sequence[Tensor]) -> str:
    return f"{call} of {'+'.join(str(tensor.numel()) for tensor in tensors)} {_type(tensors)}"


def _type(tensors: Sequence[Tensor]) -> str:
    for tensor in tensors:
        if tensor.dtype not in _TYPES:
            raise RuntimeError("Invalid scalar type")  # Gloo's text
    return str(tensors[0].dtype).removeprefix("torch.") if tensors else "nothing"


def _snapshot(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]


def _bytes(tensors: Sequence[Tensor]) -> bytes:
    contiguous = [tensor.detach().contiguous() for tensor in tensors]
    return b"".join(ctypes.string_at(each.data_ptr(), each.numel() * each.element_size()) for each in contiguous)


def _flat(data: bytes, dtype: Any) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _tensors(data: bytes, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of a contribution that has the shapes of `like`."""
    found: list[Tensor] = []
    first = 0
    for tensor in like:
        last = first + tensor.numel() * tensor.element_size()
        found.append(_flat(data[first:last], tensor.dtype).reshape(tensor.shape))
        first = last
    return found


def _zeros(like: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in like]


def _write(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().copy_(value.reshape(tensor.shape))


# ---- reductions ----


def _weighted(tensors: Sequence[Tensor], operation: int, members: int) -> list[Tensor]:
    """The reduction of as many equal contributions."""
    if operation == PREMUL_SUM:
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    if operation in (BAND, BOR, BXOR) and any(each.is_floating_point() or each.is_complex() for each in tensors):
        raise RuntimeError(f"Cannot use ReduceOp.{_NAMES[operation].upper()} with non-integral dtype")
    if members == 1 or operation in (MIN, MAX, BAND, BOR):
        return [tensor.clone() for tensor in tensors]
    if operation == BXOR:
        return [tensor.clone() if members % 2 else torch.zeros_like(tensor) for tensor in tensors]
    if operation == PRODUCT:
        return [tensor.clone() if tensor.dtype is torch.bool else tensor**members for tensor in tensors]
    return [tensor.clone() if tensor.dtype is torch.bool else tensor * members for tensor in tensors]


def _combined(one: Tensor, other: Tensor, operation: int) -> Tensor:
    if operation in (SUM, AVG):
        return one | other if one.dtype is torch.bool else one.add_(other)
    if operation == PRODUCT:
        return one & other if one.dtype is torch.bool else one.mul_(other)
    if operation == MIN:
        return torch.minimum(one, other)
    if operation == MAX:
        return torch.maximum(one, other)
    if operation == BAND:
        return one & other
    return one | other if operation == BOR else one ^ other
