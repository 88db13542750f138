"""A synthetic report of any size, for tests of the page: an FSDP-like job, one slow rank, deterministic."""

from __future__ import annotations

from maya.report.content import (
    Activity,
    Bar,
    Content,
    Figure,
    MemoryView,
    RankClassRow,
    Share,
    StepsView,
    StreamsView,
    Table,
    TimePart,
    Track,
    TrafficView,
)

GIB = 2**30
SLOW = 5  # a rank


def synthetic_content(ranks: int, *, layers: int = 32, steps: int = 10, title: str = "train_gpt.py") -> Content:
    """Ranks beyond eight are on more nodes."""
    per_node = min(ranks, 8)
    nodes = -(-ranks // per_node)
    gemm = [410_000_000 + 90_000_000 * (rank == SLOW) for rank in range(ranks)]
    parts = (
        TimePart("gemm", "matrix products", "cuBLAS and the like", gemm),
        TimePart("attention", "attention", "fused attention kernels", [96_000_000] * ranks),
        TimePart("memory_bound", "memory-bound", "norms, copies, optimizer", [71_000_000] * ranks),
        TimePart("communication", "communication, exposed", "nothing is computed meanwhile",
             [44_000_000 + 500_000 * (rank // per_node % 4) for rank in range(ranks)]),
        TimePart("waiting", "waiting for other ranks", "arrived before the last member of a collective",
             [0 if rank == SLOW else 90_000_000 - 500_000 * (rank // per_node % 4) for rank in range(ranks)]),
        TimePart("host_bound", "host-bound", "the host had not launched anything yet", [6_100_000] * ranks),
        TimePart("idle", "idle", "nothing to do", [1_200_000 + 1000 * (rank % 7) for rank in range(ranks)]),
    )  # fmt: skip
    activities = (
        Activity("ampere_bf16_s16816gemm_128x256", "gemm", "aten::mm · 8192×4096 · 4096×14336", "model", "6 %"),
        Activity("flash_fwd_kernel", "attention", "aten::_flash_attention_forward · 1×32×8192×128", "measured", "4 %"),
        Activity("vectorized_elementwise_kernel <add>", "memory_bound", "aten::add · 8192×4096", "roofline", "20 %"),
        Activity("AllGather", "communication", "436.0 MiB · 8 ranks", "network: fitted", ""),
        Activity("ReduceScatter", "communication", "436.0 MiB · 8 ranks", "network: fitted", ""),
    )
    streams = tuple(_streams(rank, layers, steps) for rank in ((0, SLOW) if ranks > SLOW else (0,)))
    samples = 400
    memory = tuple(
        MemoryView(
            rank,
            [at * steps * 719_000_000 // samples for at in range(samples)],
            [30 * GIB + (at * 40 % samples) * 30 * GIB // samples for at in range(samples)],
            [min(62 * GIB, 20 * GIB + at * 8 * GIB // 10) for at in range(samples)],
            GIB * 3 // 2,
        )
        for rank in (0,)
    )
    unit, size = ("rank", ranks) if ranks <= 64 else ("node", nodes)
    entries = [
        number
        for at in range(size)
        for to, count in (((at + 1) % size, 70 * GIB), ((at + 7) % size, GIB // 3))
        if to != at
        for number in (at, to, count)
    ]
    others = f"0-{SLOW - 1},{SLOW + 1}-{ranks - 1}" if ranks > SLOW + 1 else f"0-{ranks - 1}"
    return Content(
        title=title,
        subtitle=f"{ranks} ranks on {nodes} nodes of DGX H100, NDR InfiniBand · NVIDIA H100 80GB HBM3 · torch 2.12.1",
        figures=(
            Figure("step time", "719 ms", "median of 8 steps after warm-up"),
            Figure("tokens/s", "364,500", "5,695 per GPU"),
            Figure("MFU", "46.1 %", "of 989 TFLOPS bf16"),
            Figure("exposed communication", "6.2 %", "44.5 ms of a step"),
            Figure("peak memory", "63.5 GiB", "of 79.1 GiB, rank 0"),
            Figure("GPU time", "1.60 GPU-h", "per 1000 steps"),
        ),
        notes=("Rank 5 was made slower on purpose: its kernels take 1.3 times as long.",) if ranks > SLOW else (),
        steps=StepsView([1_930_000_000, *(719_000_000 + at % 3 * 1_000_000 for at in range(steps - 1))], 2, steps // 2),
        parts=parts,
        hidden_ns=[210_000_000] * ranks,
        bars=(Bar("median", 0), Bar("fastest", 1 % ranks), Bar("slowest", SLOW % ranks)),
        why="Rank 5 computes 90 ms longer than the median rank; all others wait for it in collectives.",
        ranks_per_node=per_node,
        rank_classes=(RankClassRow(others, ranks - 1, 0), RankClassRow(str(SLOW), 1, SLOW)),
        streams=streams,
        activities=activities,
        peak_bytes=[63 * GIB + (rank == 0) * GIB // 2 for rank in range(ranks)],
        capacity_bytes=79 * GIB,
        memory=memory,
        traffic=TrafficView(unit, size, entries, f"Bytes from every {unit} to every other in a step."),
        origins=(
            Share("measured", "measured", "this very shape was measured on this GPU", 130_000_000),
            Share("model", "model", "a model trained on measurements of this GPU", 420_000_000),
            Share("roofline", "roofline", "a bound of this GPU with the efficiency of its relatives", 30_000_000),
            Share("default", "default", "nothing is known but that it was launched", 1_000_000),
            Share("network", "network model", "collectives, sends and receives", 254_000_000),
        ),
        network_origin="Network parameters: fitted; held out, 1 MiB and more: median 3.1 %, p90 10.3 % of 349.",
        kernels=Table(
            ("kernel", "op and sizes", "class", "total", "share", "launches", "each", "origin", "spread"),
            ("text", "text", "text", "ns", "share", "count", "ns", "text", "text"),
            [
                (activity.name, activity.detail, activity.kind, (5 - at) * 10**9, 0.3 / (at + 1), 96 * ranks, 1_800_000,
                 activity.origin, activity.spread)
                for at, activity in enumerate(activities[:3])
            ],
        ),
        collectives=Table(
            ("collective", "size", "group", "total", "launches", "each", "waiting"),
            ("text", "bytes", "count", "ns", "count", "ns", "ns"),
            [("AllGather", 457_179_136, 8, 9 * 10**9, 64 * ranks, 1_700_000, 10**9)],
        ),
        settings=(("Job", (("script", title), ("ranks", str(ranks)))), ("GPU", (("name", "NVIDIA H100"),))),
    )  # fmt: skip


def _streams(rank: int, layers: int, steps: int) -> StreamsView:
    """Two steps: gathers ahead of computation on a second stream."""
    compute: list[int] = []
    network: list[int] = []
    length = 719_000_000
    slow = 13 if rank == SLOW else 10
    each = length // (layers * 3 + 4)
    for _ in range(2):
        left = length
        for layer in range(layers * 3):
            product, attention, rest = each * 6 * slow // 130, each * 2 * slow // 130, each // 13
            gap = 2_000 + 1_000 * (layer % 5)
            compute += [gap, product, 0, 400_000, 0, 0, attention, 1, 400_000, 0, 0, rest, 2, 300_000, 0]
            used = gap + product + attention + rest
            waited = each // 5 if slow == 10 and layer % 9 == 0 else 0
            network += [
                used - 1_700_000 if used > 1_700_000 else 0,
                min(used, 1_700_000),
                3 + layer % 2,
                90_000,
                waited,
            ]
            left -= used
        compute += [left - 60_000_000, 60_000_000, 2, 2_000, 0]
        network += [left, 0, 3, 0, 0]
    middle = steps // 2
    first = middle * length
    ends = ((middle - 1, first), (middle, first + length), (middle + 1, first + 2 * length))
    return StreamsView(rank, first, first + 2 * length, ends, (Track("stream 7", compute), Track("stream 21", network)))
