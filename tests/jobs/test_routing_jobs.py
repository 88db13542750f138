"""Experts on several ranks: every rank knows how many tokens it sends and receives, whatever way it counts them."""

from __future__ import annotations

import json

from helpers.script_run import MayaRun

from maya.trace import Flag, RecordKind, read

EXPERTS = """
    import json, os
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    HIDDEN, COUNT, TAKEN = 64, 16, 2
    router = torch.nn.Linear(HIDDEN, COUNT, bias=False, device="cuda")
    expert = torch.nn.Linear(HIDDEN, HIDDEN, bias=False, device="cuda")
    lines = []
    for step in range(2):
        tokens = torch.randn(4096, HIDDEN, device="cuda")
        # the stream waits for another rank while the router chooses
        work = dist.all_reduce(torch.ones(1, device="cuda"), async_op=True)
        work.wait()
        chosen = router(tokens).topk(TAKEN, -1)[1]
        mask = torch.zeros(len(tokens), COUNT, device="cuda").int().scatter(1, chosen, 1).bool()
        sent = mask.sum(0).view(ranks, -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        every = torch.empty(ranks * len(tokens), COUNT, dtype=torch.bool, device="cuda")
        dist.all_gather_into_tensor(every, mask)
        assert every.sum(0).view(ranks, -1)[rank].tolist() == received.sum(0).tolist()
        to, come = sent.sum(1).tolist(), received.sum(1).tolist()
        token = torch.arange(len(tokens), device="cuda").expand(COUNT, -1).masked_select(mask.T.contiguous())
        rows = tokens.new_empty(sum(come), HIDDEN)
        dist.all_to_all_single(rows, tokens[token], come, to)
        back = tokens.new_empty(sum(to), HIDDEN)
        dist.all_to_all_single(back, expert(rows).detach(), to, come)
        lines.append([rank, to, come])
    torch.cuda.synchronize()
    os.write(1, (json.dumps(lines) + "\\n").encode())
    dist.destroy_process_group()
"""


def test_ranks_exchange_the_tokens_that_a_mask_counts(maya_run: MayaRun) -> None:
    run = maya_run(EXPERTS, "--nproc", "4", "--no-timeline", "--strict-values")
    assert run.exit_code == 0, run.output
    said = sorted(json.loads(line) for line in run.stdout.splitlines() if line.startswith("["))
    assert said == [[[rank, [2048] * 4, [2048] * 4]] * 2 for rank in range(4)]
    calls = read(run.trace).select(RecordKind.COLLECTIVE)
    sends = [read(run.trace).signature(int(each["signature"])) for each in calls if each["flags"] & Flag.ROUTED]
    rows = [each for each in sends if each.get("count") == 2048 * 64]
    # to every rank and back, in two steps: sends and receives
    assert sorted({each["call"] for each in rows}) == ["ncclRecv", "ncclSend"]
    assert len(rows) == 2 * 2 * 2 * 4
    assert not [each for each in sends if each["call"] == "ncclAllReduce"]


def test_a_skew_loads_the_same_rank_from_everywhere(maya_run: MayaRun) -> None:
    run = maya_run(EXPERTS, "--nproc", "4", "--no-timeline", "--moe-skew", "4")
    assert run.exit_code == 0, run.output
    said = sorted(json.loads(line) for line in run.stdout.splitlines() if line.startswith("["))
    sent = said[0][0][1]
    assert sum(sent) == 4096 * 2
    assert max(sent) > 1.5 * 2048
    assert said == [[[rank, sent, [sent[rank]] * 4]] * 2 for rank in range(4)]


def test_absent_ranks_route_like_their_representatives(maya_run: MayaRun) -> None:
    run = maya_run(EXPERTS, "--nproc", "4", "--represent", "0,3")
    assert run.exit_code == 0, run.output
    said = sorted(json.loads(line) for line in run.stdout.splitlines() if line.startswith("["))
    assert said == [[[rank, [2048] * 4, [2048] * 4]] * 2 for rank in (0, 3)]
    assert "even routing" in run.stderr
