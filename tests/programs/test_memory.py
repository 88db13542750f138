"""Memory: PyTorch's own allocator behaves on the virtual device as on a real one, to the byte."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun, ScriptRun

from maya.trace import RecordKind, read

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# Size and context are no round numbers, so that every rounding shows.
MEMORY, CONTEXT = 3 * GIB + 5 * MIB, 300 * MIB + 64 * KIB


@pytest.fixture(scope="module")
def small_gpu(tmp_path_factory: pytest.TempPathFactory) -> str:
    device = tmp_path_factory.mktemp("gpu") / "small.toml"
    device.write_text(f'based_on = "h100"\nname = "Small"\nmemory = "{MEMORY}B"\ncontext = "{CONTEXT}B"\n')
    return str(device)


class CachingAllocator:
    """The rules of PyTorch's caching allocator, for one stream and its default settings.

    A request is rounded to 512 bytes. Up to 1 MiB it comes from segments of 2 MiB, below 10 MiB from segments of
    20 MiB, else from a segment of its own, a multiple of 2 MiB. The smallest free block that fits is taken (which of
    several is not a rule, it differs between releases) and split if what is left is worth keeping: any of it in the
    small segments, more than 1 MiB in the large. A block that is freed joins its free neighbours in its segment.
    """

    SMALL = 1 * MIB

    def __init__(self, new_segment: Callable[[int], int]) -> None:
        self._new_segment = new_segment  # bytes -> address
        self._sizes: dict[int, int] = {}  # of all blocks, by address
        self._free: set[int] = set()
        self._segment_of: dict[int, int] = {}  # of all blocks
        self._address_of: dict[int, int] = {}  # of blocks in use, by number
        self.segments: dict[int, int] = {}  # address -> bytes
        self.allocated = self.peak_allocated = self.peak_reserved = 0

    @property
    def reserved(self) -> int:
        return sum(self.segments.values())

    def reset_peaks(self) -> None:
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def allocate(self, size: int, number: int, address: int) -> None:
        """PyTorch has chosen `address` for its block `number`: it must be one that the rules allow."""
        size = max(512, -(-size // 512) * 512)
        small = size <= self.SMALL
        assert address in (self._best_fits(size, small) or [self._grow(size)])
        self._address_of[number] = address
        self._free.remove(address)
        left = self._sizes[address] - size
        if left >= 512 if small else left > self.SMALL:
            self._sizes[address] = size
            self._add_free(address + size, left, self._segment_of[address])
        self.allocated += self._sizes[address]
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def _best_fits(self, size: int, small: bool) -> list[int]:
        fitting = [
            address
            for address in self._free
            if self._sizes[address] >= size and (self.segments[self._segment_of[address]] == 2 * MIB) == small
        ]
        smallest = min((self._sizes[address] for address in fitting), default=0)
        return [address for address in fitting if self._sizes[address] == smallest]

    def _grow(self, size: int) -> int:
        if size <= self.SMALL:
            segment_size = 2 * MIB
        elif size < 10 * MIB:
            segment_size = 20 * MIB
        else:
            segment_size = -(-size // (2 * MIB)) * 2 * MIB
        address = self._new_segment(segment_size)
        self.segments[address] = segment_size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._add_free(address, segment_size, address)
        return address

    def _add_free(self, address: int, size: int, segment: int) -> None:
        self._sizes[address], self._segment_of[address] = size, segment
        self._free.add(address)

    def free(self, number: int) -> None:
        address = self._address_of.pop(number)
        self.allocated -= self._sizes[address]
        self._free.add(address)
        after = address + self._sizes[address]
        before = next((free for free in self._free if free + self._sizes[free] == address), None)
        if after in self._free and self._segment_of[after] == self._segment_of[address]:
            self._join(address, after)
        if before is not None and self._segment_of[before] == self._segment_of[address]:
            self._join(before, address)

    def _join(self, left: int, right: int) -> None:
        self._sizes[left] += self._sizes.pop(right)
        self._free.remove(right)
        del self._segment_of[right]

    def release(self, segment: int) -> None:
        """The segment goes back to the device; it must be one free block."""
        assert self._sizes.pop(segment) == self.segments.pop(segment)
        self._free.remove(segment)
        del self._segment_of[segment]

    def snapshot(self) -> list[list[Any]]:
        """Segments as [address, bytes, [[bytes of a block, whether it is in use], ...]], by address."""
        return [
            [segment, size, [[self._sizes[at], at not in self._free] for at in self._blocks_of(segment)]]
            for segment, size in sorted(self.segments.items())
        ]

    def _blocks_of(self, segment: int) -> list[int]:
        return sorted(address for address, owner in self._segment_of.items() if owner == segment)


# Each mark is an annotation in the trace and a line of what torch says at that point; the last line is PyTorch's own
# history of the addresses that it handed out.
MARKS = textwrap.dedent(
    """
    import atexit, json
    import torch

    torch.cuda.memory._record_memory_history(context=None)

    @atexit.register
    def print_history():
        history = torch.cuda.memory._snapshot()["device_traces"][0]
        print(json.dumps([entry["addr"] for entry in history if entry["action"] == "alloc"]))

    def mark():
        with torch.profiler.record_function("mark"):
            pass
        segments = [
            [s["address"], s["total_size"], [[b["size"], b["state"] == "active_allocated"] for b in s["blocks"]]]
            for s in torch.cuda.memory_snapshot()
        ]
        print(json.dumps({
            "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(),
            "peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved(),
            "segments": sorted(segments), "free": torch.cuda.mem_get_info()[0],
        }))
        torch.cuda.reset_peak_memory_stats()
    """
)


def _replay(run: ScriptRun) -> tuple[list[dict[str, Any]], list[int]]:
    """Run the model over the blocks in a trace, and compare it with what torch said at every mark.

    Returns what it said, and the sizes of what was taken from the device by others than PyTorch's allocator.
    """
    assert run.exit_code == 0, run.output
    *said, addresses = map(json.loads, run.stdout.splitlines())
    trace = read(run.trace)
    taken: list[tuple[int, int]] = []  # from the device, and the model has not asked for it

    def new_segment(size: int) -> int:
        assert taken, "PyTorch did not take a segment where its rules need one"
        address, actual = taken.pop()
        assert actual == size
        assert address % (2 * MIB) == 0
        return address

    model = CachingAllocator(new_segment)
    marks, chosen = iter(said), iter(addresses)
    for record in trace.records:
        kind, value = int(record["kind"]), int(record["value"])
        if kind == RecordKind.MALLOC:
            taken.append((value, trace.signature(record["signature"])["bytes"]))
        elif kind == RecordKind.FREE:
            model.release(value)
        elif kind == RecordKind.BLOCK_ALLOC:
            model.allocate(trace.signature(record["signature"])["bytes"], value, next(chosen))
        elif kind == RecordKind.BLOCK_FREE:
            model.free(value)
        elif kind == RecordKind.ANNOTATION and trace.signature(record["signature"])["op"] == "mark":
            expected = next(marks)
            assert expected["segments"] == model.snapshot()
            for name in ("allocated", "reserved", "peak_allocated", "peak_reserved"):
                assert expected[name] == getattr(model, name), name
            assert expected["free"] == MEMORY - CONTEXT - model.reserved - sum(size for _, size in taken)
            model.reset_peaks()
    assert next(marks, None) is None
    assert next(chosen, None) is None
    return said, [size for _, size in taken]


def test_three_models_need_the_memory_of_the_allocators_rules(maya_run: MayaRun, small_gpu: str) -> None:
    run = maya_run(
        MARKS
        + textwrap.dedent(
            """
            from torch import nn

            class Sequence(nn.Module):
                '''A GPT's or an LSTM's frame: tokens in, tokens out.'''
                def __init__(self, body, hidden):
                    super().__init__()
                    self.embedding, self.body, self.head = nn.Embedding(3000, hidden), body, nn.Linear(hidden, 3000)

                def forward(self, tokens):
                    y = self.body(self.embedding(tokens))
                    return self.head(y[0] if isinstance(y, tuple) else y).flatten(0, 1)

            def train(model, data, targets, make_optimizer):
                model.cuda()
                optimizer = make_optimizer(model.parameters())
                mark()
                for _ in range(3):
                    loss = nn.functional.cross_entropy(model(data.cuda()), targets.cuda().flatten())
                    loss.backward()
                    mark()
                    optimizer.step()
                    optimizer.zero_grad()
                    mark()

            layers = [nn.TransformerEncoderLayer(200, 4, 800, batch_first=True, norm_first=True) for _ in range(3)]
            tokens = torch.randint(3000, (4, 100))
            train(Sequence(nn.Sequential(*layers), 200), tokens, tokens, torch.optim.AdamW)
            mark()
            convolutions = nn.Sequential(
                nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(40, 90, 3, bias=False),
                nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(810, 70),
            )
            momentum = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
            train(convolutions, torch.randn(9, 3, 70, 70), torch.randint(70, (9,)), momentum)
            torch.cuda.empty_cache()
            mark()
            train(Sequence(nn.LSTM(200, 300, num_layers=2, batch_first=True, proj_size=200), 200), tokens, tokens,
                  torch.optim.Adam)
            del convolutions, layers
            torch.cuda.empty_cache()
            mark()
            """
        ),
        "--gpu",
        small_gpu,
    )
    said, outside = _replay(run)
    assert outside == [32 * MIB, 32 * MIB], "cuBLAS's own workspaces, for the handles of two threads"
    assert len(said) == 3 * 7 + 3
    assert max(mark["peak_reserved"] for mark in said) > 100 * MIB


def test_sizes_at_every_edge_of_the_rules(maya_run: MayaRun, small_gpu: str) -> None:
    run = maya_run(
        MARKS
        + textwrap.dedent(
            """
            import random

            KIB, MIB = 1 << 10, 1 << 20
            edges = [1, 512, 513, 100 * KIB, MIB - 512, MIB, MIB + 1, 2 * MIB, 5 * MIB, 10 * MIB - 512, 10 * MIB,
                     10 * MIB + 1, 11 * MIB + 5, 19 * MIB, 20 * MIB, 33 * MIB + 7]
            kept = {}
            for size in edges:
                kept[size] = torch.empty(size, dtype=torch.uint8, device="cuda")
                mark()
            assert all(each.data_ptr() % 512 == 0 for each in kept.values())
            for size in edges[::2]:
                del kept[size]
            mark()
            chance = random.Random(1)
            held = []
            for number in range(400):
                if held and chance.random() < 0.5:
                    held.pop(chance.randrange(len(held)))
                else:
                    size = int(2 ** chance.uniform(0, 25.5))
                    held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                if number % 40 == 0:
                    torch.cuda.empty_cache()
                    mark()
            """
        ),
        "--gpu",
        small_gpu,
    )
    _, outside = _replay(run)
    assert outside == []


CAPACITY = Checks(
    """
    import sys, torch

    memory, context = map(int, sys.argv[1:])
    MIB = 1 << 20
    free = torch.cuda.mem_get_info()[0]
    most = free // (2 * MIB) * 2 * MIB

    def allocate(size, device="cuda"):
        return torch.empty(size, dtype=torch.uint8, device=device)

    def refusal(size):
        try:
            allocate(size)
        except torch.cuda.OutOfMemoryError as error:
            return str(error)
        raise AssertionError(f"{size} bytes were granted")

    def after_each():
        torch.cuda.empty_cache()

    def all_memory_but_the_context_is_free():
        assert torch.cuda.mem_get_info() == (memory - context, memory), torch.cuda.mem_get_info()
        assert torch.cuda.get_device_properties(0).total_memory == memory

    def one_byte_more_than_the_last_page_is_refused():
        message = refusal(most + 1)
        assert message.startswith("CUDA out of memory. Tried to allocate "), message

    def all_pages_can_be_allocated():
        everything = allocate(most)
        assert torch.cuda.mem_get_info()[0] == free - most

    def a_refusal_says_how_much_torch_has_allocated():
        everything = allocate(most)
        message = refusal(1)
        assert "Tried to allocate 2.00 MiB" in message, message
        assert f"{torch.cuda.memory_allocated() / (1 << 30):.2f} GiB is allocated by PyTorch" in message, message

    def cached_memory_is_given_back_before_a_request_is_refused():
        before = torch.cuda.memory_stats()
        pieces = [allocate(100 * MIB) for _ in range(most // (100 * MIB))]
        del pieces[::2]
        pieces.append(allocate(1100 * MIB))
        after = torch.cuda.memory_stats()
        assert after["num_alloc_retries"] > before["num_alloc_retries"]
        assert after["num_ooms"] == before["num_ooms"]

    def an_emptied_cache_leaves_all_memory_free():
        pieces = [allocate(100 * MIB) for _ in range(5)]
        del pieces
        torch.cuda.empty_cache()
        assert torch.cuda.mem_get_info()[0] == free and torch.cuda.memory_reserved() == 0

    def every_device_has_its_own_memory():
        other = allocate(most, "cuda:1")
        assert torch.cuda.mem_get_info(1)[0] == free - most and torch.cuda.mem_get_info(0)[0] == free

    def a_process_that_may_use_a_fraction_is_refused_more():
        torch.cuda.set_per_process_memory_fraction(0.25)
        allowed = int(memory * 0.25)
        message = refusal(allowed // (2 * MIB) * 2 * MIB + 2 * MIB)
        assert "allowed" in message, message
        allocate(allowed // (2 * MIB) * 2 * MIB)
    """
)

EXPANDABLE_SEGMENTS = Checks(
    """
    import torch

    MIB = 1 << 20
    free = torch.cuda.mem_get_info()[0]

    def allocate(size):
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    def after_each():
        torch.cuda.empty_cache()

    def pages_are_20_mib_in_the_large_pool_and_2_mib_in_the_small_one():
        large, small = allocate(30 * MIB), allocate(3)
        assert torch.cuda.memory_reserved() == 42 * MIB, torch.cuda.memory_reserved()
        assert torch.cuda.mem_get_info()[0] == free - 42 * MIB

    def segments_are_expandable_and_aligned_to_pages():
        large, small = allocate(30 * MIB), allocate(3)
        snapshot = torch.cuda.memory_snapshot()
        assert all(segment["is_expandable"] for segment in snapshot)
        assert all(segment["address"] % (2 * MIB) == 0 for segment in snapshot)

    def memory_freed_in_pieces_is_used_for_one_large_tensor():
        pieces = [allocate(100 * MIB) for _ in range(20)]
        reserved = torch.cuda.memory_reserved()
        del pieces
        whole = allocate(2000 * MIB)
        assert torch.cuda.memory_reserved() == reserved

    def values_survive_while_pages_are_unmapped_and_mapped_again():
        whole = allocate(2000 * MIB)
        known = torch.arange(1000).cuda()
        assert known.sum().item() == 499500
        del whole
        torch.cuda.empty_cache()
        fresh = allocate(500 * MIB)
        assert not fresh[: MIB].cpu().any()
        assert torch.equal(known.cpu(), torch.arange(1000))

    def more_than_the_device_has_is_refused():
        kept = allocate(30 * MIB)
        try:
            allocate(free)
        except torch.cuda.OutOfMemoryError as error:
            assert "CUDA out of memory" in str(error)
        else:
            raise AssertionError("more than there is")

    def an_emptied_cache_leaves_all_memory_free():
        pieces = [allocate(30 * MIB), allocate(3)]
        del pieces
        torch.cuda.empty_cache()
        assert torch.cuda.mem_get_info()[0] == free
    """
)

STREAM_ORDERED_ALLOCATOR = Checks(
    """
    import torch

    MIB = 1 << 20
    free = torch.cuda.mem_get_info()[0]

    def after_each():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def torch_uses_cuda_malloc_async():
        assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"

    def sizes_are_rounded_up_to_512_bytes():
        sizes = [1, 1000, 5 * MIB, 333 * MIB]
        kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
        used = sum(-(-size // 512) * 512 for size in sizes)
        assert torch.cuda.memory_allocated() == used
        del kept
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() == used

    def memory_that_is_handed_out_again_is_zero():
        for _ in range(5):
            x = torch.arange(1, 2001).cuda()
            assert (x * 2).sum().item() == 2001 * 2000
            del x
            assert not torch.empty(2000, dtype=torch.int64, device="cuda").cpu().any()

    def another_stream_computes_in_it():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            y = torch.ones(3).cuda() + 1
        torch.cuda.current_stream().wait_stream(side)
        assert y.sum().item() == 6

    def more_than_the_device_has_is_refused():
        try:
            torch.empty(free + 1, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            assert "out of memory" in str(error).lower()
        else:
            raise AssertionError("more than there is")

    def an_emptied_cache_leaves_all_memory_free():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.mem_get_info()[0] == free

    def a_layer_trains():
        layer = torch.nn.Linear(200, 300).cuda()
        layer(torch.randn(40, 200, device="cuda")).sum().backward()
    """
)


@pytest.fixture(scope="module")
def capacity(maya_run_once: MayaRun, small_gpu: str) -> Outcomes:
    return CAPACITY.run(maya_run_once, "--gpu", small_gpu, script_arguments=[str(MEMORY), str(CONTEXT)])


@pytest.mark.parametrize("check", CAPACITY.names)
def test_capacity(capacity: Outcomes, check: str) -> None:
    capacity.require(check)


@pytest.fixture(scope="module")
def expandable_segments(maya_run_once: MayaRun, small_gpu: str) -> Outcomes:
    allocator = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return EXPANDABLE_SEGMENTS.run(maya_run_once, "--gpu", small_gpu, environment=allocator)


@pytest.mark.parametrize("check", EXPANDABLE_SEGMENTS.names)
def test_expandable_segments(expandable_segments: Outcomes, check: str) -> None:
    expandable_segments.require(check)


def test_torch_falls_back_from_fabric_handles_without_a_word(expandable_segments: Outcomes) -> None:
    assert "not emulated" not in expandable_segments.run.output


@pytest.fixture(scope="module")
def stream_ordered_allocator(maya_run_once: MayaRun, small_gpu: str) -> Outcomes:
    allocator = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    return STREAM_ORDERED_ALLOCATOR.run(maya_run_once, "--gpu", small_gpu, environment=allocator)


@pytest.mark.parametrize("check", STREAM_ORDERED_ALLOCATOR.names)
def test_stream_ordered_allocator(stream_ordered_allocator: Outcomes, check: str) -> None:
    stream_ordered_allocator.require(check)
