"""A rank that asks the coordinator for kernel times gets those that its trace is replayed with."""

from __future__ import annotations

from helpers.script_run import MayaRun

from maya.devices import load_device
from maya.estimators.features import kernels_of
from maya.replay.kernel_durations import KernelDurations
from maya.trace import Flag, RecordKind, read

SCRIPT = """
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    inputs = torch.zeros(32, 256).pin_memory().to("cuda", non_blocking=True)
    model(inputs).sum().backward()
    optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        model(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(inputs)
    graph.replay()
    torch.cuda.synchronize()
"""


def test_a_rank_gets_the_durations_that_its_trace_is_replayed_with(maya_run: MayaRun) -> None:
    run = maya_run(SCRIPT)
    assert run.exit_code == 0, run.output
    trace = read(run.trace)
    traced = kernels_of(trace)
    durations = KernelDurations(load_device("h100"))
    estimates = durations.of_kernels([item.kernel for item in traced.kernels])

    from_graph = 0
    for record, which in zip(traced.records, traced.which.tolist(), strict=True):
        kind, signature = RecordKind(int(record["kind"])), int(record["signature"])
        op = trace.op_of(record)
        op_text = trace.strings[op["signature"]] if op is not None else ""
        copied = kind in (RecordKind.MEMCPY, RecordKind.MEMSET)
        size = int(record["value"]) if copied else 0
        (ns,) = durations.answers([(int(kind), trace.strings[signature], "" if copied else op_text, size)])
        assert ns == estimates[which].ns, (kind, trace.strings[signature], op_text)
        if kind == RecordKind.KERNEL and record["flags"] & Flag.FROM_GRAPH:
            assert traced.kernels[which].launch.op, "it has the op that was running when it was captured"
            from_graph += 1
    assert from_graph > 0
