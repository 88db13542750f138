"""Times of collectives at the analytic level: NCCL's own choices, choices of users, and the places of the members."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from maya.cli.main import main
from netmodel.cluster import load_cluster
from netmodel.collectives.algorithms.group import make_group
from netmodel.collectives.algorithms.tree import depth, double_tree
from netmodel.collectives.analytic import AnalyticNetwork
from netmodel.collectives.collective import Collective, CollectiveEstimate, Transfer
from netmodel.collectives.nccl_settings import NcclSettingsError, read_settings
from netmodel.topology import build_topology
from netmodel.topology.links import LinkKind

MB, GB = 2**20, 2**30


def network(cluster: str, gpus: int, **environment: str) -> AnalyticNetwork:
    return AnalyticNetwork(build_topology(load_cluster(cluster), gpus), read_settings(environment))


def ask(
    net: AnalyticNetwork, operation: str, size: int, members: range | tuple[int, ...], **more: object
) -> CollectiveEstimate:
    return net.estimate(Collective(operation, size, tuple(members), **more))  # type: ignore[arg-type]


def way(estimate: CollectiveEstimate) -> str:
    return f"{estimate.algorithm}/{estimate.protocol}"


# What NCCL's tuner chooses -------------------------------------------------------------------------------------------


def test_small_messages_use_ll_and_large_ones_simple() -> None:
    net = network("dgx-a100", 8)
    ways = [way(ask(net, "all_gather", size, range(8))) for size in (1024, 8 * MB, GB)]
    assert ways == ["ring/ll", "ring/ll128", "ring/simple"]


def test_switches_of_protocol_are_where_measurements_jump() -> None:
    """A100, NCCL 2.27: all-reduce of 2 GPUs jumps between 512 KiB and 1 MiB, all-gather of 4 between 1 and 2 MiB."""
    net = network("dgx-a100", 8)
    assert [way(ask(net, "all_reduce", size, range(2))) for size in (MB // 2, MB)] == ["ring/ll", "ring/simple"]
    assert [way(ask(net, "all_gather", size, range(4))) for size in (MB, 2 * MB)] == ["ring/ll", "ring/simple"]


def test_reduction_in_the_switch_is_for_many_gpus_floats_and_new_switches() -> None:
    hopper, ampere = network("dgx-h100", 8), network("dgx-a100", 8)
    assert ask(hopper, "all_reduce", GB, range(8)).algorithm == "nvls"
    assert ask(hopper, "all_reduce", GB, range(8), dtype="int8").algorithm == "ring"
    assert ask(hopper, "all_reduce", GB, range(4)).algorithm == "ring"
    assert ask(hopper, "broadcast", GB, range(8)).algorithm == "ring"
    assert ask(ampere, "all_reduce", GB, range(8)).algorithm == "ring"


def test_between_nodes_small_reductions_go_over_trees() -> None:
    net = network("dgx-a100", 64)
    assert way(ask(net, "all_reduce", 1024, range(64))) == "tree/ll"
    assert ask(net, "all_reduce", 4 * GB, range(64)).algorithm == "ring"
    assert ask(net, "all_gather", 1024, range(64)).algorithm == "ring"


def test_one_gpu_per_node_gathers_with_pat() -> None:
    net = network("dgx-h100", 64)
    assert ask(net, "all_gather", MB, range(0, 64, 8)).algorithm == "pat"
    assert ask(net, "all_reduce", MB, range(0, 64, 8)).algorithm != "pat"
    off = network("dgx-h100", 64, NCCL_PAT_ENABLE="0")
    assert ask(off, "all_gather", MB, range(0, 64, 8)).algorithm == "ring"


def test_sharp_is_used_only_where_switches_have_it_and_users_ask() -> None:
    asked = {"NCCL_COLLNET_ENABLE": "1", "NCCL_ALGO": "CollnetDirect,CollnetChain"}
    assert ask(network("dgx-h100", 64, **asked), "all_reduce", GB, range(64)).algorithm.startswith("collnet")
    with pytest.raises(NcclSettingsError, match="no algorithm/protocol available"):
        ask(network("grand-teton-h100", 64, **asked), "all_reduce", GB, range(64))
    with pytest.raises(NcclSettingsError, match="NCCL_COLLNET_ENABLE is 0"):
        ask(network("dgx-h100", 64, NCCL_ALGO="collnetchain"), "all_reduce", GB, range(64))


# What users force ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "proto", "expected"),
    [
        ("Ring", "Simple", "ring/simple"),
        ("TREE", "ll", "tree/ll"),
        ("^nvls,tree,nvlstree", "^ll,ll128", "ring/simple"),
        ("ring;allreduce:tree", "LL128", "tree/ll128"),
        ("allgather:ring", "simple;allreduce:^simple,ll", "ring/ll128"),
    ],
)
def test_nccl_algo_and_nccl_proto_are_read_as_nccl_reads_them(algo: str, proto: str, expected: str) -> None:
    net = network("dgx-h100", 8, NCCL_ALGO=algo, NCCL_PROTO=proto)
    assert way(ask(net, "all_reduce", 64 * MB, range(8))) == expected


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("NCCL_ALGO", "rign", 'NCCL_ALGO is "rign": "rign" is none of them (did you mean ring?)'),
        ("NCCL_ALGO", "tree;ring", '"ring" has no operation in front of it, e.g. allreduce:ring'),
        ("NCCL_ALGO", "allredce:ring", '"allredce" is not an operation (did you mean allreduce'),
        ("NCCL_PROTO", "^", "the list is empty"),
        ("NCCL_MAX_NCHANNELS", "many", "expected a whole number"),
    ],
)
def test_settings_that_nccl_refuses_are_refused(setting: str, value: str, message: str) -> None:
    with pytest.raises(NcclSettingsError, match=re.escape(message)):
        read_settings({setting: value})


@pytest.mark.parametrize(
    ("operation", "environment"),
    [
        ("all_gather", {"NCCL_ALGO": "tree"}),
        ("broadcast", {"NCCL_ALGO": "nvls"}),
        ("all_reduce", {"NCCL_ALGO": "nvls", "NCCL_PROTO": "ll"}),
        ("all_reduce", {"NCCL_ALGO": "nvls", "NCCL_NVLS_ENABLE": "0"}),
        ("all_reduce", {"NCCL_ALGO": "nvlstree"}),  # one node has nothing to build a tree of
    ],
)
def test_combinations_that_do_not_exist_are_refused(operation: str, environment: dict[str, str]) -> None:
    with pytest.raises(NcclSettingsError, match=f"no algorithm/protocol available for {operation}"):
        ask(network("dgx-h100", 8, **environment), operation, MB, range(8))


def test_ll128_over_pcie_only_where_it_is_forced() -> None:
    free, forced = network("pcie-box", 4), network("pcie-box", 4, NCCL_PROTO="LL128")
    assert all(ask(free, "all_reduce", 2**power, range(4)).protocol != "ll128" for power in range(4, 34))
    assert ask(forced, "all_reduce", MB, range(4)).protocol == "ll128"


def test_fewer_channels_are_slower_and_use_fewer_nics() -> None:
    def ns(gpus: int, channels: str) -> int:
        net = network("dgx-h100", 16, NCCL_ALGO="ring", NCCL_MAX_NCHANNELS=channels)
        return ask(net, "all_reduce", GB, range(gpus)).ns

    assert ns(8, "1") > 3 * ns(8, "4") > 3 * ns(8, "32")
    assert ns(16, "2") == pytest.approx(4 * ns(16, "8"), rel=0.4)  # two of eight NICs


# Where the members are -----------------------------------------------------------------------------------------------


def test_a_group_inside_a_node_is_not_one_that_strides_over_nodes() -> None:
    net = network("dgx-h100", 64)
    inside, strided = (ask(net, "all_gather", 256 * MB, members) for members in (range(8), range(0, 64, 8)))
    assert inside.ns * 5 < strided.ns
    one_nic = 256 * MB * 7 / 8 / 50e9 * 1e9  # each of the eight has one port of 400 Gbps
    assert one_nic < strided.ns < 1.15 * one_nic


def test_the_order_of_members_does_not_matter() -> None:
    net = network("dgx-h100", 16)
    shuffled = tuple(np.random.default_rng(1).permutation(16).tolist())
    for operation in ("all_reduce", "all_gather", "all_to_all"):
        assert ask(net, operation, 64 * MB, shuffled) == ask(net, operation, 64 * MB, range(16))


def test_every_rail_has_its_channel() -> None:
    topology = build_topology(load_cluster("dgx-h100"), 16)
    group = make_group(topology, range(16))
    assert [rail.nic for rail in group.rails[0]] == list(range(8))
    assert [group.order(1, channel)[0] for channel in range(8)] == list(range(8, 16))
    plan = network("dgx-h100", 16, NCCL_ALGO="ring").plan(Collective("all_reduce", GB, tuple(range(16))))
    loads = np.zeros(len(topology.rate))
    for flow in plan.flows:
        loads[flow.links] += flow.loads
    nics = loads[(topology.kind == LinkKind.NETWORK) & (loads > 0)]
    assert len(plan.flows) == 8
    assert np.allclose(nics.reshape(-1)[: 2 * 16], 2 * 15 / 16 / 8)


def test_more_connections_find_more_ways_through_switches_that_hash() -> None:
    cluster = load_cluster("grand-teton-h100")
    one = replace(cluster, fabric=replace(cluster.fabric, connections=1))
    ns = {}
    for name, each in (("many", cluster), ("one", one)):
        net = AnalyticNetwork(build_topology(each, 128))
        for operation in ("reduce_scatter", "all_reduce", "send_recv"):
            ns[name, operation] = ask(net, operation, GB, range(128)).ns
    assert ns["many", "reduce_scatter"] < 0.9 * ns["one", "reduce_scatter"]
    assert ns["many", "all_reduce"] < 0.9 * ns["one", "all_reduce"]
    assert ns["many", "send_recv"] <= ns["one", "send_recv"]


def test_a_slow_nic_slows_the_ring_that_uses_it() -> None:
    from netmodel.cluster import with_faults
    from netmodel.cluster.faults import parse_fault

    cluster = load_cluster("dgx-h100")
    slow = AnalyticNetwork(build_topology(with_faults(cluster, [parse_fault("node1/nic3=25%")]), 16))
    healthy = AnalyticNetwork(build_topology(cluster, 16))
    call = Collective("all_gather", GB, tuple(range(16)))
    assert 2.5 < slow.estimate(call).ns / healthy.estimate(call).ns < 4.5


def test_rings_of_a_cube_mesh_use_all_its_links() -> None:
    """A DGX-1V's eight GPUs have six links each: three rings in both directions. V100, NCCL: 129 GB/s of 150."""
    group = make_group(build_topology(load_cluster("dgx-1v"), 8), range(8))
    assert len(group.rings[0]) == 6
    net = network("dgx-1v", 8)
    eight, four = (
        1.75 * GB / ask(net, "all_reduce", GB, range(8)).ns,
        1.5 * GB / ask(net, "all_reduce", GB, range(4)).ns,
    )
    assert 120 < eight < 150
    assert four < 0.75 * eight


def test_members_of_an_nvl72_rack_need_no_network() -> None:
    net = network("gb200-nvl72", 144)
    assert ask(net, "all_reduce", GB, range(72)).algorithm == "nvls"
    assert ask(net, "all_reduce", GB, range(144)).algorithm == "nvlstree"
    plan = net.plan(Collective("all_gather", GB, tuple(range(0, 72, 4))))
    kinds = {int(kind) for flow in plan.flows for kind in net.topology.kind[flow.links]}
    assert kinds == {LinkKind.NVLINK}


def test_pxn_routes_sends_to_the_rail_of_their_target() -> None:
    net, without = network("dgx-h100", 32), network("dgx-h100", 32, NCCL_PXN_DISABLE="1")
    call = Collective("send_recv", 64 * MB, (0, 13), transfers=(Transfer(0, 1, 64 * MB),))
    relay = Collective("send_recv", 64 * MB, (0, 5, 13), transfers=(Transfer(0, 2, 64 * MB),))
    assert any(net.topology.kind[link] == LinkKind.NVLINK for link in net.plan(relay).flows[0].links)
    assert all(net.topology.kind[link] != LinkKind.NVLINK for link in without.plan(relay).flows[0].links)
    assert all(net.topology.kind[link] != LinkKind.NVLINK for link in net.plan(call).flows[0].links)  # no GPU relays


def test_sends_of_a_group_share_a_direction_and_not_both() -> None:
    net = network("dgx-h100", 16)
    one = Collective("send_recv", 64 * MB, (0, 8), transfers=(Transfer(0, 1, 64 * MB),))
    both = Collective("send_recv", 128 * MB, (0, 8), transfers=(Transfer(0, 1, 64 * MB), Transfer(1, 0, 64 * MB)))
    crowd = Collective("send_recv", 128 * MB, (0, 8), transfers=(Transfer(0, 1, 64 * MB), Transfer(0, 1, 64 * MB)))
    assert net.estimate(both).ns < 1.1 * net.estimate(one).ns  # the two directions do not meet
    assert net.estimate(crowd).ns > 1.8 * net.estimate(one).ns
    nothing = Collective("send_recv", 0, (0, 8), transfers=(Transfer(0, 0, 0),))
    assert 0 < net.estimate(nothing).ns < 50_000


def test_an_all_to_all_with_unequal_parts_waits_for_the_largest() -> None:
    net = network("dgx-h100", 8)
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    equal = tuple(Transfer(a, b, 8 * MB) for a, b in pairs)
    skewed = tuple(Transfer(a, b, 36 * MB if b == 0 else 4 * MB) for a, b in pairs)
    plain = ask(net, "all_to_all", 64 * MB, range(8)).ns
    as_messages = ask(net, "all_to_all", 56 * 8 * MB, range(8), transfers=equal).ns
    assert as_messages == pytest.approx(plain, rel=0.02)
    assert ask(net, "all_to_all", 7 * (36 + 7 * 4) * MB, range(8), transfers=skewed).ns > 2.5 * plain


@pytest.mark.parametrize("count", [*range(2, 20), 64, 127, 128])
def test_both_trees_reach_everyone_and_share_the_work(count: int) -> None:
    first, second = double_tree(count)
    for parents in (first, second):
        assert parents.count(-1) == 1
        assert depth(parents) <= count.bit_length()
        assert max(parents.count(place) for place in range(count)) <= 2 + (count == 3)
    if count % 2 == 0:
        inner = [{parent for parent in parents if parent >= 0} for parents in (first, second)]
        assert not (inner[0] & inner[1]) or count == 2


def test_malformed_collectives_are_refused_and_one_member_is_cheap() -> None:
    net = network("dgx-h100", 8)
    assert 0 < ask(net, "all_reduce", GB, range(1)).ns < 50_000
    with pytest.raises(ValueError, match='"allreduce" is not an operation'):
        ask(net, "allreduce", MB, range(8))
    with pytest.raises(ValueError, match="root 9 is not a place among 8 members"):
        ask(net, "broadcast", MB, range(8), root=9)
    with pytest.raises(ValueError, match="size is 5 and its transfers are of 7 bytes"):
        ask(net, "send_recv", 5, range(8), transfers=(Transfer(0, 1, 7),))
    with pytest.raises(ValueError, match="from 0 to 8 names places that 8 members do not have"):
        ask(net, "send_recv", 7, range(8), transfers=(Transfer(0, 8, 7),))
    with pytest.raises(ValueError, match="there is no rank 8"):
        ask(net, "all_reduce", MB, range(9))


# Exact answers: a changed prediction shows here ----------------------------------------------------------------------


GOLDEN = [
    ("dgx-h100", "all_reduce", 8, 1024, "ring/ll", 16_424),
    ("dgx-h100", "all_reduce", 8, GB, "nvls/simple", 4_081_562),
    ("dgx-h100", "all_gather", 64, 256 * MB, "ring/simple", 1_062_984),
    ("dgx-h100", "all_reduce", 80, GB, "nvlstree/simple", 6_200_006),
    ("dgx-h100", "all_to_all", 16, 64 * MB, "p2p/simple", 855_169),
    ("dgx-h100", "send_recv", 16, MB, "p2p/simple", 52_401),
    ("hgx-h200", "reduce_scatter", 8, 64 * MB, "ring/simple", 202_370),
    ("dgx-a100", "all_reduce", 16, 16 * MB, "ring/ll128", 266_633),
    ("dgx-a100", "broadcast", 8, GB, "ring/simple", 4_929_010),
    ("aws-p4de", "all_reduce", 16, 1024, "tree/ll", 173_368),
    ("aws-p5", "all_gather", 16, GB, "ring/simple", 3_575_598),
    ("dgx-b200", "all_gather", 16, 8 * MB, "ring/ll128", 99_479),
    ("gb200-nvl72", "all_reduce", 72, 64 * MB, "nvls/simple", 229_703),
    ("dgx-1v", "all_reduce", 8, 64 * MB, "ring/simple", 917_140),
    ("ethernet-25g", "all_reduce", 16, 64 * MB, "tree/simple", 23_461_438),
    ("pcie-box", "all_reduce", 2, 16 * MB, "ring/simple", 840_777),
    ("grand-teton-h100", "reduce_scatter", 64, 256 * MB, "ring/simple", 1_073_172),
    ("gcp-a3-mega", "reduce", 16, MB, "ring/ll", 90_693),
]


@pytest.mark.parametrize(("cluster", "operation", "gpus", "size", "expected", "ns"), GOLDEN)
def test_times_of_presets_stay_the_same(
    cluster: str, operation: str, gpus: int, size: int, expected: str, ns: int
) -> None:
    estimate = ask(network(cluster, gpus), operation, size, range(gpus))
    assert (way(estimate), estimate.ns) == (expected, ns)


# maya net bench ------------------------------------------------------------------------------------------------------


def bench(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["net", "bench", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_bench_prints_the_table_of_nccl_tests() -> None:
    output = bench(
        "dgx-h100", "--op", "all_reduce", "--gpus", "8", "--minbytes", "1M", "--maxbytes", "1G", "--stepfactor", "4"
    )
    rows = [line.split() for line in output.splitlines() if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [MB * 4**power for power in range(6)]
    assert all(int(row[1]) * 4 == int(row[0]) and row[2:4] == ["float32", "sum"] for row in rows)
    for size, time, algbw, busbw in ((float(row[0]), *map(float, row[4:7])) for row in rows):
        assert algbw == pytest.approx(size / time / 1000, rel=0.01)
        assert busbw == pytest.approx(1.75 * algbw, rel=0.01)
    assert rows[-1][7:9] == ["nvls", "simple"]
    for part in ("DGX H100", "figures: fitted; held out", "Avg bus bandwidth"):
        assert part in output


def test_bench_compares_with_a_measured_file(tmp_path: Path) -> None:
    measured, chart = tmp_path / "measured.csv", tmp_path / "chart.svg"
    measured.write_text(
        "op,nranks,nodes,size_bytes,time_us\n"
        "all_reduce,8,1,33554432,183\nall_reduce,8,1,1073741824,4001\nall_gather,8,1,1048576,17\n"
    )
    output = bench("dgx-h100", "--op", "all_reduce", "--gpus", "8", "--against", str(measured), "--svg", str(chart))
    assert output.replace(str(tmp_path), "").count("measured") == 2  # one row each
    assert "of 2 measurements" in output
    drawing = chart.read_text()
    assert drawing.startswith("<svg")
    assert drawing.count("<circle") == 2
    assert "polyline" in drawing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dgx-h100", "--op", "all_gather", "--gpus", "8", "--algo", "tree"), "no algorithm/protocol available"),
        (("dgx-h100", "--op", "all_reduce"), "give --gpus 64 for the first 64 GPUs"),
        (("dgx-h100", "--op", "all_reduce", "--gpus", "8", "--minbytes", "lots"), "is not a size"),
        (("dgx-h100", "--op", "all_reduce", "--members", "0:8:0"), "does not name ranks"),
        (("nowhere", "--op", "all_reduce", "--gpus", "8"), 'unknown cluster "nowhere"'),
    ],
)
def test_bench_explains_errors(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, ["net", "bench", *arguments])
    assert result.exit_code != 0
    assert message in result.output


def test_the_documentation_shows_the_current_output() -> None:
    text = (Path(__file__).parents[2] / "docs" / "network.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```\n\$ maya ([^\n]*)\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert len(shown) == 3
    for words, output in shown:
        assert CliRunner().invoke(main, words.split()).output == output
    code, printed = re.findall(r"^```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL | re.MULTILINE)[0]
    with redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    assert out.getvalue() == printed


def test_bench_reads_the_environment_variables_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    output = bench("dgx-h100", "--op", "all_reduce", "--members", "0:64:8", "--minbytes", "1K", "--maxbytes", "1M")
    rows = [line.split() for line in output.splitlines() if not line.startswith("#")]
    assert {tuple(row[7:9]) for row in rows} == {("ring", "simple")}
    assert "over 8 GPUs on 8 nodes" in output
