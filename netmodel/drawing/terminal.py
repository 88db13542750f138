"""A cluster drawn with characters.

In: a topology. Out: lines: the node with its GPUs, links and NICs; the fabric level by level; distances; faults;
sources of the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maya.util.text import rate_text, time_text
from netmodel.cluster import Cluster
from netmodel.cluster.fabrics import FatTree, Wiring
from netmodel.drawing import facts
from netmodel.topology import Topology
from netmodel.topology.build import wire_fabric
from netmodel.topology.node import NodeWiring, wire_node

_MANY_SWITCHES = 24  # in a user-defined graph; more are counted, not listed


def draw(topology: Topology) -> list[str]:
    """The lines of a drawing, without line ends."""
    cluster = topology.cluster
    wiring = wire_fabric(cluster, topology.nodes)
    domains = -(-topology.nodes // cluster.gpu_link_nodes)
    racks = f" in {_counted(domains, 'NVLink domain')}" if cluster.gpu_link_nodes > 1 else ""
    gpus = _counted(topology.gpus, "GPU")
    lines = [
        f"{cluster.key}: {cluster.name}",
        f"{gpus} ({cluster.gpu}) in {_counted(topology.nodes, 'node')}{racks}",
        "",
    ]
    lines += [f"Node  {cluster.gpus_per_node} × {cluster.gpu}", *_indented(_node(cluster)), ""]
    lines += [
        f"Fabric  {cluster.fabric.kind}, {cluster.fabric.summary()}",
        *_indented(_fabric(cluster, wiring, topology)),
    ]
    distances = facts.distances(topology)
    if distances:
        lines += ["", "From GPU 0  latency, narrowest link: through", *_indented(distances)]
    if cluster.faults:
        lines += ["", "Faults", *_indented(str(fault) for fault in cluster.faults)]
    return [*lines, "", f"Sources  {cluster.sources}", *_calibration(cluster)]


def _calibration(cluster: Cluster) -> list[str]:
    """The origin of the parameters behind the times of collectives."""
    parameters = cluster.parameters
    data = parameters.data or "NCCL's own expectation for such links"
    error = [f"  error: {parameters.error}"] if parameters.error else []
    return [f"Times of collectives  {parameters.origin}: {data}", *error]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _node(cluster: Cluster) -> list[str]:
    lines = [facts.gpu_link(cluster)]
    if cluster.gpu_link_nodes > 1:
        together = cluster.gpu_link_nodes * cluster.gpus_per_node
        lines.append(f"the NVSwitches of a domain join {cluster.gpu_link_nodes} nodes, {together} GPUs")
    if cluster.gpu_link_mesh:
        lines += _mesh(cluster)
    if cluster.gpu_link != "pcie":
        pcie = f"{rate_text(cluster.pcie_rate)} per GPU, {rate_text(cluster.nic_pcie_rate)} per NIC"
        lines.append(f"PCIe, {pcie}, {time_text(cluster.pcie_latency)} a hop")
    nics = _counted(cluster.nics_per_node, "NIC")
    lines.append(f"{nics} of {rate_text(cluster.nic_rate, bits=True)}, {time_text(cluster.nic_latency)} each")
    if cluster.sockets > 1:
        latency = time_text(cluster.host_link_latency)
        lines.append(f"{cluster.sockets} CPUs, {rate_text(cluster.host_link_rate)} between two, {latency}")
    return lines + _pcie_tree(cluster, wire_node(cluster))


def _mesh(cluster: Cluster) -> list[str]:
    """Links between GPUs, the way `nvidia-smi topo -m` shows them."""
    gpus = range(cluster.gpus_per_node)
    links = {frozenset(ends): count for *ends, count in cluster.gpu_link_mesh}
    lines = ["links   " + "".join(f"{f'gpu{gpu}':>6}" for gpu in gpus)]
    for gpu in gpus:
        cells = ("·" if other == gpu else str(links.get(frozenset((gpu, other)), "")) for other in gpus)
        lines.append((f"  {f'gpu{gpu}':<6}" + "".join(f"{cell:>6}" for cell in cells)).rstrip())
    return lines


def _pcie_tree(cluster: Cluster, node: NodeWiring) -> list[str]:
    """CPUs, their PCIe switches, and the devices below each switch."""
    kinds = [kind for kind, _ in node.vertices]
    names = [name for _, name in node.vertices]
    rank = {"gpu": 0, "nic": 1, "pcie": 2, "host": 3}
    below: dict[int, list[int]] = {}
    for wire in node.wires:
        if wire.first >= 0 and wire.second >= 0 and rank[kinds[wire.first]] < rank[kinds[wire.second]]:
            below.setdefault(wire.second, []).append(wire.first)
    lines = []
    for cpu in (vertex for vertex, kind in enumerate(kinds) if kind == "host"):
        plugged = sorted(below.get(cpu, []), key=lambda vertex: (kinds[vertex] == "pcie", vertex))
        single = [names[vertex] for vertex in plugged if kinds[vertex] != "pcie"]
        branches = [_ranges(single)] if single else []
        for switch in (vertex for vertex in plugged if kinds[vertex] == "pcie"):
            branches.append(f"{names[switch]} ── {_ranges([names[vertex] for vertex in below.get(switch, [])])}")
        for place, branch in enumerate(branches):
            joint = "─" if len(branches) == 1 else "┬" if place == 0 else "└" if place == len(branches) - 1 else "├"
            lines.append(
                f"{names[cpu] if place == 0 else ' ' * len(names[cpu])} {'─' if place == 0 else ' '}{joint}─ {branch}"
            )
    return lines


def _ranges(names: Sequence[str]) -> str:
    """gpu0 gpu1 gpu2 gpu3 nic0 -> "gpu0-3 nic0": three or more in a row are shortened."""
    runs: list[tuple[str, list[int]]] = []
    for name in names:
        stem = name.rstrip("0123456789")
        number = int(name[len(stem) :])
        if runs and runs[-1][0] == stem and runs[-1][1][-1] == number - 1:
            runs[-1][1].append(number)
        else:
            runs.append((stem, [number]))
    words = []
    for stem, numbers in runs:
        if len(numbers) > 2:
            words.append(f"{stem}{numbers[0]}-{numbers[-1]}")
        else:
            words += [f"{stem}{number}" for number in numbers]
    return " ".join(words)


def _fabric(cluster: Cluster, wiring: Wiring, topology: Topology) -> list[str]:
    fabric = cluster.fabric
    latencies = f"{time_text(fabric.switch_latency)} a switch, {time_text(fabric.link_latency)} a cable"
    lines = [f"{facts.routing(cluster)}; {latencies}" + ("; switches can reduce (SHARP)" if fabric.sharp else "")]
    for level in reversed(facts.levels(cluster, wiring)):
        lines.append(f"{level.name:<8}{_counted(level.switches, 'switch' if level.switches == 1 else 'switche')}")
        rates = " and ".join(rate_text(rate, bits=True) for rate in level.cable_rates)
        if level.cables_inside:
            lines.append(f"   ═    {_counted(level.cables_inside, 'cable')} of {rates} between them")
        if level.cables_up:
            line = (
                f"   │    {_counted(level.cables_up, 'cable')} of {rates} up, oversubscription {level.oversubscription}"
            )
            lines.insert(len(lines) - 1 - bool(level.cables_inside), line)
    cables = f"{_counted(wiring.ports, 'cable')} of {rate_text(cluster.nic_rate, bits=True)}"
    lines.append(f"   │    {cables}; {facts.attachment(cluster, wiring)}")
    lines.append(f"{'node':<8}{_counted(len(wiring.attached), 'node')} of {_counted(cluster.nics_per_node, 'NIC')}")
    if not isinstance(fabric, FatTree) and fabric.kind == "graph" and len(wiring.switches) <= _MANY_SWITCHES:
        lines += _joints(wiring)
    bisection = facts.bisection(topology)
    return [*lines, f"bisection bandwidth {bisection}"] if bisection else lines


def _joints(wiring: Wiring) -> list[str]:
    """Every switch of a graph with its neighbours."""
    lines = []
    names = [switch.name for switch in wiring.switches]
    for place, name in enumerate(names):
        rates: dict[str, list[int]] = {}
        for cable in wiring.cables:
            if place in (cable.lower, cable.upper):
                other = names[cable.upper if cable.lower == place else cable.lower]
                rates.setdefault(other, []).append(cable.rate)
        joined = [f"{other} ({len(each)} × {rate_text(max(each), bits=True)})" for other, each in rates.items()]
        nodes = [node for node, row in enumerate(wiring.attached) if place in row]
        if nodes:
            joined.append(_ranges([f"node{node}" for node in nodes]))
        lines.append(f"{name}: {', '.join(joined) or 'nothing'}")
    return lines
