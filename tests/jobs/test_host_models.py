"""A model that is built on the host gives the same prediction as one that is built on the GPU, and takes no memory."""

from __future__ import annotations

import json

from helpers.script_run import MayaRun

SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
from torch import nn

def private():
    lines = open("/proc/self/smaps_rollup").readlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private"))

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
torch.zeros(1, device="cuda")
before = private()
with torch.device(sys.argv[1]):
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(12)))  # 192 MiB
    for layer in model:
        nn.init.normal_(layer.weight, std=0.02)
model = model.cuda()
grown = private() - before
assert "real" in sys.argv or grown < 24 << 20, grown
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(4):
    model(torch.ones(256, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_models_built_on_the_host_and_on_the_gpu_have_the_same_prediction(maya_run: MayaRun) -> None:
    predictions = []
    for arguments, options in (("cpu",), []), (("cuda",), []), (("cpu", "real"), ["--host-tensors", "real"]):
        run = maya_run(SCRIPT, "--nproc", "2", *options, script_arguments=list(arguments))
        assert run.exit_code == 0, run.output
        predictions.append(json.loads((run.folder / "summary.json").read_text())["prediction"])
    on_host, on_gpu, real = predictions
    assert on_host["steps"] == on_gpu["steps"] == real["steps"]
    assert on_host == real
