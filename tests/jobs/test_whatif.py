"""`maya whatif`: a recorded run replayed on other settings, and the comparison that is printed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.recorded_run import maya, record_once

from maya.replay.run_settings import NO_COSTS, RunSettings
from maya.whatif.changes import WhatIfOptions, apply_options
from netmodel.cluster import cluster_path

Table = dict[str, Any]


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_once(tmp_path_factory.getbasetemp())


@pytest.fixture
def own_run(recorded_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(recorded_run, tmp_path / "run"))


def both(run: Path, *options: str) -> tuple[Table, Table]:
    """What --json says of the recorded run and of the replay."""
    result = maya("whatif", run, "--json", *options)
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    return document["recorded"], document["what_if"]


def error_of(run: Path, *options: str) -> str:
    result = maya("whatif", run, *options)
    assert result.exit_code == 1, result.output
    return result.output


def test_replay_on_the_same_settings_is_the_same(recorded_run: Path) -> None:
    result = maya("whatif", recorded_run)
    assert result.exit_code == 0, result.output
    assert "the same timeline" in result.output
    assert re.search(r"step time .* same", result.output)
    assert "but summary.json" not in result.output
    assert result.output == maya("whatif", recorded_run).output


def test_naming_the_recorded_hardware_changes_nothing(recorded_run: Path) -> None:
    result = maya("whatif", recorded_run, "--gpu", "h100", "--network", "analytic", "--set", "node.nic_rate=400Gbps")
    assert "the same timeline" in result.output


def test_another_gpu_changes_the_compute_time(recorded_run: Path) -> None:
    result = maya("whatif", recorded_run, "--gpu", "v100")
    assert "NVIDIA H100 80GB HBM3 → Tesla V100" in result.output
    assert "the cluster stays DGX H100" in result.output
    recorded, what_if = both(recorded_run, "--gpu", "v100")
    assert what_if["class_ns"]["gemm"] > 2 * recorded["class_ns"]["gemm"]
    assert what_if["memory_capacity_bytes"] < recorded["memory_capacity_bytes"]


def test_another_cluster_brings_its_gpu_along(recorded_run: Path) -> None:
    result = maya("whatif", recorded_run, "--cluster", "dgx-a100")
    assert "→ NVIDIA A100" in result.output
    assert "DGX H100, NDR InfiniBand → DGX A100" in result.output


def test_a_cluster_file_with_the_name_of_a_preset_is_another_cluster(recorded_run: Path, tmp_path: Path) -> None:
    text = cluster_path("dgx-h100").read_text(encoding="utf-8")
    (tmp_path / "slow.toml").write_text(text.replace('"450GB/s"', '"45GB/s"'), encoding="utf-8")
    result = maya("whatif", recorded_run, "--cluster", tmp_path / "slow.toml")
    assert f"dgx-h100 → {tmp_path / 'slow.toml'}" in result.output
    assert re.search(r"hidden communication .* \+", result.output)


@pytest.mark.parametrize(
    ("before", "ranks", "per_node", "after", "found"),
    [
        ("dgx-h100", 16, 8, "dgx-b200", 8),
        ("dgx-h100", 16, 8, "gb200-nvl72", 4),
        ("dgx-h100", 8, 8, "gb200-nvl72", 4),
        ("gb200-nvl72", 16, 4, "dgx-h100", 8),  # nodes were full, and are
        ("dgx-h100", 16, 2, "dgx-b200", 2),  # they were not, on purpose
        ("dgx-h100", 2, 2, "gb200-nvl72", 2),
    ],
)
def test_ranks_fill_the_nodes_of_another_cluster(
    before: str, ranks: int, per_node: int, after: str, found: int
) -> None:
    settings = RunSettings(ranks, per_node, "h100", before, NO_COSTS)
    changed = apply_options(settings, WhatIfOptions(cluster=after))
    assert changed.settings.ranks_per_node == found
    assert any("ranks per node" in note for note in changed.notes) == (found != per_node)


def test_time_classes_add_up_to_the_step(recorded_run: Path) -> None:
    for figures in both(recorded_run, "--slow-rank", "1:1.5"):
        assert sum(figures["class_ns"].values()) == pytest.approx(figures["step_ns"], rel=0.02)


def test_a_slow_rank_makes_the_other_wait(recorded_run: Path) -> None:
    recorded, what_if = both(recorded_run, "--slow-rank", "1:3")
    assert what_if["step_ns"] > recorded["step_ns"]
    assert what_if["class_ns"]["waiting"] > recorded["class_ns"]["waiting"]
    assert "kernels of rank 1  1 × → 3 ×" in maya("whatif", recorded_run, "--slow-rank", "1:3").output


def test_single_keys_can_be_changed(recorded_run: Path) -> None:
    recorded, slower = both(recorded_run, "--set", "memory_bandwidth=300GB/s", "--set", "host.op=40us")
    assert slower["step_ns"] > 2 * recorded["step_ns"]
    result = maya("whatif", recorded_run, "--set", "host.op=40us", "--set", "node.gpu_link_rate=20GB/s")
    assert re.search(r"host\.op +\S+ us → 40us", result.output)
    assert re.search(r"node\.gpu_link_rate +450GB/s → 20GB/s", result.output)


def test_a_host_that_takes_no_time_shortens_the_step(recorded_run: Path) -> None:
    recorded, what_if = both(recorded_run, "--host-time", "zero")
    assert what_if["step_ns"] < recorded["step_ns"]
    assert what_if["class_ns"]["host_bound"] == 0


def test_host_time_that_was_not_measured_is_refused(recorded_run: Path) -> None:
    result = maya("whatif", recorded_run, "--host-time", "measured")
    assert result.exit_code == 1
    assert "run the job with --host-time measured" in result.output


def test_nccl_settings_and_the_flow_network_can_be_chosen(recorded_run: Path) -> None:
    result = maya("whatif", recorded_run, "--algo", "allreduce:Tree", "--proto", "Simple", "--network", "flow")
    assert re.search(r"NCCL_ALGO +not set → allreduce:Tree", result.output)
    assert re.search(r"NCCL_PROTO +not set → Simple", result.output)
    assert re.search(r"network +analytic → flow", result.output)


def test_a_faulty_link_slows_the_network(recorded_run: Path) -> None:
    recorded, what_if = both(recorded_run, "--fault", "node0/gpu0=10%")
    moved = ("communication", "waiting")
    assert sum(what_if["class_ns"][of] for of in moved) > sum(recorded["class_ns"][of] for of in moved)


def test_memory_that_does_not_fit_is_reported(recorded_run: Path) -> None:
    options = ("--set", "memory=600MiB", "--set", "context=400MiB")
    result = maya("whatif", recorded_run, *options)
    assert "DOES NOT FIT" in result.output
    assert "out-of-memory" in result.output
    assert both(recorded_run, *options)[1]["memory_fits"] is False


def test_json_lists_the_differences(recorded_run: Path) -> None:
    document = json.loads(maya("whatif", recorded_run, "--json", "--gpu", "b200").output)
    assert document["version"] == 1
    assert document["changes"] == [{"what": "GPU", "before": "NVIDIA H100 80GB HBM3", "after": "NVIDIA B200"}]
    for key in ("step_ns", "peak_memory_bytes"):
        assert document["difference"][key] == document["what_if"][key] - document["recorded"][key]
    gemm = [document[which]["class_ns"]["gemm"] for which in ("recorded", "what_if", "difference")]
    assert gemm[1] - gemm[0] == gemm[2] < 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpu", "h10"), "did you mean h100"),
        (("--cluster", "dgx-h200"), "unknown cluster"),
        (("--set", "node.nic_rat=1Gbps"), 'unknown key "node.nic_rat" (did you mean nic_rate'),
        (("--set", "nic_rate=1Gbps"), "did you mean node.nic_rate?"),
        (("--set", "memory_bandwith=1TB/s"), "did you mean memory_bandwidth"),
        (("--set", "nod.nic_rate=1Gbps"), 'no table "nod" (did you mean node?)'),
        (("--set", "host.opp=1us"), "did you mean op?"),
        (("--set", "host.op=5"), "has no unit"),
        (("--set", "memory_bandwidth"), "expected KEY=VALUE"),
        (("--set", "host.op=1us", "--set", "host.op=2us"), "exclude each other"),
        (("--slow-rank", "2:1.5"), "there is no rank 2; ranks are 0 to 1"),
        (("--slow-rank", "1"), "e.g. 17:1.3"),
        (("--slow-rank", "1:0"), "e.g. 17:1.3"),
        (("--slow-rank", "one:2"), "e.g. 17:1.3"),
        (("--algo", "rung"), "did you mean ring?"),
        (("--algo", "Tree"), "no algorithm/protocol available for all_gather"),
        (("--fault", "node7/nic0"), "nothing here has that name"),
        (("--fault", "node0/nic0=150%"), "not a part of a rate"),
    ],
)
def test_contradictory_changes_are_refused(recorded_run: Path, options: tuple[str, ...], said: str) -> None:
    output = error_of(recorded_run, *options)
    assert said in output
    assert output.startswith("Error: ")
    assert output.count("\n") == 1


def test_a_folder_that_is_no_run_is_refused(recorded_run: Path, tmp_path: Path) -> None:
    assert "no such folder" in error_of(tmp_path / "nothing")
    assert "is not the folder of a run" in error_of(tmp_path)
    assert "is a file" in error_of(recorded_run / "rank0.trace")
    (tmp_path / "rank0.trace").write_bytes((recorded_run / "rank0.trace").read_bytes())
    assert "no run.json" in error_of(tmp_path)


def test_a_run_without_traces_is_refused(own_run: Path) -> None:
    for trace in own_run.glob("*.trace"):
        trace.unlink()
    assert "no traces" in error_of(own_run)


def test_malformed_settings_are_refused(own_run: Path) -> None:
    settings = json.loads((own_run / "run.json").read_text(encoding="utf-8"))
    (own_run / "run.json").write_text(json.dumps({**settings, "wold_size": 2}), encoding="utf-8")
    assert 'unknown key "wold_size" (did you mean world_size?)' in error_of(own_run)


def test_a_trace_that_ends_before_the_first_step_is_refused(own_run: Path) -> None:
    """The other rank waits for it for ever: there are no steps to compare, rather than steps that take no time."""
    trace = own_run / "rank1.trace"
    data = trace.read_bytes()
    trace.write_bytes(data[: len(data) * 2 // 3])
    error = error_of(own_run, "--gpu", "b200")
    assert "no step was recorded to its end: the trace of rank 1 is cut short: the block at byte" in error


def test_a_file_that_is_no_trace_is_named(own_run: Path) -> None:
    (own_run / "rank1.trace").write_bytes(b"not a trace")
    error = error_of(own_run, "--gpu", "b200")
    assert "no step was recorded to its end: rank 1 is left out: " in error
    assert "rank1.trace is not a trace of Maya" in error
