"""--host-time measured: the step has the processor time of the program, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.parallel_launch import maya_torchrun
from helpers.recorded_run import maya

from maya.replay.run_settings import RunSettings
from maya.replay.simulate import simulate
from maya.results import conclude

MS = 1_000_000


# ---- a script ----

BURNT_MS = 2
LAYERS = 4
SCRIPT = f"""
import ctypes, threading, time, torch

LIBRARY = ctypes.CDLL(None)  # Python's own clocks tell virtual time

def used_ns():
    now = (ctypes.c_int64 * 2)()
    LIBRARY.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID, now)
    return now[0] * 1_000_000_000 + now[1]

def burn(milliseconds):
    end = used_ns() + milliseconds * 1_000_000
    while used_ns() < end:
        pass

class Slow(torch.nn.Linear):
    def forward(self, x):
        burn({BURNT_MS})
        return torch.relu(super().forward(x))

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        burn(30)  # in another process
        return torch.zeros(256)

def beside():
    while not over:
        burn(1)
        time.sleep(0.001)

model = torch.nn.Sequential(*(Slow(256, 256) for _ in range({LAYERS}))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
one = torch.ones((), device="cuda")
over = False
other = threading.Thread(target=beside)
other.start()
for batch in torch.utils.data.DataLoader(Items(), batch_size=1, num_workers=1, pin_memory=True):
    loss = model(batch.cuda(non_blocking=True)).sum()
    burn({BURNT_MS})
    loss.backward(one)  # without it, the first kernel of backward is launched by this thread
    optimizer.step()
    optimizer.zero_grad()
over = True
other.join()
"""


@pytest.fixture(scope="module")
def measured_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    script = folder / "slow.py"
    script.write_text(SCRIPT, encoding="utf-8")
    launched = maya_torchrun(folder, 1, script, options=("--host-time", "measured"))
    assert launched.exit_code == 0, launched.output
    assert "host time: measured" in launched.output
    return folder / "out"


def test_the_step_includes_python_time_and_excludes_other_threads(measured_run: Path) -> None:
    settings = RunSettings.load(measured_run)
    measured = conclude(simulate(measured_run)).step_ns
    modelled = conclude(simulate(measured_run, settings.changed(host_time="model"))).step_ns
    burnt = (LAYERS + 1) * BURNT_MS * MS
    assert modelled < burnt / 4
    # Had the worker's time been counted, or the other thread's, it would be four times as much at least.
    assert 0.9 * burnt < measured - modelled < 2.5 * burnt
    slower = conclude(simulate(measured_run, settings.changed(changes={"host.scale": "2"}))).step_ns
    assert 1.8 * burnt < slower - modelled


def test_time_before_backward_is_counted_before_it(measured_run: Path) -> None:
    timeline = simulate(measured_run)
    part = timeline.groups[0]
    threads = part.rank_class.trace.records["thread"][part.rank_class.records]
    begins = np.flatnonzero((threads[1:] != 1) & (threads[:-1] == 1)) + 1
    assert len(begins) == 6
    gaps = part.launched_ns[begins, 0] - part.launched_ns[begins - 1, 0]
    assert (gaps > 0.9 * BURNT_MS * MS).all()


def test_a_replay_is_the_same_and_can_leave_out_measured_times(measured_run: Path) -> None:
    summary = json.loads((measured_run / "summary.json").read_text(encoding="utf-8"))
    assert summary["prediction"]["host_time"] == "measured"
    assert json.loads((measured_run / "run.json").read_text(encoding="utf-8"))["host_time"] == "measured"
    same = maya("whatif", measured_run)
    assert "the same timeline" in same.output
    assert "and the same prediction as in summary.json" in same.output
    other = maya("whatif", measured_run, "--host-time", "model")
    assert other.exit_code == 0
    assert "host time" in other.output
