"""The run folder holds all that a replay needs."""

from __future__ import annotations

from pathlib import Path

from helpers.script_run import MayaRun

from maya.replay.run_settings import RunSettings
from netmodel.cluster import cluster_path


def test_the_run_folder_has_all_inputs_of_a_replay(maya_run: MayaRun, tmp_path: Path) -> None:
    (tmp_path / "gpu-of-mine.toml").write_text('based_on = "h100"\nname = "Mine"\n')
    (tmp_path / "cluster-of-mine.toml").write_text(cluster_path("dgx-h100").read_text())
    (tmp_path / "host-of-mine.toml").write_text('op = "1us"\n')
    run = maya_run(
        "pass",
        *("--gpu", str(tmp_path / "gpu-of-mine.toml"), "--cluster", str(tmp_path / "cluster-of-mine.toml")),
        *("--host", str(tmp_path / "host-of-mine.toml"), "--network", "flow"),
        *("--set", "node.nic_rate=200Gbps", "--set", "host.wake=9us", "--price-per-gpu-hour", "2.5"),
        environment={"NCCL_ALGO": "Ring"},
    )
    assert run.exit_code == 0, run.output
    for file in tmp_path.glob("*-of-mine.toml"):
        file.unlink()
    settings = RunSettings.load(run.folder)
    assert settings.device().name == "Mine"
    assert settings.load_cluster().nic_rate == 25 * 10**9
    assert (settings.host.op, settings.host.wake) == (1000, 9000)
    assert (settings.network, settings.nccl) == ("flow", {"NCCL_ALGO": "Ring"})
    assert settings.options == {"price_per_gpu_hour": 2.5}
    assert settings.with_host().host == settings.host
