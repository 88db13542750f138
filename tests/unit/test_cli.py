"""The `maya` command, except for `maya doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from maya.cli.main import main
from maya.devices import device_names
from maya.hosts import host_names
from maya.version import __version__
from netmodel.cluster import cluster_names, cluster_path
from rank_runtime.variables import RANK_VARIABLES, SETUP_VARIABLES


def maya(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_version_is_printed() -> None:
    assert maya("--version").output == f"maya, version {__version__}\n"


def test_gpus_lists_the_catalogue_with_figures() -> None:
    title, *lines = maya("gpus").output.splitlines()
    assert title.split() == ["gpu", "compute", "SMs", "memory", "bandwidth", "fp16", "NVLink", "name"]
    assert [line.split()[0] for line in lines] == device_names()
    [h100] = [line for line in lines if line.startswith("h100 ")]
    assert " ".join(h100.split()) == "h100 sm 9.0 132 79.1 GiB 3.352 TB/s 989 TFLOPS 450 GB/s NVIDIA H100 80GB HBM3"


def test_clusters() -> None:
    title, *lines = maya("clusters").output.splitlines()
    assert title.startswith("cluster ")
    assert [line.split()[0] for line in lines] == cluster_names()
    assert maya("net", "show").output == maya("clusters").output


def test_one_cluster() -> None:
    assert maya("clusters", "dgx-h100").output == cluster_path("dgx-h100").read_text(encoding="utf-8")
    assert 'unknown cluster "dgx"' in maya("clusters", "dgx").output


def test_hosts() -> None:
    title, *lines = maya("hosts").output.splitlines()
    assert title.startswith("host ")
    assert [line.split()[0] for line in lines] == host_names()


def test_one_host() -> None:
    assert "calls.kernel                      3.6 us\n" in maya("hosts", "reference").output
    assert 'unknown host "refrence" (did you mean reference?)' in maya("hosts", "refrence").output


def test_gpus_describes_one_gpu() -> None:
    output = maya("gpus", "v100").output
    assert "Tesla V100-SXM2-32GB" in output
    assert "34,089,730,048" in output
    assert "bf16" not in output


def test_an_unknown_gpu_is_refused() -> None:
    result = maya("gpus", "h10")
    assert result.exit_code == 1
    assert result.output.startswith('Error: unknown GPU "h10" (did you mean h100')


def test_every_variable_is_listed() -> None:
    lines = maya("env", "--all").output.splitlines()
    assert [line.split()[0] for line in lines] == [variable.name for variable in (*RANK_VARIABLES, *SETUP_VARIABLES)]


def test_variables_that_maya_sets_are_not_for_users() -> None:
    listed = {line.split()[0] for line in maya("env").output.splitlines()}
    assert {"MAYA_COMPUTE", "MAYA_KEPT_BYTES", "MAYA_CACHE"} <= listed
    assert not {"MAYA_COORDINATOR_SECRET", "MAYA_GPU_PROPERTIES", "MAYA_ZMQ", "MAYA_FAULTS"} & listed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere.trace"], "'nowhere.trace' does not exist"),
        ([__file__], "is not a trace of Maya"),
        (["--kind", "kernels", __file__], "no records of kind 'kernels'"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(words: list[str], expected: str) -> None:
    result = maya("trace", "show", *words)
    assert result.exit_code != 0
    assert expected in result.output.replace(str(Path(__file__)), "FILE")
