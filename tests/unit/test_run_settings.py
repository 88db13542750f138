"""run.json: the settings of a run round-trip, can be changed for a replay, and are refused if contradictory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from maya.devices import DeviceError, flattened, load_device
from maya.hosts import HostError, load_host
from maya.replay.run_settings import (
    NO_COSTS,
    HostCosts,
    RunSettings,
    SettingsError,
    nccl_variables,
)
from maya.trace import RecordKind
from netmodel.cluster import ClusterError, cluster_path, load_cluster


def settings(**fields: object) -> RunSettings:
    given = {"world_size": 16, "ranks_per_node": 8, "gpu": "h100", "cluster": "dgx-h100", "host": NO_COSTS, **fields}
    return RunSettings(**given).with_host()  # type: ignore[arg-type]


def test_settings_round_trip_through_a_file(tmp_path: Path) -> None:
    saved = settings(
        network="flow",
        nccl={"NCCL_ALGO": "Ring"},
        changes={"node.nic_rate": "200Gbps", "power": "500W", "host.op": "5us"},
        packs=("/a.npz",),
        clock="wall",
        script="train.py",
        options={"tokens_per_step": 4096},
    )
    saved.save(tmp_path)
    assert RunSettings.load(tmp_path) == saved
    before = (tmp_path / "run.json").read_bytes()
    RunSettings.load(tmp_path).save(tmp_path)
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 2}, "has version 2; this Maya reads version 1"),
        ({"netwrok": "flow"}, 'unknown key "netwrok" (did you mean network?)'),
        ({"world_size": "8"}, "world_size is '8'"),
        ({"world_size": True}, "world_size is True"),
        ({"host": {"op": 1}}, "calls is None"),
        ({"host": {"calls": {"kernle": 1}}}, 'unknown key "calls.kernle" (did you mean kernel?)'),
        ({"host": {"calls": {}, "op": -1}}, "op is -1; expected whole nanoseconds"),
    ],
)
def test_a_malformed_run_file_is_refused(tmp_path: Path, change: Mapping[str, object], complaint: str) -> None:
    settings().save(tmp_path)
    content = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**content, **change}))
    with pytest.raises((SettingsError, HostError)) as raised:
        RunSettings.load(tmp_path)
    assert complaint in str(raised.value)
    assert str(tmp_path / "run.json") in str(raised.value)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="give the folder of a run"):
        RunSettings.load(tmp_path)


def test_changes_apply_to_their_settings() -> None:
    changed = settings(changes={"node.nic_rate": "200Gbps", "memory_bandwidth": "4TB/s", "host.calls.kernel": "7us"})
    assert changed.load_cluster().nic_rate == 25 * 10**9
    assert changed.device().memory_bandwidth == 4 * 10**12
    assert changed.host.calls[RecordKind.KERNEL] == 7000
    assert changed.host.op == settings().host.op


def test_a_run_can_be_moved() -> None:
    ran = settings(changes={"node.nic_rate": "200Gbps", "memory_bandwidth": "4TB/s", "host.op": "1us"})
    elsewhere = ran.changed(gpu="b200")
    assert elsewhere.device() == load_device("b200")
    assert elsewhere.load_cluster().nic_rate == 25 * 10**9
    assert (elsewhere.host.op, elsewhere.host.overlap) == (1000, 1000 * 16 // load_device("b200").sm_count)
    assert ran.changed(cluster="dgx-a100").load_cluster() == load_cluster("dgx-a100")
    assert ran.changed(host_time="zero").host == HostCosts(0, 0, 0, 0, {}, 1000 * 16 // 132)
    assert ran.changed(changes={"host.op": "2us"}).host.op == 2000
    assert ran.changed(changes={"host.scale": "1.2"}).host.scale == 1200
    assert ran.changed(nccl={"NCCL_ALGO": "Ring"}, network="flow").host == ran.host
    assert ran.changed() == ran


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"node.nic_rat": "200Gbps"}, 'unknown key "node.nic_rat" (did you mean nic_rate'),
        ({"memry": "1GiB"}, 'unknown key "memry" (did you mean memory'),
        ({"host.opp": "1us"}, 'unknown key "opp" (did you mean op?)'),
        ({"host.calls.kernels": "1us"}, 'unknown key "calls.kernels" (did you mean kernel?)'),
        ({"host.op": "7"}, "op: 7 has no unit"),
        ({"host.overlap_sms": "1000"}, "expected a whole number up to 132"),
        ({"host.scale": "1.2x"}, "scale is '1.2x'; expected a factor, e.g. 1.2"),
        ({"host.scale": "0"}, "expected a factor, e.g. 1.2"),
    ],
)
def test_contradictory_changes_are_refused(changes: Mapping[str, str], complaint: str) -> None:
    with pytest.raises((ClusterError, DeviceError, HostError)) as raised:
        settings().changed(changes=changes)
    assert complaint in str(raised.value)


def test_a_cluster_file_may_set_host_costs(tmp_path: Path) -> None:
    preset = cluster_path("dgx-h100")
    file = tmp_path / "mine.toml"
    file.write_text(preset.read_text() + '\n[host]\nop = "3us"\n[host.calls]\nkernel = "9us"\n')
    costs = settings(cluster=str(file)).host
    reference = load_host("reference", load_device("h100"))
    assert (costs.op, costs.calls[RecordKind.KERNEL], costs.wake) == (3000, 9000, reference.wake)
    assert settings(cluster=str(file), changes={"host.op": "4us"}).host.op == 4000
    file.write_text(preset.read_text() + '\n[host]\nopp = "3us"\n')
    with pytest.raises(HostError, match=r"\[host\] of the cluster .*mine.toml: unknown key \"opp\""):
        settings(cluster=str(file))


def test_a_host_file_needs_only_the_differences(tmp_path: Path) -> None:
    file = tmp_path / "slow.toml"
    file.write_text('name = "slow"\nop = "50us"\n')
    device = load_device("h100")
    assert load_host(str(file), device).op == 50_000
    assert load_host(str(file), device).calls == load_host("reference", device).calls


def test_costs_for_the_ranks_side_name_every_kind_of_call() -> None:
    text = settings().host.text()
    assert text.startswith("op=")
    keys = dict(part.split("=") for part in text.split(";"))
    assert keys["overlap"] == "121"
    assert int(keys["kernel"]) > 0
    assert set(keys) - {"op", "latency", "wake", "clock_read", "overlap"} == {
        kind.name.lower() for kind in settings().host.calls
    }


def test_only_variables_that_change_the_prediction_are_kept() -> None:
    environment = {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO", "HOME": "/", "NCCL_PROTO": " "}
    assert nccl_variables(environment) == {"NCCL_ALGO": "Ring"}


def test_a_gpus_file_stands_alone_when_it_is_flattened(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('based_on = "h100"\nmemory = "40GiB"\npower = "300W"\n')
    (tmp_path / "mine.toml").write_text('based_on = "base.toml"\npower = "350W"\nname = "Mine"\n')
    text = flattened(str(tmp_path / "mine.toml"))
    assert text is not None
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine.toml").write_text(text)
    assert load_device(str(tmp_path / "copy" / "mine.toml")) == load_device(str(tmp_path / "mine.toml"))
    assert flattened("h100") is None
