"""A cluster drawn as SVG: one node with its links, and the fabric between nodes.

In: a topology. Out: the text of an SVG file. If there are many switches or nodes, only the first few, the broken ones
and the last are drawn, with their number beside them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from maya.util.text import rate_text
from netmodel.cluster import Cluster
from netmodel.cluster.fabrics import Wiring
from netmodel.cluster.fabrics.torus import Ring, Torus
from netmodel.cluster.faults import NetworkFault
from netmodel.drawing import facts
from netmodel.drawing.canvas import MARGIN, WIDTH, Canvas, Point
from netmodel.topology import Topology
from netmodel.topology.build import wire_fabric
from netmodel.topology.node import NVSWITCH, wire_node

_NVLINK, _PCIE, _NETWORK, _SLOW, _LOST = "#76b900", "#8b949e", "#1f6fb2", "#e67700", "#d6336c"


def draw_svg(topology: Topology) -> str:
    """The whole drawing."""
    cluster = topology.cluster
    wiring = wire_fabric(cluster, topology.nodes)
    canvas = Canvas()
    canvas.text(f"{cluster.key}: {cluster.name}", (MARGIN, 44), size=22, bold=True)
    canvas.text(f"{topology.gpus} × {cluster.gpu}, {topology.nodes} × node", (MARGIN, 68), size=14)
    bottom = _draw_node(canvas, cluster, 90)
    bottom = _draw_fabric(canvas, topology, wiring, bottom + 24)
    lines = [f"fault: {fault}" for fault in cluster.faults]
    for place, line in enumerate(lines):
        canvas.text(line, (MARGIN, bottom + 28 + 18 * place), size=13, colour=_LOST)
    bottom += 18 * len(lines)
    canvas.text(f"Figures: {cluster.sources}", (MARGIN, bottom + 30), size=11, colour="#57606a")
    canvas.height = bottom + 48
    return canvas.svg(f"{cluster.name}: {topology.gpus} GPUs")


def _spread(count: int, left: float, right: float) -> list[float]:
    """The centres of `count` equal parts."""
    part = (right - left) / count
    return [left + part * (place + 0.5) for place in range(count)]


def _draw_node(canvas: Canvas, cluster: Cluster, top: float) -> float:
    """One node: GPU links above the GPUs; below them PCIe switches, NICs and CPUs."""
    node = wire_node(cluster)
    gpus, nics = cluster.gpus_per_node, cluster.nics_per_node
    left, right = MARGIN + 10.0, WIDTH - MARGIN - 10.0
    mesh_height = 110 if cluster.gpu_link_mesh else 66 if cluster.gpu_link == "nvswitch" else 0
    rows = {"gpu": top + 62 + mesh_height}
    rows["pcie"] = rows["gpu"] + 66
    rows["nic"] = rows["pcie"] + (66 if cluster.pcie_switches else 0)
    rows["host"] = rows["nic"] + 66
    bottom = rows["host"] + 40
    canvas.panel(top, bottom)
    canvas.text("One node", (left, top + 26), size=16, bold=True)
    words = [facts.gpu_link(cluster), f"{nics} × {rate_text(cluster.nic_rate, bits=True)}"]
    canvas.text(" · ".join(words), (left + 100, top + 26), size=13, colour="#57606a")

    gpu_columns = _spread(gpus, left, right)
    switches, sockets = max(1, cluster.pcie_switches), cluster.sockets
    columns = {"gpu": gpu_columns, "nic": _nic_columns(cluster, left, right)}
    columns["pcie"] = _spread(switches, left, right)
    columns["host"] = _spread(sockets, left, right)
    if cluster.pcie_switches and nics <= gpus:  # keeps the line from PCIe switch to CPU visible beside the NIC
        columns["nic"] = [column - 0.2 * (right - left) / max(gpus, nics) for column in columns["nic"]]
    counters: Counter[str] = Counter()
    places: list[Point] = []
    for kind, _ in node.vertices:
        places.append((columns[kind][counters[kind]], rows[kind]))
        counters[kind] += 1
    sizes = {
        "gpu": (min(86.0, 0.8 * (right - left) / gpus), 30.0),
        "nic": (min(76.0, 0.86 * (right - left) / max(nics, gpus)), 24.0),
        "pcie": (min(86.0, 0.7 * (right - left) / switches), 24.0),
        "host": (min(200.0, 0.5 * (right - left) / sockets), 28.0),
    }
    switch_row = top + 74.0
    for wire in node.wires:
        if NVSWITCH in (wire.first, wire.second):
            gpu = places[max(wire.first, wire.second)]
            canvas.line(gpu, (gpu[0], switch_row), _NVLINK, 3)
        elif node.vertices[wire.first][0] == node.vertices[wire.second][0] == "gpu":
            links = next(links for *ends, links in cluster.gpu_link_mesh if set(ends) == {wire.first, wire.second})
            start, end = ((x, y - 15) for x, y in (places[wire.first], places[wire.second]))
            canvas.arc(start, end, 22 + 0.26 * abs(end[0] - start[0]), _NVLINK, 1.6 * links)
        else:
            upwards = node.vertices[wire.second][0] == "host" and cluster.pcie_switches > 0
            canvas.line(places[wire.first], places[wire.second], _PCIE, 1.5, opacity=0.5 if upwards else 1)
    if cluster.gpu_link == "nvswitch":
        label = "NVSwitch" if cluster.gpu_link_nodes == 1 else f"NVSwitch, joins {cluster.gpu_link_nodes} nodes"
        canvas.box(((left + right) / 2, switch_row), right - left - 40, 26, label, "nvswitch")
    for place, (kind, name) in zip(places, node.vertices, strict=True):
        canvas.box(place, *sizes[kind], name, kind)
    return bottom


def _nic_columns(cluster: Cluster, left: float, right: float) -> list[float]:
    """NICs under the GPUs they are nearest to, side by side where several share a place."""
    if cluster.nics_per_node >= cluster.gpus_per_node:
        return _spread(cluster.nics_per_node, left, right)
    columns = _spread(cluster.gpus_per_node, left, right)
    return [sum(columns[gpu] for gpu in near) / len(near) for near in cluster.nic_affinity]


def _shown(count: int, wanted: set[int], most: int) -> list[int]:
    """The indices below `count` to draw: all if few, else the first, the wanted and the last."""
    if count <= most:
        return list(range(count))
    chosen = {count - 1, *sorted(wanted)[: most // 2]}
    for place in range(count):
        if len(chosen) >= most:
            break
        chosen.add(place)
    return sorted(chosen)


def _draw_fabric(canvas: Canvas, topology: Topology, wiring: Wiring, top: float) -> float:
    cluster = topology.cluster
    left = MARGIN + 10.0
    canvas.text("Fabric", (left, top + 26), size=16, bold=True)
    words = f"{cluster.fabric.kind}, {cluster.fabric.summary()}, {facts.routing(cluster).split(' (')[0]}"
    canvas.text(words, (left + 70, top + 26), size=13, colour="#57606a")
    bisection = facts.bisection(topology)
    if bisection:
        canvas.text(f"Bisection bandwidth: {bisection}", (left, top + 48), size=13, colour="#57606a")
    above = 0 in {switch.level for switch in wiring.switches} and max(switch.level for switch in wiring.switches) > 0
    inside = any(wiring.switches[cable.lower].level == wiring.switches[cable.upper].level for cable in wiring.cables)
    draw = _draw_tree if above or not inside else _draw_flat
    bottom = draw(canvas, topology, wiring, top + 70)
    canvas.panel(top, bottom)
    return bottom


def _fault_of(cluster: Cluster, first: str, second: str) -> NetworkFault | None:
    """The fault of a link, or None."""
    for fault in cluster.faults:
        if set(fault.link) == {first, second} or (len(fault.link) == 1 and fault.link[0] in (first, second)):
            return fault
    return None


def _join(
    canvas: Canvas, cluster: Cluster, ends: Sequence[Point], names: Sequence[str], width: float, opacity: float = 1
) -> None:
    fault = _fault_of(cluster, names[0], names[1])
    if fault is None:
        canvas.line(ends[0], ends[1], _NETWORK, width, opacity=opacity)
    else:
        canvas.line(ends[0], ends[1], _LOST if fault.lost else _SLOW, width + 1, dashed=fault.lost)


def _draw_tree(canvas: Canvas, topology: Topology, wiring: Wiring, top: float) -> float:
    """Levels one above the other, nodes at the bottom."""
    cluster = topology.cluster
    levels = facts.levels(cluster, wiring)
    left, right = MARGIN + 150.0, WIDTH - MARGIN - 10.0
    broken = {name for fault in cluster.faults for name in fault.link}
    broken_nodes = {int(name[4:].split("/")[0]) for name in broken if name.startswith("node") and "/" in name}
    row_of = {level: top + 30 + 110.0 * (len(levels) - 1 - level) for level in range(len(levels))}
    node_row = top + 30 + 110.0 * len(levels)
    nodes = _shown(topology.nodes, broken_nodes, 16)
    at: dict[int, Point] = {}
    for level in range(len(levels)):
        members = [place for place, switch in enumerate(wiring.switches) if switch.level == level]
        wanted = {order for order, place in enumerate(members) if wiring.switches[place].name in broken}
        if level == 0:
            used = {switch for node in nodes for switch in wiring.attached[node]}
            wanted |= {order for order, place in enumerate(members) if place in used and len(used) <= 16}
        shown = _shown(len(members), wanted, 16)
        for column, order in zip(_columns(shown, left, right), shown, strict=True):
            at[members[order]] = (column, row_of[level])
        _label_row(canvas, row_of[level], f"{len(members)} × {levels[level].name}", shown, left, right)
        if levels[level].cables_up:
            rates = ", ".join(rate_text(rate, bits=True) for rate in levels[level].cable_rates)
            note = [f"{levels[level].cables_up} cables", rates, levels[level].oversubscription]
            for line, words in enumerate(note):
                canvas.text(words, (MARGIN + 10, row_of[level] - 62 + 15 * line), size=11, colour="#57606a")
    parallel = Counter((cable.lower, cable.upper) for cable in wiring.cables if cable.lower in at and cable.upper in at)
    opacity = max(0.25, min(1.0, 40 / max(1, len(parallel))))
    for (lower, upper), count in parallel.items():
        names = (wiring.switches[lower].name, wiring.switches[upper].name)
        _join(canvas, cluster, (at[lower], at[upper]), names, 0.6 + 0.3 * min(6, count), opacity)
    _draw_nodes(canvas, cluster, wiring, nodes, at, node_row, (left, right))
    _label_row(canvas, node_row, f"{topology.nodes} × node", nodes, left, right)
    rate = rate_text(cluster.nic_rate, bits=True)
    for line, words in enumerate((f"{wiring.ports} cables", rate)):
        canvas.text(words, (MARGIN + 10, node_row - 58 + 15 * line), size=11, colour="#57606a")
    for place, point in at.items():
        name = wiring.switches[place].name
        width = min(64.0, 0.84 * (right - left) / 16)
        canvas.box(point, width, 26, name, "switch", broken=_whole_fault(cluster, name))
    return node_row + 50


def _draw_nodes(
    canvas: Canvas,
    cluster: Cluster,
    wiring: Wiring,
    nodes: Sequence[int],
    at: dict[int, Point],
    row: float,
    span: tuple[float, float],
) -> None:
    width = min(64.0, 0.84 * (span[1] - span[0]) / max(8, len(nodes)))
    opacity = 1.0 if len(set(wiring.attached[nodes[0]])) < 4 else 0.4
    for column, node in zip(_columns(nodes, *span), nodes, strict=True):
        per_switch: dict[int, list[int]] = {}
        for nic, switch in enumerate(wiring.attached[node]):
            per_switch.setdefault(switch, []).append(nic)
        broken = ""
        for switch, nics in per_switch.items():
            names = [f"node{node}/nic{nic}" for nic in nics]
            fault = next((fault for name in names if (fault := _fault_of(cluster, name, name))), None)
            if switch in at:
                ends = ((column, row), at[switch])
                if fault is None:
                    thickness = 0.6 + 0.2 * min(8, len(nics))
                    _join(canvas, cluster, ends, (names[0], wiring.switches[switch].name), thickness, opacity)
                else:
                    canvas.line(*ends, _LOST if fault.lost else _SLOW, 2.5, dashed=fault.lost)
            broken = (_LOST if fault.lost else _SLOW) if fault else broken
        canvas.box((column, row), width, 26, f"node{node}", "node", broken=broken)


def _columns(shown: Sequence[int], left: float, right: float) -> list[float]:
    """The columns of drawn items in their row: one column stays free wherever items are left out."""
    gaps = [0 if place == 0 or shown[place] - shown[place - 1] == 1 else 1 for place in range(len(shown))]
    columns = _spread(len(shown) + sum(gaps), left, right)
    return [columns[place + sum(gaps[: place + 1])] for place in range(len(shown))]


def _whole_fault(cluster: Cluster, name: str) -> str:
    """The colour of a switch whose links are all broken."""
    return next(((_LOST if fault.lost else _SLOW) for fault in cluster.faults if fault.link == (name,)), "")


def _label_row(canvas: Canvas, row: float, words: str, shown: Sequence[int], left: float, right: float) -> None:
    canvas.text(words, (MARGIN + 10, row + 5), size=13, bold=True)
    columns = _columns(shown, left, right)
    for place in range(1, len(shown)):
        if shown[place] - shown[place - 1] > 1:
            canvas.text("…", ((columns[place - 1] + columns[place]) / 2, row + 5), size=16, anchor="middle")


def _draw_flat(canvas: Canvas, topology: Topology, wiring: Wiring, top: float) -> float:
    """Draw switches that are all at the nodes' level: a torus as a grid, anything else as a circle."""
    cluster = topology.cluster
    fabric = cluster.fabric
    at: dict[int, Point] = {}
    if isinstance(fabric, Torus) and not isinstance(fabric, Ring) and len(fabric.dimensions) > 1:
        height = _grid(fabric.dimensions, at, top)
    else:
        shown = _shown(len(wiring.switches), set(), 48)
        radius = min(300.0, 60 + 9.0 * len(shown))
        height = 2 * radius + 90
        for order, place in enumerate(shown):
            angle = 2 * math.pi * order / len(shown) - math.pi / 2
            at[place] = (
                WIDTH / 2 + 1.5 * radius * math.cos(angle),
                top + radius + 30 + radius * math.sin(angle),
            )
    for (lower, upper), count in Counter((cable.lower, cable.upper) for cable in wiring.cables).items():
        if lower in at and upper in at:
            names = (wiring.switches[lower].name, wiring.switches[upper].name)
            ends = (at[lower], at[upper])
            if math.dist(*ends) > 200 and isinstance(fabric, Torus):
                continue  # a wrap-around link; the stubs below show it
            _join(canvas, cluster, ends, names, 0.8 + 0.4 * min(4, count))
    hosts: dict[int, set[int]] = {}
    for node, row in enumerate(wiring.attached):
        for switch in row:
            hosts.setdefault(switch, set()).add(node)
    for place, point in at.items():
        name = wiring.switches[place].name
        width = 86.0 if len(at) <= 24 else 62.0
        canvas.box(point, width, 22, name, "switch", broken=_whole_fault(cluster, name))
        nodes = sorted(hosts.get(place, ()))
        if nodes:
            label = f"node{nodes[0]}" if len(nodes) == 1 else f"node{nodes[0]}-{nodes[-1]}"
            canvas.box((point[0], point[1] + 21), width, 18, label, "node")
    rest = len(wiring.switches) - len(at)
    rates = " and ".join(rate_text(rate, bits=True) for rate in sorted({cable.rate for cable in wiring.cables}))
    note = f"{len(wiring.switches)} switches, {len(wiring.cables)} cables of {rates}"
    note += f"; {rest} switches are not drawn" if rest else ""
    note += "; the cables that close each row and column are not drawn" if _has_ends(fabric) else ""
    canvas.text(note, (MARGIN + 10, top + height + 6), size=12, colour="#57606a")
    return top + height + 24


def _has_ends(fabric: object) -> bool:
    return isinstance(fabric, Torus) and not isinstance(fabric, Ring) and max(fabric.dimensions, default=0) > 2


def _grid(dimensions: Sequence[int], at: dict[int, Point], top: float) -> float:
    """Grid positions of a torus: the last dimension across, the one before it down, only the first plane of the
    others."""
    across, down = dimensions[-1], dimensions[-2]
    columns, rows = min(across, 10), min(down, 8)
    for row in range(rows):
        for column in range(columns):
            at[row * across + column] = (MARGIN + 90 + 110.0 * column, top + 30 + 70.0 * row)
    return 70.0 * rows + 30
