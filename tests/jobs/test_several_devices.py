"""One process that drives several GPUs: nn.DataParallel, and NCCL called for all devices of a process."""

from __future__ import annotations

import json

import pytest
from helpers.script_run import MayaRun

from maya.replay.simulate import simulate
from maya.trace import read
from maya.trace.streams import find_streams

TRAINING = """
    import json, os, time
    import torch
    from torch import nn

    def say(**words):  # in one piece: ranks share a stream
        os.write(1, (json.dumps(words) + "\\n").encode())

    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
    model = nn.DataParallel(one, device_ids=[0, 1, 2, 3])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs = torch.arange(64.0).reshape(8, 8).cuda() / 64
    alone = one(inputs).sum().item()
    for step in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        loss = model(inputs).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if step == 0:
            say(same=abs(loss.item() - alone) < 1e-4, gpus=torch.cuda.device_count())
        say(ns=time.perf_counter_ns() - began)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_data_parallel_trains_on_several_devices(maya_run: MayaRun, ranks: int) -> None:
    run = maya_run(TRAINING, "--nproc", str(ranks), "--nproc-per-node", str(ranks))
    assert run.exit_code == 0, run.output
    said = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert [line for line in said if "same" in line] == [{"same": True, "gpus": 8}] * ranks
    assert all(line["ns"] > 0 for line in said if "ns" in line)
    timeline = simulate(run.folder)
    assert not timeline.problems
    summary = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["emulation"]["coordinator"]["host_ns"] == timeline.host_end_ns.tolist()
    assert summary["prediction"]["throughput"]["gpus"] == 4 * ranks


def test_devices_do_not_wait_for_each_other(maya_run: MayaRun) -> None:
    """Each has a default stream of its own, and blocking streams that wait for that one only."""
    run = maya_run(
        """
        import ctypes, time
        import torch

        runtime = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0])
        long, short = torch.empty(1 << 28, device="cuda:0"), torch.empty(1, device="cuda:1")

        def took(device):
            began = time.perf_counter_ns()
            torch.cuda.synchronize(device)
            return time.perf_counter_ns() - began

        with torch.cuda.device(1):
            handle = ctypes.c_void_p()
            assert runtime.cudaStreamCreate(ctypes.byref(handle)) == 0
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        for _ in range(20):
            long.add_(1)
        short.add_(1)
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value, device="cuda:1")):
            short.mul_(2)
        one, both = took(1), took(0)
        print(one < 1_000_000, both > 10_000_000)
        """
    )
    assert (run.exit_code, run.stdout) == (0, "True True\n"), run.output
    streams = find_streams(read(run.trace))
    (blocking,) = streams.blocking
    default = streams.home(blocking)
    assert default not in (0, blocking)
    assert streams.home(default) == default
    assert streams.beside(default) == [blocking]
    assert not simulate(run.folder).problems
