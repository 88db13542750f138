"""Measurements in, parameters out: nccl-tests' output in its variants, CSV, and fits whose answer is known."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from maya.cli.main import main
from netmodel.calibration.fit import errors, fit_cluster, split
from netmodel.calibration.measurements import Measurement, MeasurementError, read_measurements
from netmodel.calibration.structure import NAMES, predictions, structure_of, to_vector
from netmodel.cluster import (
    Cluster,
    ClusterError,
    cluster_names,
    cluster_path,
    load_cluster,
)
from netmodel.cluster.parameters import ORIGINS, default_parameters, with_calibration

RANKS = "".join(
    f"#  Rank {rank:>2} Group  0 Pid {900 + rank} on {{host{rank // 4}}} device {rank % 4} [0x0{rank % 4}]\n"
    for rank in range(8)
)
NEW = """# nccl-tests version 2.17.1 nccl-headers=22902 nccl-library=22902
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
{ranks}#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    15.30    0.00    0.00      0    15.10    0.00    0.00      0
     1048576        262144     float     sum      -1    25.46   41.18   72.07    N/A    25.31   41.43   72.51    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 36.0
"""
OLD = """# nThread 1 nGpus 8 minBytes 32 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   7116 on   ndv4-a device  0 [0x00] A100-SXM4-40GB
#   Rank  1 Pid   7116 on   ndv4-a device  1 [0x00] A100-SXM4-40GB
#
#                                             out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
          32             8   float            34.30    0.00    0.00  0e+00    34.10    0.00    0.00  0e+00
"""
ALLTOALL = """$ ./build/alltoall_perf -b 16M -e 32M -f 2 -g 2
# Using devices
#  Rank  0 Group  0 Pid   1 on  a device  0 [0x07] NVIDIA H100
#  Rank  1 Group  0 Pid   2 on  b device  0 [0x07] NVIDIA H100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    16777216       2097152      half    none      -1    391.0   42.91   21.45      0    394.1   42.57   21.29    N/A
    33554432       4194304      half    none      -1      N/A     N/A     N/A    N/A    770.2   43.57   21.78    N/A
"""


def write(folder: Path, text: str, name: str = "log.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# Reading -------------------------------------------------------------------------------------------------------------


def test_output_of_current_nccl_tests_is_read(tmp_path: Path) -> None:
    found = read_measurements(write(tmp_path, NEW.replace("{ranks}", RANKS)))
    assert found == [
        Measurement("all_reduce", 8, 2, 8, 15.3, "float32"),
        Measurement("all_reduce", 2**20, 2, 8, 25.46, "float32"),
    ]


def test_output_of_old_nccl_tests_without_root_and_operation_is_read(tmp_path: Path) -> None:
    """Gatherings have no redop: the column is empty, and everything after it is one to the left."""
    path = write(tmp_path, OLD)
    assert read_measurements(path, operation="all_gather") == [Measurement("all_gather", 32, 1, 2, 34.3, "float32")]
    with pytest.raises(MeasurementError, match="--op all_reduce --ranks 8"):
        read_measurements(path)


def test_alltoall_output_with_missing_values_is_read(tmp_path: Path) -> None:
    assert read_measurements(write(tmp_path, ALLTOALL)) == [Measurement("all_to_all", 2**24, 2, 2, 391.0, "float16")]


def test_output_of_several_programs_in_one_file_is_read(tmp_path: Path) -> None:
    text = NEW.replace("{ranks}", RANKS) + NEW.replace("{ranks}", RANKS).replace("all_reduce_perf", "sendrecv_perf")
    operations = [each.operation for each in read_measurements(write(tmp_path, text))]
    assert operations == ["all_reduce", "all_reduce", "send_recv", "send_recv"]


def test_csv_is_read_with_columns_in_any_order(tmp_path: Path) -> None:
    text = (
        "size_bytes,time_us_oop,op,gpu,nodes,gpus_per_node,nranks,algo,proto,dtype\n"
        "1024,12.5,alltoall,H100,2,8,16,auto,,half\n"
        "2048,14,AllReduce,A100,1,8,8,Tree,LL,double\n"
        "4096,N/A,all_reduce,A100,1,8,8,,,float\n".replace("N/A", "")
    )
    path = tmp_path / "all.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert read_measurements(path) == [
        Measurement("all_to_all", 1024, 2, 16, 12.5, "float16"),
        Measurement("all_reduce", 2048, 1, 8, 14.0, "float64", "tree", "ll"),
    ]
    assert [each.ranks for each in read_measurements(path, where={"gpu": "A1"})] == [8]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("op,nranks,size_bytes,time_us\nall_reduce,8,1,1\n", "the header has no nodes"),
        ("op,nranks,nodes,size_bytes,time_us\nreduce_all,8,1,1,1\n", 'bad.csv:2: "reduce_all" is not an operation'),
        ("op,nranks,nodes,size_bytes,time_us\nall_reduce,eight,1,1,1\n", "bad.csv:2: invalid literal"),
        ("hello\n", "no measurements; expected nccl-tests' output, or CSV"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MeasurementError, match=re.escape(message)):
        read_measurements(write(tmp_path, text, "bad.csv"))


# Fitting -------------------------------------------------------------------------------------------------------------


def sweep(cluster: Cluster, noise: float, seed: int = 7) -> list[Measurement]:
    """What a cluster would measure: four operations, in and between nodes."""
    shapes = [(1, 2), (1, 4), (1, 8), (2, 16)]
    blank = [
        Measurement(operation, 2**power, nodes, ranks, 1.0)
        for operation in ("all_reduce", "all_gather", "all_to_all", "send_recv")
        for nodes, ranks in shapes
        for power in range(9, 34)
    ]
    factors = np.exp(np.random.default_rng(seed).normal(0, noise, len(blank)))
    return [
        replace(each, us=float(ns * factor / 1000))
        for each, ns, factor in zip(blank, predictions(cluster, blank), factors, strict=True)
    ]


@pytest.fixture(scope="module")
def machine() -> Cluster:
    """A cluster whose parameters are not those a fit begins with."""
    cluster = load_cluster("dgx-a100")
    parameters = default_parameters("ampere")
    return replace(
        cluster,
        parameters=replace(
            parameters,
            local_step=0.5,
            ll=replace(parameters.ll, launch_ns=9000.0, gpu_step_ns=900.0, gpu_efficiency=0.7),
            simple=replace(
                parameters.simple, launch_ns=15000.0, gpu_step_ns=8000.0, gpu_efficiency=0.72, network_efficiency=0.97
            ),
            p2p=replace(parameters.p2p, launch_ns=12000.0, gpu_efficiency=0.7, lag=100.0),
        ),
    )


def test_a_fit_finds_the_parameters_behind_noisy_measurements(machine: Cluster) -> None:
    beginning = replace(machine, parameters=default_parameters("ampere"))
    fit = fit_cluster(beginning, sweep(machine, noise=0.03))
    found, true = (dict(zip(NAMES, to_vector(each), strict=True)) for each in (fit.parameters, machine.parameters))
    for name in ("ll.launch_ns", "ll.gpu_step_ns", "simple.gpu_step_ns", "p2p.launch_ns"):
        assert found[name] == pytest.approx(true[name], rel=0.25), name
    for name in ("ll.gpu_efficiency", "simple.gpu_efficiency", "simple.network_efficiency", "p2p.gpu_efficiency"):
        assert found[name] == pytest.approx(true[name], rel=0.05), name
    assert fit.held_large.median < 0.035
    assert fit.held_small.median < 0.035
    assert fit.parameters.origin == "fitted"
    assert "held out" in fit.parameters.error


def test_the_same_data_gives_the_same_fit_and_outliers_do_not_spoil_it(machine: Cluster) -> None:
    beginning = replace(machine, parameters=default_parameters("ampere"))
    measured = sweep(machine, noise=0.02)
    first, second = fit_cluster(beginning, measured), fit_cluster(beginning, list(measured))
    assert np.array_equal(to_vector(first.parameters), to_vector(second.parameters))
    spoiled = [replace(each, us=each.us * 5) if number % 25 == 0 else each for number, each in enumerate(measured)]
    large, _ = errors(replace(machine, parameters=fit_cluster(beginning, spoiled).parameters), measured)
    assert large.median < 0.05


def test_parameters_without_data_keep_their_values(machine: Cluster) -> None:
    inside = [each for each in sweep(machine, noise=0.0) if each.nodes == 1 and each.operation == "all_gather"]
    fit = fit_cluster(load_cluster("dgx-a100"), inside)
    before, after = load_cluster("dgx-a100").parameters, fit.parameters
    assert not any("network" in name or name.startswith(("p2p", "nvls")) for name in fit.fitted)
    assert after.simple.network_step_ns == pytest.approx(before.simple.network_step_ns)
    assert after.p2p == pytest.approx(before.p2p) or after.p2p.launch_ns == pytest.approx(before.p2p.launch_ns)


def test_sizes_and_a_group_size_are_held_out_of_the_fit(machine: Cluster) -> None:
    measured = sweep(machine, noise=0.0)
    train, held_out = split(measured)
    assert len(train) + len(held_out) == len(measured)
    assert not {(each.series, each.size) for each in train} & {(each.series, each.size) for each in held_out}
    inside = {each.ranks for each in train if each.nodes == 1}
    assert inside == {2, 8}
    assert all(
        each.size == 512 * 2 ** (1 + 3 * k)
        for k, each in enumerate(e for e in held_out if e.series == measured[0].series)
    )


def test_the_fit_agrees_with_the_plans_of_collectives(machine: Cluster) -> None:
    """The fit evaluates all measurements with array operations; the answers are those of the plans."""
    measured = [each for each in sweep(machine, noise=0.0) if each.size >= 2**20]
    columns = structure_of(machine, measured).predicted(to_vector(machine.parameters))
    ratio = predictions(machine, measured) / columns
    assert np.median(np.abs(ratio - 1)) < 1e-4
    assert (ratio > 1 - 1e-3).all()  # a plan takes no less than smaller messages did; columns know nothing of those


def test_too_little_data_and_the_wrong_cluster_are_refused() -> None:
    cluster = load_cluster("dgx-h100")
    with pytest.raises(ValueError, match="measurements to fit on; at least 10 are needed"):
        fit_cluster(cluster, [Measurement("all_reduce", 2**20, 1, 8, 20.0)])
    many = [Measurement("all_reduce", 2**power, 1, 16, 20.0) for power in range(30)]
    with pytest.raises(ValueError, match="16 ranks were measured on 1 nodes, but a node of dgx-h100 has 8 GPUs"):
        fit_cluster(cluster, many)


# Files ---------------------------------------------------------------------------------------------------------------


def test_parameters_round_trip_through_a_file(tmp_path: Path, machine: Cluster) -> None:
    text = cluster_path("dgx-a100").read_text()
    parameters = replace(machine.parameters, origin="fitted", data="a file", error="small")
    once = with_calibration(text, parameters)
    assert with_calibration(once, parameters) == once
    assert once.startswith(text[: text.index("[calibration]")].rstrip())
    again = load_cluster(str(write(tmp_path, once, "mine.toml"))).parameters
    assert to_vector(again) == pytest.approx(to_vector(parameters), rel=1e-3)
    assert (again.origin, again.data, again.error) == ("fitted", "a file", "small")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[calibration]\nlauch = 3", 'calibration.unknown key "lauch"'),
        (
            '[calibration.simple]\nlaunch = "3 parsecs"',
            'calibration.simple.launch: "3 parsecs": "parsecs" is not a unit',
        ),
        (
            "[calibration.ll]\ngpu_efficiency = 1.2",
            "calibration.ll.gpu_efficiency: 1.2 is not a number from 1e-06 to 1",
        ),
        ("[calibration]\nlocal_step = 1e308", "calibration.local_step: 1e+308 is not a number from 0 to 1e+06"),
        ('[calibration]\ngeneration = "kepler"', "is not a generation of GPUs; use volta, ampere, hopper or blackwell"),
        ("calibration = 3", "calibration is 3; expected a table"),
    ],
)
def test_malformed_calibrations_are_refused(tmp_path: Path, table: str, message: str) -> None:
    text = cluster_path("dgx-h100").read_text()
    text = text[: text.index("[calibration]")]
    wrong = f"{table}\n{text}" if table.startswith("calibration") else f"{text}\n{table}\n"
    with pytest.raises(ClusterError, match=re.escape(message)):
        load_cluster(str(write(tmp_path, wrong, "mine.toml")))


@pytest.mark.parametrize("name", cluster_names())
def test_every_preset_says_where_its_parameters_come_from(name: str) -> None:
    parameters = load_cluster(name).parameters
    assert parameters.origin in ORIGINS
    assert parameters.data
    if parameters.origin == "fitted":
        assert re.search(r"held out, 1 MiB and more: median \d+\.\d%, p90 \d+\.\d% of \d+", parameters.error)


def test_maya_net_fit_writes_a_cluster_that_loads(tmp_path: Path, machine: Cluster) -> None:
    rows = [f"{each.operation},{each.ranks},{each.nodes},{each.size},{each.us}" for each in sweep(machine, noise=0.02)]
    data = write(tmp_path, "\n".join(["op,nranks,nodes,size_bytes,time_us", *rows]), "measured.csv")
    out = tmp_path / "mine.toml"
    result = CliRunner().invoke(main, ["net", "fit", "dgx-a100", str(data), "--out", str(out)])
    assert result.exit_code == 0, result.output
    for part in ("checked with", "held out", "simple.gpu_efficiency"):
        assert part in result.output
    cluster = load_cluster(str(out))
    assert cluster.parameters.origin == "fitted"
    assert cluster.parameters.data == "measured.csv"
    assert cluster.fabric == load_cluster("dgx-a100").fabric
    large, small = errors(cluster, read_measurements(data))
    assert large.median < 0.05
    assert small.median < 0.05


def test_an_unmeasured_cluster_has_the_parameters_of_its_generation(tmp_path: Path) -> None:
    text = cluster_path("dgx-h100").read_text()
    bare = text[: text.index("[calibration]")].replace('gpu = "h100"', 'gpu = "a100-80"')
    found = load_cluster(str(write(tmp_path, bare, "bare.toml"))).parameters
    assert found.simple == load_cluster("dgx-a100").parameters.simple
    assert (found.origin, found.data, found.generation) == ("transferred", "the figures of dgx-a100", "ampere")
    part = load_cluster(str(write(tmp_path, f'{bare}[calibration.ll]\nlaunch = "1us"\n', "part.toml"))).parameters
    assert part.ll == replace(found.ll, launch_ns=1000.0)


def test_maya_net_fit_explains_errors(tmp_path: Path) -> None:
    empty = write(tmp_path, "nothing here\n")
    result = CliRunner().invoke(main, ["net", "fit", "dgx-a100", str(empty)])
    assert result.exit_code == 1
    assert "no measurements" in result.output
