"""An op that torch cuts into several launches counts once: its bytes, its FLOPs, its time.

torch cuts at 2**31 bytes or elements (TensorIterator), at 2**30 elements (softmax, scans), and where the tensors of a
list no longer fit a kernel's parameters (foreach, fused optimizers, cat). Sizes are just below, at and above each
limit. Device memory is virtual: large tensors cost nothing here.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from helpers.script_run import MayaRun

from maya.devices import load_device
from maya.estimators.estimator import Estimator
from maya.estimators.features import kernel_of, kernels_of
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.tensors import Tensor
from maya.estimators.kernel import Kernel
from maya.trace import Flag, RecordKind, read

# Each op takes a vector and goes through all of it; an annotation says which op, which type and how many elements.
ELEMENTS = """
    import torch

    ops = {
        "mul_": lambda x: x.mul_(2),
        "add": lambda x: x + x,
        "gt": lambda x: x > 0,
        "fill_": lambda x: x.fill_(1),
        "to double": lambda x: x.double(),
        "transpose": lambda x: x[: len(x) // 1024 * 1024].view(1024, -1).t().contiguous(),
        "random_": lambda x: x.random_(0, 2),
        "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
        "sum": torch.sum,
        "amax of rows": lambda x: x[: len(x) // 1024 * 1024].view(-1, 1024).amax(1),
        "amax of columns": lambda x: x[: len(x) // 65536 * 65536].view(65536, -1).amax(0),
        "argmax": torch.argmax,
        "var": torch.var,
        "gather": lambda x: x.gather(0, indices[: len(x)]),
        "index": lambda x: x[indices[: len(x)]],
        "softmax": lambda x: x[: len(x) // 512 * 512].view(-1, 512).softmax(-1, dtype=torch.float32),
        "short softmax": lambda x: x[: len(x) // 64 * 64].view(-1, 64).softmax(-1, dtype=torch.float32),
        "cumsum": lambda x: torch.cumsum(x, 0, dtype=torch.float32),
        "nonzero": torch.nonzero,
        "i0": torch.special.i0,  # torch compiles it at run time, and this reduction as well:
        "complex prod": lambda x: torch.prod(x.view(torch.complex64)),
    }
    floating = ("dropout", "var", "i0", "complex prod")
    indices = torch.empty(1 << 32, dtype=torch.int64, device="cuda")
    for dtype, limit in ((torch.float32, 1 << 29), (torch.bfloat16, 1 << 30), (torch.uint8, 1 << 31)):
        for name, op in ops.items():
            if name in floating and dtype is not torch.float32:
                continue
            for size in (limit // 2, limit - 2, limit, limit + 2, limit + 65536, 3 * limit // 2, 2 * limit):
                x = torch.empty(size, dtype=dtype, device="cuda")
                with torch.profiler.record_function(f"{name}|{dtype}|{size}"):
                    op(x)
                del x
"""

# How many tensors, and of how many elements: a launch takes 770 tensors and 2240 chunks at most, of older torch 110
# and 320.
LISTS = """
    import torch

    ops = {
        "mul": lambda tensors: torch._foreach_mul_(tensors, 2.0),
        "add": lambda tensors: torch._foreach_add_(tensors, tensors),
        "norm": lambda tensors: torch._foreach_norm(tensors),
        "cat": lambda tensors: torch.cat(tensors),
        "adamw": adamw,
    }
    counts = [1, 30, 31, 64, 65, 110, 111, 128, 129, 210, 211, 448, 449, 770, 771]
    cases = [(count, 3000) for count in counts]
    cases += [(1, chunks * 65536 + more) for chunks in (319, 320, 321, 2239, 2240, 2241) for more in (0, 1)]
    cases += [(3, 70_000_001)]
"""
ADAMW = """
    def adamw(tensors):
        steps = [torch.ones((), device="cuda") for _ in tensors]
        torch._fused_adamw_(
            tensors, tensors, tensors, tensors, [], steps, lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8,
            amsgrad=False, maximize=False,
        )
"""
EACH_LIST = """
    for count, size in cases:
        sizes = [size + 7 * number for number in range(count)]
        tensors = [torch.empty(size, device="cuda") for size in sizes]
        for name, op in ops.items():
            with torch.profiler.record_function(f"{name}|{count}|{sum(sizes)}"):
                op(tensors)
        del tensors
"""

Launches = list[tuple[KernelLaunch, Kernel]]


def annotated(path: Path) -> dict[str, Launches]:
    """The launches within each annotation that has a bar in its name."""
    trace = read(path)
    traced = kernels_of(trace)
    found: dict[str, Launches] = defaultdict(list)
    for record, which in zip(traced.records, traced.which.tolist(), strict=True):
        number = int(record["op"])
        while number and (op := trace.op(number)) is not None:
            name = str(trace.signature(int(op["signature"]))["op"])
            if "|" in name:
                found[name].append((traced.kernels[which].launch, traced.kernels[which].kernel))
                break
            number = int(op["parent"])
    return found


def bytes_of(launches: Launches) -> float:
    return sum(kernel.bytes_read + kernel.bytes_written for _, kernel in launches)


def flops_of(launches: Launches) -> float:
    return sum(kernel.flops for _, kernel in launches)


def ns_of(launches: Launches, estimator: Estimator) -> int:
    return sum(estimate.ns for estimate in estimator.estimate([kernel for _, kernel in launches]))


def count_kernels(launches: Launches) -> int:
    return sum(launch.what == "kernel" for launch, _ in launches)


def test_bytes_flops_and_time_grow_evenly_across_every_limit(maya_run: MayaRun) -> None:
    run = maya_run(ELEMENTS, "--gpu", "b200")
    assert run.exit_code == 0, run.output
    estimator = Estimator(load_device("b200"))
    groups: dict[tuple[str, str], dict[int, Launches]] = defaultdict(dict)
    for name, launches in annotated(run.trace).items():
        op, dtype, size = name.split("|")
        groups[op, dtype][int(size)] = launches
    assert len(groups) == 21 + 2 * 17
    cut = set()
    for (op, dtype), sizes in groups.items():
        first = min(sizes)
        for elements, launches in sizes.items():
            label = (op, dtype, elements, [(launch.function, kernel) for launch, kernel in launches])
            assert bytes_of(launches) == pytest.approx(bytes_of(sizes[first]) * elements / first, rel=1e-3), label
            assert flops_of(launches) == pytest.approx(flops_of(sizes[first]) * elements / first, rel=1e-3), label
            # Parts that begin at odd addresses go through memory another way, and slower.
            if {kernel.variant for _, kernel in launches} == {kernel.variant for _, kernel in sizes[first]}:
                expected = ns_of(sizes[first], estimator) * elements / first
                assert expected * 0.9 < ns_of(launches, estimator) < expected * 1.05 + 10_000 * len(launches), label
            if count_kernels(launches) > count_kernels(sizes[first]):
                cut.add(op)
    # Dropout has 64-bit offsets; newer torch transposes with a kernel of its own, which has them as well.
    assert cut >= {op for op, _ in groups} - {"dropout", "transpose"}


def lists_program() -> str:
    return ADAMW.replace("    def", "    import torch\n\n    def", 1) + LISTS + EACH_LIST


def test_a_list_counts_once_for_any_number_of_launches(maya_run: MayaRun) -> None:
    run = maya_run(lists_program(), "--gpu", "b200")
    assert run.exit_code == 0, run.output
    # Bytes of an element that each op reads and writes.
    traffic = {"mul": 8, "add": 12, "norm": 4, "cat": 8, "adamw": 28}
    most: dict[str, int] = defaultdict(int)
    for name, launches in annotated(run.trace).items():
        op, count, elements = name.split("|")
        over_lists = [each for each in launches if "multi_tensor" in each[0].name or "CatArray" in each[0].name]
        if op == "cat" and int(count) == 1:
            continue  # a plain copy
        assert over_lists, name
        # A norm also writes a number for each chunk.
        expected = traffic[op] * int(elements)
        assert bytes_of(over_lists) == pytest.approx(expected, rel=1e-3), (name, over_lists)
        most[op] = max(most[op], len(over_lists))
    assert all(most[op] > 1 for op in traffic), most


GRAPH = """
    import torch

    # Two lists that need the same launches, but for the sizes of their tensors, and a tensor that is cut.
    long = [torch.empty(65536, device="cuda") for _ in range(1600)]
    short = [torch.empty(1000, device="cuda") for _ in range(1600)]
    large = torch.empty(3 << 28, device="cuda")

    def step():
        torch._foreach_mul_(long, 2.0)
        torch._foreach_mul_(short, 2.0)
        large.mul_(2)
        large.sum()

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
"""


def test_a_graph_launches_its_captured_ops(maya_run: MayaRun) -> None:
    run = maya_run(GRAPH, "--gpu", "b200")
    assert run.exit_code == 0, run.output
    traced = kernels_of(read(run.trace))
    eager: list[Kernel] = []
    from_graph: list[Kernel] = []
    for record, which in zip(traced.records, traced.which.tolist(), strict=True):
        if record["kind"] == RecordKind.KERNEL:
            (from_graph if record["flags"] & Flag.FROM_GRAPH else eager).append(traced.kernels[which].kernel)
    captured = len(from_graph) // 2
    assert captured > 6
    assert from_graph == 2 * eager[:captured]


@pytest.mark.parametrize(("elements", "launches"), [(1 << 29, 1), ((1 << 29) + 1, 2), (3 << 28, 2), ((1 << 30) + 2, 4)])
def test_launches_without_a_description_take_the_sizes_of_their_tensors(elements: int, launches: int) -> None:
    """As in profiles of real runs."""
    x = Tensor((elements,), "fp32", (1,))
    grid = (-(-elements // launches // 1024), 1, 1)
    for name, op, passes in (
        ("void at::native::vectorized_elementwise_kernel<4, Functor, std::array<char*, 2>>(int)", "aten::mul_", 2),
        ("void at::native::reduce_kernel<512, 1, Op>(Op)", "aten::sum", 1),
    ):
        kernel = kernel_of(KernelLaunch("kernel", name, grid, (128, 1, 1), op=op, inputs=(x,)))
        moved = kernel.bytes_read + kernel.bytes_written
        assert moved * launches == pytest.approx(4 * elements * passes)
