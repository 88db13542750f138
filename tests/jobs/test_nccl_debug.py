"""NCCL_DEBUG: what ranks log about their communicators."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.script_run import MayaRun

PROGRAM = """
    import os, sys
    import torch
    import torch.distributed as dist

    local = 0 if sys.argv[1:] == ["same GPU"] else int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    dist.all_reduce(torch.ones(8, device="cuda"))
    torch.cuda.synchronize()
    dist.destroy_process_group()
"""


def test_info_describes_the_communicator_of_each_rank(maya_run: MayaRun, tmp_path: Path) -> None:
    debug = {"NCCL_DEBUG": "info", "NCCL_DEBUG_FILE": str(tmp_path / "nccl.%h.%p.log")}
    run = maya_run(PROGRAM, "--nnodes", "2", "--nproc-per-node", "2", "--cluster", "dgx-h100", environment=debug)
    assert run.exit_code == 0, run.output
    assert "NCCL INFO" not in run.output
    logs = [path.read_text(encoding="utf-8") for path in tmp_path.glob("nccl.*.log")]
    assert len(logs) == 4
    ranks = sorted(re.findall(r" rank (\d+) nranks 4 .* - Init COMPLETE$", "\n".join(logs), re.MULTILINE))
    assert ranks == ["0", "1", "2", "3"]
    assert len(set(re.findall(r"commId 0x[0-9a-f]+", "\n".join(logs)))) == 1
    (first,) = (log for log in logs if " rank 0 nranks 4" in log)
    lines = first.splitlines()
    assert re.match(r"NCCL version \d+\.\d+\.\d+\+cuda\d+\.\d+$", lines[0])
    prefix = re.compile(r"[\w-]+:(\d+):\d+ \[0\] NCCL INFO (.*)")
    texts = [match[2] for match in map(prefix.fullmatch, lines[1:]) if match]
    assert len(texts) == len(lines) - 1
    assert texts[0].endswith("Init START")
    assert texts[-1].endswith("Init COMPLETE")
    assert "Channel 00/04 : 0 1 2 3" in texts
    assert "Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA" in texts
    assert any(text.startswith("Trees [0] 1/2/-1->0->-1 ") for text in texts)


def test_warn_repeats_what_nccl_refuses(maya_run: MayaRun) -> None:
    run = maya_run(PROGRAM, "--nproc", "2", script_arguments=["same GPU"], environment={"NCCL_DEBUG": "WARN"})
    assert run.exit_code != 0
    assert re.search(r"^NCCL version ", run.output, re.MULTILINE)
    assert re.search(r"^[\w-]+:\d+:\d+ \[0\] NCCL WARN .*GPU", run.output, re.MULTILINE), run.output
    assert "NCCL INFO" not in run.output


def test_other_subsystems_are_left_out(maya_run: MayaRun) -> None:
    debug = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "^INIT"}
    run = maya_run(PROGRAM, "--nproc", "2", environment=debug)
    assert run.exit_code == 0, run.output
    assert "NCCL version" in run.output
    assert "NCCL INFO" not in run.output
