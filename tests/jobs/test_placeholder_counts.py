"""Counts of placeholders, such as the tokens that a router sends to experts: they add up on every rank."""

from __future__ import annotations

import json

from helpers.script_run import MayaRun


def test_counts_of_placeholders_are_even(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import json
        import torch

        tokens = torch.randn(4099, 512, device="cuda")
        chosen = torch.nn.Linear(512, 8, device="cuda")(tokens)[:, 0].long()
        counts = {
            "bincount": torch.bincount(chosen, minlength=8),
            "histc": torch.histc(chosen, bins=8, min=0, max=7),
            "of floats": torch.histc(chosen.float(), bins=8, min=0, max=8),
            "few": torch.bincount(chosen[:10], minlength=8),
            "known": torch.bincount(torch.tensor([1, 1, 3]).cuda()),
            "weighted": torch.bincount(chosen, weights=chosen.float(), minlength=8).sum(),
        }
        print(json.dumps({name: count.tolist() for name, count in counts.items()}))
        """
    )
    assert run.exit_code == 0, run.output
    even = [513, 513, 513, 512, 512, 512, 512, 512]
    assert json.loads(run.stdout) == {
        "bincount": even,
        "histc": even,
        "of floats": even,
        "few": [2, 2, 1, 1, 1, 1, 1, 1],
        "known": [0, 2, 0, 1],
        "weighted": 0,
    }
    assert "reads placeholder values" in run.stderr


EXPERTS = """
    import json, os
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    tokens = torch.randn(4096 + 8 * rank, 64, device="cuda")
    chosen = torch.nn.Linear(64, 8, device="cuda")(tokens)[:, 0].long()
    sent = torch.bincount(chosen, minlength=8).view(ranks, -1).sum(1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    to, come = sent.tolist(), received.tolist()
    mine = tokens.new_empty(sum(come), 64)
    dist.all_to_all_single(mine, tokens[chosen.argsort()], come, to)
    back = torch.empty_like(tokens)
    dist.all_to_all_single(back, mine, to, come)
    every = [torch.empty_like(sent) for _ in range(ranks)]
    dist.all_gather(every, sent)
    total = sent.clone()
    dist.all_reduce(total)
    torch.cuda.synchronize()
    words = [rank, to, come, [one.tolist() for one in every], total.tolist()]
    os.write(1, (json.dumps(words) + "\\n").encode())
    dist.destroy_process_group()
"""


def test_ranks_agree_on_how_much_they_send(maya_run: MayaRun) -> None:
    run = maya_run(EXPERTS, "--nproc", "4", "--no-timeline")
    assert run.exit_code == 0, run.output
    said = sorted(json.loads(line) for line in run.stdout.splitlines() if line.startswith("["))
    sent = [[(4096 + 8 * rank) // 4] * 4 for rank in range(4)]
    assert [line[1] for line in said] == sent
    assert [line[2] for line in said] == [[sent[other][rank] for other in range(4)] for rank in range(4)]
    assert [line[3] for line in said] == [sent] * 4
    assert [line[4] for line in said] == [[sum(one[0] for one in sent)] * 4] * 4
    assert "reads placeholder values" in run.stderr
