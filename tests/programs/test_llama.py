"""A Llama-3 8B in bf16 with AdamW: trains on a virtual B200, runs out of memory on an H100, costs the host little."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.script_run import MayaRun

from maya.trace import RecordKind, read

LLAMA = (Path(__file__).parents[2] / "scripts" / "examples" / "llama.py").read_text(encoding="utf-8")

# The process's own peak; ru_maxrss would be that of its parent, if larger, because it outlives exec.
TELL_HOST_MEMORY = """
import pathlib, re
print("host memory", re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text()).group(1), "kB")
"""


def test_it_trains_on_a_b200(maya_run: MayaRun) -> None:
    run = maya_run(LLAMA + TELL_HOST_MEMORY, "--gpu", "b200")
    assert run.exit_code == 0, run.output
    assert "is not emulated" not in run.stderr
    assert run.stdout.startswith("8.03 B parameters\n")
    peaks = [float(peak) for peak in re.findall(r"max memory (\S+) GiB", run.stdout)]
    assert len(peaks) == 3
    # Parameters and the two moments of AdamW are 45 GiB; activations and gradients come on top.
    assert 90 < peaks[-1] < 120
    host = re.search(r"host memory (\d+) kB", run.stdout)
    assert host is not None
    assert int(host.group(1)) < 2**20

    trace = read(run.trace)
    calls = [trace.signature(number) for number in trace.select(RecordKind.LIBRARY)["signature"]]
    products = [{call["m"], call["n"], call["k"]} for call in calls if call["call"].startswith("cublas")]
    # One product forward and two backward, in three steps, ...
    assert products.count({4096, 8192, 128256}) == 3 * 3  # ... of the head
    assert products.count({4096, 8192, 14336}) == 3 * 3 * 3 * 32  # ... of gate, up and down in every layer
    assert products.count({4096, 8192, 1024}) == 3 * 3 * 2 * 32  # ... of keys and values: 8 heads of 128


def test_it_runs_out_of_memory_on_an_h100(maya_run: MayaRun) -> None:
    run = maya_run(LLAMA, "--gpu", "h100")
    assert run.exit_code == 1
    assert "step 1  loss " not in run.stdout  # AdamW's moments come with the first step: the second cannot fit
    message = r"torch.OutOfMemoryError: CUDA out of memory\. Tried to allocate \S+ [MG]iB\. "
    message += r"GPU 0 has a total capacity of 79\.11 GiB of which \S+ [MG]iB is free\."
    assert re.search(message, run.stderr), run.stderr
