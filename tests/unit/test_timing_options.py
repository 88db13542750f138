"""Options of maya-torchrun about time: their meaning, and contradictions between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from maya.devices import load_device
from maya.launcher import main
from maya.launcher.arguments import fitting_cluster, parse
from netmodel.cluster import load_cluster
from rank_runtime.build import Build


def test_defaults_are_the_virtual_clock_and_the_host_model() -> None:
    timing = parse(["train.py"], {}).timing
    assert (timing.clock, timing.host_time, timing.network, timing.timeline) == ("virtual", "model", "analytic", True)
    assert (timing.changes, timing.results, timing.packs) == ({}, {}, ())


def test_without_traces_the_clock_is_the_walls() -> None:
    timing = parse(["--no-trace", "train.py"], {}).timing
    assert (timing.clock, timing.timeline) == ("wall", False)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--clock", "virtual", "--no-trace"], "--clock virtual and --no-trace exclude each other"),
        (["--network", "flow", "--no-timeline"], "--network and --no-timeline exclude each other"),
        (["--price-per-gpu-hour", "2", "--no-trace"], "--price-per-gpu-hour and --no-trace exclude each other"),
        (["--host", "reference", "--host-time", "zero"], "--host reference and --host-time zero exclude each other"),
        (["--host-time", "measured", "--no-trace"], "--host-time measured and --no-trace exclude each other"),
        (["--set", "host.op"], "expected KEY=VALUE"),
        (
            ["--set", "host.op=1us", "--set", "host.op=2us"],
            "--set host.op=1us and --set host.op=2us exclude each other",
        ),
        (["--trace-ranks", "first"], "expected ranks, e.g. 0,8-15, or all, or none"),
        (["--tokens-per-step", "0"], "not a whole number of at least 1"),
        (["--price-per-gpu-hour", "cheap"], "not a price"),
        (
            ["--cluster", "dgx-h100", "--set", "node.nik_rate=1Gbps"],
            'unknown key "node.nik_rate" (did you mean nic_rate',
        ),
    ],
)
def test_contradictory_options_are_refused(
    words: Sequence[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*words, "train.py"], {})
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--set", "host.opp=1us"], 'unknown key "opp" (did you mean op?)'),
        (["--set", "memry=1GiB"], 'unknown key "memry"'),
        (["--set", "node.nik_rate=1Gbps"], 'unknown key "node.nik_rate"'),
        (["--host", "nowhere"], 'unknown host "nowhere"; the catalogue has: dgx-a100, reference'),
        (["--pack", "none.npz"], "--pack none.npz: no such file"),
    ],
)
def test_unknown_names_and_keys_are_refused(
    build: Build, words: Sequence[str], complaint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('ran')")
    assert main(["--out", str(tmp_path / "run"), *words, str(script)]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert complaint in printed.err
    assert list(tmp_path.iterdir()) == [script], "nothing is left behind"


@pytest.mark.parametrize(
    ("gpu", "cluster"),
    [("h100", "dgx-h100"), ("b200", "dgx-b200"), ("gb200", "gb200-nvl72"), ("l40s", "pcie-box"), ("a40", "pcie-box")],
)
def test_without_a_cluster_the_one_of_the_gpu_is_assumed(gpu: str, cluster: str) -> None:
    assert fitting_cluster(load_device(gpu)) == cluster
    assert parse(["--nproc", "16", "--gpu", gpu, "train.py"], {}).ranks_per_node == load_cluster(cluster).gpus_per_node


def test_a_gpu_file_gets_the_cluster_of_its_base(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('based_on = "a100-40"\nmemory = "60GiB"\n')
    assert fitting_cluster(load_device(str(file))) == "dgx-a100"
