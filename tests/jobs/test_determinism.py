"""The same job gives the same prediction, byte for byte, in any order of the machine's threads and processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.parallel_launch import EXAMPLES, maya_torchrun

from rank_runtime.build import Build

RANKS = 4

# Rank 0 prints what each function returns. The group ends while its last collective is still unawaited.
PROGRAM = '''
import ctypes, os, threading, time, torch, torch.distributed as dist
from pathlib import Path


def held_without_a_wait():
    """How much the rank holds of 64 MiB of a collective without a wait: twice when the device is done, and once after
    another tenth of a second of the rank's time, each time with the next collective."""
    before = torch.cuda.memory_allocated()
    dist.all_reduce(torch.empty(16 << 20, device="cuda"), async_op=True)
    held = []
    for pause in (0, 0, 0.2):
        torch.cuda.synchronize()
        time.sleep(pause)
        dist.all_reduce(torch.ones(1, device="cuda"))
        held.append(torch.cuda.memory_allocated() - before >> 20)
    threads = [Path(file).read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    return "pt_nccl_watchdg" in threads, held


def held_for_another_stream():
    """How much the allocator keeps of 64 MiB that another stream used: before and after the host waits for it."""
    other = torch.cuda.Stream()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    held = []
    for waits in (False, True):
        used = torch.empty(16 << 20, device="cuda")
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            used.record_stream(other)
            dist.all_reduce(used)
        del used
        if waits:
            other.synchronize()
        small = torch.empty(1, device="cuda")  # the allocator looks for memory to reclaim
        held.append(torch.cuda.memory_stats()["active_bytes.all.current"] - before >> 20)
        del small
    return held


def polled_in_turn():
    """Polls two events behind a collective, until both are past."""
    dist.all_reduce(torch.empty(16 << 20, device="cuda"))
    events = [torch.cuda.Event(), torch.cuda.Event()]
    for event in events:
        event.record()
    while not all([event.query() for event in events]):
        pass
    return "done"


def polled_by_a_watchdog_that_ends():
    """A thread waits once, as a watchdog does, and then polls a collective without waiting, until the first of three
    queries finds it complete: after at most ten polls?"""
    polls = []

    def poll():
        libc = ctypes.CDLL(None)
        libc.prctl(15, b"pt_nccl_watchdg", 0, 0, 0)  # PR_SET_NAME
        condition, mutex, now = (ctypes.create_string_buffer(64) for _ in range(3))
        libc.clock_gettime(0, now)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_cond_timedwait(condition, mutex, now)
        libc.pthread_mutex_unlock(mutex)
        collective_is_queued.wait()
        while True:
            polls.append([event.query() for _ in range(3)])
            if polls[-1][0]:
                break

    collective_is_queued = threading.Event()
    watchdog = threading.Thread(target=poll)
    watchdog.start()
    dist.all_reduce(torch.empty(16 << 20, device="cuda"))
    event = torch.cuda.Event()
    event.record()
    dist.barrier()
    collective_is_queued.set()
    watchdog.join()
    return len(polls) <= 10


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
torch.cuda.synchronize()
for program in (held_without_a_wait, held_for_another_stream, polled_in_turn, polled_by_a_watchdog_that_ends):
    result = program()
    if dist.get_rank() == 0:
        print(f"{program.__name__}: {result}", flush=True)
dist.all_reduce(torch.empty(16 << 20, device="cuda"), async_op=True)
dist.destroy_process_group()
'''


@pytest.fixture(scope="module")
def printed(build: Build, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the functions of PROGRAM returned, by their names."""
    folder = tmp_path_factory.mktemp("program")
    script = folder / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    launched = maya_torchrun(folder, 2, script)
    assert launched.exit_code == 0, launched.output
    return dict(line.split(": ", 1) for line in launched.stdout.splitlines())


def outcome(folder: Path, example: str, *options: str) -> dict[str, object]:
    """The prediction, and the bytes of all files that it wrote."""
    launched = maya_torchrun(folder, RANKS, EXAMPLES / f"{example}.py", options=options)
    assert launched.exit_code == 0, launched.output
    out = folder / "out"
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    traces = [*sorted((out / "traces").iterdir()), out / "cluster_trace.json.gz"]
    return {"prediction": summary["prediction"]} | {file.name: file.read_bytes() for file in traces}


@pytest.mark.parametrize(
    "example", ["fsdp1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp", "pipeline", "zero"))]
)
def test_an_example_gives_the_same_bytes_twice(
    build: Build, tmp_path_factory: pytest.TempPathFactory, example: str
) -> None:
    once = outcome(tmp_path_factory.mktemp("once"), example)
    again = outcome(tmp_path_factory.mktemp("again"), example, "--schedule-seed", "5")
    assert once.keys() == again.keys()
    assert once["prediction"] == again["prediction"]
    assert [name for name in once if once[name] != again[name]] == []


def test_tensors_of_unawaited_collectives_are_freed_at_the_watchdogs_poll(printed: dict[str, str]) -> None:
    # A torch without watchdogs polls at every call.
    assert printed["held_without_a_wait"] in ("(True, [64, 64, 0])", "(False, [0, 0, 0])")


def test_tensors_used_by_another_stream_are_freed_when_the_host_has_seen_its_end(printed: dict[str, str]) -> None:
    assert printed["held_for_another_stream"] == "[64, 0]"


def test_polling_an_event_terminates(printed: dict[str, str]) -> None:
    assert printed["polled_in_turn"] == "done"


def test_a_watchdog_that_ends_finds_collectives_complete(printed: dict[str, str]) -> None:
    assert printed["polled_by_a_watchdog_that_ends"] == "True"
