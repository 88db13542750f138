"""Kernels that are compiled at run time: a launch is recorded with the sizes of its tensors."""

from __future__ import annotations

import json

import pytest
from helpers.script_run import MayaRun

from maya.devices import load_device
from maya.trace import RecordKind, read

H100_FLOPS = float(load_device("h100").bf16_flops or 0)

# ---- what a launch records ----

HAND_WRITTEN = """
    import torch
    import triton
    import triton.language as tl


    @triton.jit
    def scale(x, y, n, BLOCK: tl.constexpr):
        for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


    pool = torch.empty(1 << 28, dtype=torch.bfloat16, device="cuda")
    x, y = pool[: 1 << 26], pool[1 << 27 : (1 << 27) + (1 << 26)]
    one = torch.ones(1, device="cuda").expand(1 << 20)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    scale[(132,)](x, y, x.numel(), BLOCK=1024)
    events[1].record()
    scale[(132,)](one, y, y.numel(), BLOCK=512)  # another kernel of the same name
    torch.cuda.synchronize()
    print("took", events[0].elapsed_time(events[1]))
"""


def test_a_hand_written_kernel_takes_as_long_as_its_tensors(maya_run: MayaRun) -> None:
    """A grid of one block for each SM says nothing about the 256 MiB that it goes through."""
    run = maya_run(HAND_WRITTEN, "--gpu", "h100")
    assert run.exit_code == 0, run.stderr
    trace = read(run.folder / "rank0.trace")
    signatures = [trace.signature(int(number)) for number in trace.select(RecordKind.KERNEL)["signature"]]
    first, second = [signature for signature in signatures if signature["kernel"] == "scale"]
    # Slices have their own bytes, not those of the 512 MiB that they are slices of.
    assert first["pointers"] == [1 << 27, 1 << 27]
    # An expanded tensor has no more bytes than its block.
    assert second["pointers"] == [512, 1 << 27]
    assert first["source"] == "script1.py"
    assert "def scale" in (run.folder.parent / "script1.py").read_text(encoding="utf-8").splitlines()[first["line"] - 1]
    moving_ms = (2 << 27) / load_device("h100").memory_bandwidth * 1e3
    took_ms = float(run.stdout.split("took ")[1].split()[0])
    assert moving_ms < took_ms < 3 * moving_ms
    said = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))["prediction"]["origins"][
        "without_model"
    ]
    assert said["launches"] == 2
    assert said["most_bytes"] == {"kernel": "scale", "place": f"script1.py:{first['line']}", "bytes": 2 << 27}
    assert said["could_matter"]
    assert "scale (script1.py:" in run.stderr


FLEX = """
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(batch, head, query, key):
        return query >= key

    shape = (1, 4, 16384, 128)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(3))
    mask = create_block_mask(causal, None, None, 16384, 16384)
    torch.compile(flex_attention)(q, k, v, block_mask=mask).sum().backward()
    torch.cuda.synchronize()
"""


@pytest.mark.slow
def test_flex_attention_is_attention(maya_run: MayaRun) -> None:
    run = maya_run(FLEX, "--gpu", "h100", timeout=600)
    assert run.exit_code == 0, run.stderr
    prediction = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))["prediction"]
    attention = prediction["ranks"][0]["time_ns"][prediction["classes"].index("attention")]
    operations = 3.5 * 4 * 4 * 16384 * 16384 / 2 * 128  # backward takes 2.5 times what forward does; half is masked
    least = operations / H100_FLOPS * 1e9
    assert least < attention < 10 * least
