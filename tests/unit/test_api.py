"""The Python API: runs, predictions, comparisons, estimates, networks and traces."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
from helpers.training_traces import TrainingWriter

import maya
from maya.api.figures import PlainFigures
from maya.api.run import Run
from maya.replay.run_settings import NO_COSTS, RunSettings

RANKS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks: three steps, with an all-reduce in each."""
    found = tmp_path_factory.mktemp("run")
    for rank in range(RANKS):
        writer = TrainingWriter(rank)
        writer.join(1, range(RANKS))
        for _ in range(3):
            writer.batch()
            writer.allocate(1 << 20, segment=2 << 20)
            writer.reduce(1, count=1 << 20)
            writer.join_streams()
            writer.optimizer()
        writer.save(found)
    RunSettings(RANKS, RANKS, "h100", "dgx-h100", NO_COSTS, script="train.py").with_host().save(found)
    return found


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return maya.load(folder)


def python(code: str) -> str:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return ended.stdout.strip()


# ---- importing ----


def test_importing_maya_imports_nothing_heavy() -> None:
    loaded = "import sys, maya; print({'numpy', 'torch', 'pandas', 'click', 'zmq'} & set(sys.modules))"
    assert python(loaded) == "set()"


def test_every_public_name_exists() -> None:
    assert set(maya.__all__) <= set(dir(maya))
    for name in maya.__all__:
        assert getattr(maya, name) is not None


def test_trace_is_an_attribute() -> None:
    assert python("import maya; print(maya.trace.read.__name__)") == "read"


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'maya' has no attribute 'lode'"):
        maya.lode  # type: ignore[attr-defined]  # noqa: B018


# ---- runs ----


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such folder"):
        maya.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"is not the folder of a run: it has no run\.json"):
        maya.load(tmp_path)


def test_settings(run: Run) -> None:
    settings = run.settings
    assert (settings.gpu, settings.cluster, settings.world_size, settings.nodes) == ("h100", "dgx-h100", 2, 1)
    assert settings.to_dict()["script"] == "train.py"


def test_job_that_has_not_ended(run: Run) -> None:
    assert (run.summary, run.exit_code, run.hang, run.assumptions, run.logs) == (None, None, None, (), [])
    assert "not ended" in repr(run)


def test_summary_of_a_job(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    summary = {"exit_code": 3, "assumptions": [{"kind": "steps", "text": "no optimizer"}]}
    (copy / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    run = maya.load(copy)
    assert (run.exit_code, run.assumptions) == (3, ("no optimizer",))


def test_traces_of_a_run(run: Run) -> None:
    assert list(run.traces) == [0, 1]
    assert run.trace(1).header.rank == 1
    with pytest.raises(ValueError, match="has no trace of rank 7"):
        run.trace(7)


# ---- predictions ----


def test_steps(run: Run) -> None:
    steps = run.steps
    assert len(steps) == len(steps.lengths_ns) == 3
    assert run.step_time_ns == run.prediction.step_time_ns == steps.step_time_ns
    assert steps.step_time_ns in [steps.lengths_ns[step] for step in steps.measured]


def test_breakdown_adds_up_to_the_step_of_every_rank(run: Run) -> None:
    for figures, times in zip(run.ranks, run.breakdown.ranks, strict=True):
        assert sum(times.values()) == figures.step_time_ns
    assert run.breakdown["gemm"] > 0


def test_memory(run: Run) -> None:
    memory = run.memory
    assert memory.fits
    assert memory.peak_bytes == max(rank.total_bytes for rank in memory.ranks) < memory.capacity_bytes
    assert memory.ranks[0].allocated_bytes == 3 << 20


def test_collectives(run: Run) -> None:
    [reduce] = run.collectives
    assert (reduce.call, reduce.size_bytes, reduce.ranks, reduce.calls) == ("AllReduce", 4 << 20, 2, 2)
    assert reduce.mean_ns > 0
    assert reduce.bus_bytes_per_second > 10**9


def test_kernels_come_longest_first(run: Run) -> None:
    totals = [kernel.total_ns for kernel in run.kernels]
    assert totals == sorted(totals, reverse=True)
    assert sum(kernel.share for kernel in run.kernels) == pytest.approx(1, abs=1e-3)


def test_figures_are_plain(run: Run) -> None:
    """Only numbers, text and containers of them, so that JSON can hold them."""
    figures = [run.settings, run.steps, run.breakdown, run.memory, run.speed, *run.ranks, *run.collectives]
    for each in [*figures, *run.kernels]:
        assert is_dataclass(each)
        assert json.loads(json.dumps(each.to_dict())).keys() == {field.name for field in fields(each)}


def test_prediction_as_text_is_what_the_launcher_prints(run: Run) -> None:
    assert str(run.prediction).splitlines()[0].startswith("step       ")


def test_prediction_as_dict_is_that_of_the_summary(run: Run) -> None:
    document = json.loads(json.dumps(run.prediction.to_dict()))
    assert document["steps"]["median_ns"] == run.step_time_ns


def test_replay_on_the_same_settings_is_the_same(run: Run) -> None:
    again = run.predict(gpu="h100")
    assert again.changes == ()
    assert again.same_timeline(run.prediction)
    assert again.event_count == run.prediction.event_count > 0


def test_another_gpu(run: Run) -> None:
    other = run.predict(gpu="v100")
    assert other.settings.gpu == "v100"
    assert other.breakdown["gemm"] > run.breakdown["gemm"]
    assert other.changes[0] == ("GPU", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB")
    assert any("cluster stays" in note for note in other.notes)


def test_settings_by_mapping_and_by_text_are_the_same(run: Run) -> None:
    one = run.predict(set={"host.op": "40us"}, slow_ranks={1: 1.5})
    other = run.predict(set=["host.op=40us"], slow_ranks=["1:1.5"])
    assert one.step_time_ns == other.step_time_ns > run.step_time_ns
    assert one.changes == other.changes


def test_slow_ranks_by_range(run: Run) -> None:
    assert run.predict(slow_ranks={"0-1": 2}).breakdown["gemm"] > run.breakdown["gemm"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gpu": "h10"}, 'unknown GPU "h10"'),
        ({"slow_ranks": {7: 2.0}}, "there is no rank 7"),
        ({"set": {"nic_rate": "1Gbps"}}, "did you mean node.nic_rate"),
        ({"network": "slow"}, '"slow" is not a valid network'),
    ],
)
def test_settings_that_do_not_exist(run: Run, options: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        run.predict(**options)  # type: ignore[arg-type]


def test_compare(run: Run) -> None:
    compared = run.compare(run.predict(gpu="v100"))
    document = compared.to_dict()
    assert document["difference"]["step_ns"] == document["after"]["step_ns"] - document["before"]["step_ns"]
    assert compared.rows[0].name == "step time"
    assert "before" in str(compared).splitlines()[0]
    assert run.compare(run).to_dict()["difference"]["step_ns"] == 0


def test_report(run: Run, tmp_path: Path) -> None:
    file = run.write_report(tmp_path / "page.html")
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(OSError, match=r"nowhere/page\.html"):
        run.write_report(tmp_path / "nowhere" / "page.html")


# ---- pandas ----


def test_tables_of_a_run(run: Run) -> None:
    pytest.importorskip("pandas")
    assert run.steps.to_pandas()["length_ns"].tolist() == list(run.steps.lengths_ns)
    assert run.breakdown.to_pandas().loc[1, "gemm_ns"] == run.breakdown.ranks[1]["gemm"]
    assert run.memory.to_pandas()["total_bytes"].max() == run.memory.peak_bytes
    assert run.ranks.to_pandas().index.tolist() == [0, 1]
    assert run.collectives.to_pandas()["call"].tolist() == ["AllReduce"]
    assert len(run.kernels.to_pandas()) == len(run.kernels)


def test_table_of_a_comparison(run: Run) -> None:
    pytest.importorskip("pandas")
    table = run.compare(run.predict(gpu="v100")).to_pandas()
    assert table.loc["class_ns.gemm", "difference"] > 0


def test_tables_of_a_trace(run: Run) -> None:
    pytest.importorskip("pandas")
    trace = run.trace()
    records, ops = trace.to_pandas(), trace.ops_to_pandas()
    assert set(records["kind"]) >= {"library", "kernel", "collective"}
    assert "ncclAllReduce" in set(records["name"])
    assert not {"op", "annotation"} & set(records["kind"])
    assert (ops["name"] == "aten::mm").sum() == 6
    assert len(ops) == len(trace.ops)


def test_without_pandas_the_error_says_how_to_install_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        run.steps.to_pandas()


# ---- estimates ----


def test_estimate_of_an_op() -> None:
    found = maya.estimate("gemm", m=4096, n=4096, k=4096, gpu="h100")
    [kernel] = found.kernels
    assert found.time_ns == kernel.time_ns > found.bound_ns
    assert (kernel.limited_by, found.origin) == ("tensor cores", "model")
    assert kernel.flops == 2 * 4096**3


def test_estimate_of_an_op_with_several_kernels() -> None:
    found = maya.estimate("norm", rows=4096, columns=4096, backward=True, gpu="h100")
    assert found.time_ns == sum(kernel.time_ns for kernel in found.kernels)
    assert len(found.kernels) == 2


def test_estimate_without_a_dimension() -> None:
    with pytest.raises(ValueError, match="gemm needs --k"):
        maya.estimate("gemm", m=8, n=8, gpu="h100")
    with pytest.raises(ValueError, match="k is 0; give at least 1"):
        maya.estimate("gemm", m=8, n=8, k=0, gpu="h100")


def test_estimate_of_a_trace(run: Run) -> None:
    found = maya.estimate_trace(run.trace(), gpu="b200")
    assert found.total_ns == sum(kernel.total_ns for kernel in found.kernels) == sum(found.origin_ns.values())
    assert found.classes[0].total_ns == max(row.total_ns for row in found.classes)


def test_estimate_of_a_trace_from_an_unknown_gpu(run: Run) -> None:
    trace = run.trace()
    unknown = replace(trace, header=replace(trace.header, gpu="Another GPU"))
    with pytest.raises(ValueError, match='recorded on "Another GPU", which is no GPU of the catalogue'):
        maya.estimate_trace(unknown)


# ---- networks ----


def test_time_of_a_collective() -> None:
    network = maya.network("dgx-h100", gpus=64, environment={})
    found = network.time("all_reduce", "256M")
    assert (found.size_bytes, found.ranks, network.nodes) == (256 << 20, 64, 8)
    assert found.busbw_gb_per_s == pytest.approx(found.size_bytes / found.time_ns * 2 * 63 / 64)
    assert network.time("all_reduce", 256 << 20, members=range(8)).time_ns < found.time_ns


def test_one_node_is_the_default() -> None:
    assert len(maya.network("gb200-nvl72", environment={}).ranks) == 4


def test_changed_cluster_and_nccl_settings() -> None:
    usual = maya.network("dgx-h100", gpus=16, environment={}).time("all_reduce", "1G")
    slow = maya.network("dgx-h100", gpus=16, set={"node.nic_rate": "100Gbps"}, environment={}).time("all_reduce", "1G")
    ring = maya.network("dgx-h100", gpus=16, algo="Ring", environment={}).time("all_reduce", "1G")
    assert slow.time_ns > usual.time_ns
    assert ring.algorithm == "ring"


def test_bench_steps_as_nccl_tests_does() -> None:
    table = maya.network("dgx-h100", gpus=16, environment={}).bench("all_gather", max_size=1 << 10, dtype="bfloat16")
    assert [row.size_bytes for row in table] == [32, 64, 128, 256, 512, 1024]
    assert table[-1].count == 32


@pytest.mark.parametrize(
    ("operation", "size", "expected"),
    [
        ("allreduce", 8, "use one of all_reduce"),
        ("all_reduce", "8X", "is not a size"),
        ("all_reduce", -1, "not a size"),
    ],
)
def test_collectives_that_do_not_exist(operation: str, size: int | str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        maya.network("dgx-h100", environment={}).time(operation, size)


def test_members_outside_of_the_network() -> None:
    with pytest.raises(ValueError, match="ranks 0 to 7"):
        maya.network("dgx-h100", environment={}).time("all_reduce", 8, members=[0, 8])
    with pytest.raises(ValueError, match="not both"):
        maya.network("dgx-h100", gpus=8, members=[0, 1])


# ---- launching ----


def test_launch_refuses_options_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'host_tim' \(did you mean host_time"):
        maya.launch("train.py", cwd=tmp_path, host_tim="zero")
    with pytest.raises(TypeError, match="module is 'x'; it is True or False"):
        maya.launch("train.py", cwd=tmp_path, module="x")
    assert list(tmp_path.iterdir()) == []


def test_every_figure_is_frozen() -> None:
    for kind in PlainFigures.__subclasses__():
        assert kind.__dataclass_params__.frozen, kind  # type: ignore[attr-defined]
