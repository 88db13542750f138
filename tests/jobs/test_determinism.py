"""The same job gives the same prediction, byte for byte, in any order of the machine's threads and processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.parallel_launch import EXAMPLES, maya_torchrun

from rank_runtime.build import Build

RANKS = 4

# How much the ranks hold of 64 MiB without a wait: after the device is done, and after another tenth of a second of the
# rank's time, each time with the next collective. A torch without watchdogs polls at every call.
UNWAITED = """
import os, time, torch, torch.distributed as dist
from pathlib import Path

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
torch.cuda.synchronize()
before = torch.cuda.memory_allocated()
dist.all_reduce(torch.empty(16 << 20, device="cuda"), async_op=True)
held = []
for pause in (0, 0, 0.2):
    torch.cuda.synchronize()
    time.sleep(pause)
    dist.all_reduce(torch.ones(1, device="cuda"))
    held.append(torch.cuda.memory_allocated() - before >> 20)
threads = [Path(file).read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
if dist.get_rank() == 0:
    print("pt_nccl_watchdg" in threads, held)
dist.destroy_process_group()
"""

# Two events behind a collective without a wait, polled in turn, and a group that ends before its collective.
ASKED = """
import os, torch, torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.empty(16 << 20, device="cuda"))
events = [torch.cuda.Event(), torch.cuda.Event()]
for event in events:
    event.record()
while not all([event.query() for event in events]):
    pass
dist.all_reduce(torch.empty(16 << 20, device="cuda"), async_op=True)
dist.destroy_process_group()
"""

# The allocator takes back memory that another stream used when an event on that stream is past.
OTHER_STREAM = """
import os, torch, torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
other = torch.cuda.Stream()


def active():
    return torch.cuda.memory_stats()["active_bytes.all.current"]


def let_go():
    used = torch.empty(16 << 20, device="cuda")
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        used.record_stream(other)
        dist.all_reduce(used)


before = active()
held = []
for waits in (False, True):
    let_go()
    if waits:
        other.synchronize()
    small = torch.empty(1, device="cuda")  # the allocator looks for memory to reclaim
    held.append(active() - before >> 20)
    del small
if dist.get_rank() == 0:
    print(held)
dist.destroy_process_group()
"""


def printed(folder: Path, program: str) -> str:
    script = folder / "program.py"
    script.write_text(program, encoding="utf-8")
    launched = maya_torchrun(folder, 2, script)
    assert launched.exit_code == 0, launched.output
    return launched.stdout.strip()


def outcome(folder: Path, example: str, *options: str) -> dict[str, object]:
    """The prediction, and the bytes of all files that it wrote."""
    launched = maya_torchrun(folder, RANKS, EXAMPLES / f"{example}.py", options=options)
    assert launched.exit_code == 0, launched.output
    out = folder / "out"
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    traces = [*sorted((out / "traces").iterdir()), out / "cluster_trace.json.gz"]
    return {"prediction": summary["prediction"]} | {file.name: file.read_bytes() for file in traces}


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "example", ["ddp", "fsdp1", *(pytest.param(name, marks=slow) for name in ("pipeline", "zero"))]
)
def test_an_example_gives_the_same_bytes_twice(
    build: Build, tmp_path_factory: pytest.TempPathFactory, example: str
) -> None:
    once = outcome(tmp_path_factory.mktemp("once"), example)
    again = outcome(tmp_path_factory.mktemp("again"), example, "--schedule-seed", "5")
    assert once.keys() == again.keys()
    assert once["prediction"] == again["prediction"]
    assert [name for name in once if once[name] != again[name]] == []


def test_tensors_of_unawaited_collectives_are_freed_at_the_watchdogs_poll(build: Build, tmp_path: Path) -> None:
    assert printed(tmp_path, UNWAITED) in ("True [64, 64, 0]", "False [0, 0, 0]")


def test_tensors_used_by_another_stream_are_freed_when_the_host_has_seen_its_end(build: Build, tmp_path: Path) -> None:
    assert printed(tmp_path, OTHER_STREAM) == "[64, 0]"


def test_polling_an_event_terminates(build: Build, tmp_path: Path) -> None:
    printed(tmp_path, ASKED)
