"""Programs whose ranks are not alike: each difference makes a rank class, or the summary warns of it."""

from __future__ import annotations

import json

import pytest
from helpers.script_run import MayaRun

from maya.replay.rank_class import trace_facts

DIFFERENT = """
    import os
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    layers = [torch.nn.Linear(64, 64) for _ in range(2 + (rank == 1))]  # as in the last stage of an uneven pipeline
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = 8 if rank == 2 else 32
    tokens = 48 if rank == 3 else 64  # rows for the rank's expert
    for step in range(3):
        model(torch.zeros(batch, 64, device="cuda")).sum().backward()
        (torch.zeros(tokens, 64, device="cuda") @ torch.zeros(64, 64, device="cuda")).sum()
        dist.all_reduce(torch.zeros(4096, device="cuda"))
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            model(torch.zeros(512, 64, device="cuda")).sum().item()  # evaluates
        if rank == 4:
            torch.zeros(100 + 10 * rank, device="cuda").add_(1)  # a shape that depends on the rank
    dist.destroy_process_group()
"""

EXPERTS = """
    import os
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replica", "expert"))
    group = mesh["expert"].get_group()
    expert = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(expert.parameters())
    for step in range(3):
        sent = [8 * (other + 1) for other in range(4)]  # later experts get more tokens
        arriving = torch.empty(4, dtype=torch.int64, device="cuda")
        dist.all_to_all_single(arriving, torch.tensor(sent, device="cuda"), group=group)
        received = arriving.tolist()
        rows = torch.empty(sum(received), 64, device="cuda")
        dist.all_to_all_single(rows, torch.zeros(sum(sent), 64, device="cuda"), received, sent, group=group)
        expert(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


def test_every_difference_makes_a_rank_class(maya_run: MayaRun) -> None:
    """As a survey compares ranks."""
    run = maya_run(DIFFERENT, "--nproc", "7", "--represent", "all", "--no-timeline")
    assert run.exit_code == 0, run.output
    digests = trace_facts(run.folder, {}).digests
    assert digests[5] == digests[6]
    assert len(set(digests.values())) == 6


def test_experts_with_other_token_counts_than_their_representative_are_named(maya_run: MayaRun) -> None:
    run = maya_run(EXPERTS, "--nproc", "8", "--represent", "0,1")
    assert run.exit_code == 0, run.output
    warnings = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))["represented"]["warnings"]
    assert any("rank 0 sends 6,144 B to rank 2, which receives 4,096 B; absent ranks may" in each for each in warnings)


@pytest.mark.slow
def test_experts_with_other_token_counts_may_represent_their_copies(maya_run: MayaRun) -> None:
    """Those of the first replica stand for those of the second one."""
    everyone, some = (
        json.loads(
            (
                maya_run(EXPERTS, "--nproc", "8", "--represent", each, "--trace-ranks", "none").folder / "summary.json"
            ).read_text()
        )
        for each in ("all", "0-4")
    )
    assert some["prediction"] == everyone["prediction"]
    assert some["represented"]["warnings"] == []
