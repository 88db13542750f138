"""The clock's definition (docs/timeline.md), word by word and one rank at a time: what the replay is compared with.

Times of collectives are found by repetition: every pass goes through all traces in file order with the times that the
pass before found. What depends on nothing is right after the first pass, what depends on it after the second, …
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from maya.replay.run_settings import HostCosts
from maya.trace import Flag, RecordKind, Trace

_BUFFERED = 4 << 20
_NONE = -(10**15)


@dataclass
class RankTimes:
    host: dict[int, int] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    rows: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # position -> arrival, started, ended
    cursors: list[int] = field(default_factory=list)  # host, after each record


class Reference:
    """Replays traces. `kernel_ns` and `network_ns` are what every kernel and collective takes."""

    def __init__(self, traces: dict[int, Trace], costs: HostCosts, kernel_ns: int, network_ns: int) -> None:
        self.costs, self.kernel_ns, self.network_ns = costs, kernel_ns, network_ns
        self.traces = {rank: _plain(trace) for rank, trace in traces.items()}
        self.arrivals: dict[Any, dict[int, int]] = {}
        self.needed: dict[Any, int] = {}

    def run(self) -> dict[int, RankTimes]:
        known: dict[Any, dict[int, int]] = {}
        while True:
            self.known = known
            self.arrivals = defaultdict(dict)
            found = {rank: self._rank(rank, trace) for rank, trace in self.traces.items()}
            if self.arrivals == known:
                return found
            known = self.arrivals

    def _rank(self, rank: int, records: list[tuple[Any, ...]]) -> RankTimes:
        costs, times = self.costs, RankTimes(host={0: 0})
        host, streams = times.host, times.streams
        group_of: dict[int, int] = {}
        blocking: list[int] = []
        home: dict[int, int] = defaultdict(int)  # stream -> default stream of its device
        members: dict[int, Any] = {}
        events: dict[int, tuple[int, int, int]] = {}  # event -> time, stream, collectives before it there
        kernels: dict[int, list[tuple[int, int]]] = defaultdict(list)
        collectives: dict[int, list[tuple[int, int]]] = defaultdict(list)
        settled: dict[tuple[int, int], int] = defaultdict(int)
        arrived: dict[int, int] = {}  # the last collective's arrival, by stream
        for position, (kind, stream, value, thread, ops, flags, signature) in enumerate(records):
            if kind == RecordKind.THREAD and thread != 1 and not signature["thread"].startswith("pt_autograd"):
                group_of[thread] = thread
            group = group_of.get(thread, 0)
            host.setdefault(group, host[0])
            grouped = kind == RecordKind.COLLECTIVE and flags & Flag.GROUPED
            free = grouped or flags & Flag.FROM_GRAPH
            host[group] += ops * costs.op + (0 if free else costs.calls.get(kind, 0))
            ready = host[group] + costs.latency
            children = [other for other in blocking if home[other] == stream]
            beside = children if stream == home[stream] else [home[stream]] if stream in blocking else []
            if kind == RecordKind.HOST_DELAY:
                host[group] += value
            elif kind == RecordKind.STREAM_CREATE:
                home[stream] = signature.get("home", 0)
                blocking += [stream] if signature.get("blocking") else []
            elif kind in (
                RecordKind.KERNEL,
                RecordKind.LIBRARY,
                RecordKind.MEMCPY,
                RecordKind.MEMSET,
                RecordKind.HOST_FUNCTION,
            ):
                start = max([streams[stream], ready, *(streams[other] for other in beside)])
                streams[stream] = start + (0 if kind == RecordKind.HOST_FUNCTION else self.kernel_ns)
                if kind != RecordKind.HOST_FUNCTION:
                    times.rows[position] = start, start, streams[stream]
                if kind in (RecordKind.KERNEL, RecordKind.LIBRARY, RecordKind.MEMSET):
                    kernels[stream].append((start, streams[stream]))
            elif kind == RecordKind.EVENT_RECORD:
                streams[stream] = max([streams[stream], ready, *(streams[other] for other in beside)])
                events[value] = streams[stream], stream, len(collectives[stream])
            elif kind == RecordKind.STREAM_WAIT and value in events:
                at, of, before = events[value]
                if of != stream:
                    overlap = sum(
                        max(0, min(end, ended) - max(start, started))
                        for started, ended in collectives[of][settled[stream, of] : before]
                        for start, end in kernels[stream][-2048:]
                    )
                    settled[stream, of] = max(settled[stream, of], before)
                    streams[stream] += overlap * costs.overlap // 1000
                streams[stream] = max(streams[stream], at)
            elif kind == RecordKind.SYNCHRONIZE:
                what = signature["wait"]
                until = 0
                if what == "event":
                    until = events[value][0] if value in events else 0
                elif what == "device":
                    until = max((at for each, at in streams.items() if home[each] == stream), default=0)
                else:
                    until = max([streams[stream], *(streams[other] for other in children)])
                if until > host[group]:
                    host[group] = until + costs.wake
            elif kind == RecordKind.COLLECTIVE and "members" in signature:
                members[signature["communicator"]] = signature["members"], signature["instance"]
            elif kind == RecordKind.COLLECTIVE:
                arrival = arrived[stream] if grouped else max(streams[stream], ready)
                arrived[stream] = arrival
                started, ended = self._meet(rank, members[signature["communicator"]], signature, value, arrival)
                streams[stream] = max(streams[stream], ended)
                collectives[stream].append((started, ended))
                times.rows[position] = arrival, started, ended
            times.cursors.append(host[group])
        return times

    def _meet(self, rank: int, communicator: Any, signature: Any, sequence: int, arrival: int) -> tuple[int, int]:
        """As far as the last pass knows."""
        key: Any
        if "peer" in signature:
            sends = signature["call"] == "ncclSend"
            ends = signature["rank"], signature["peer"]
            key = communicator, "message", ends if sends else ends[::-1], sequence
            self.arrivals[key][int(sends)] = arrival
            if sends and 4 * signature["count"] <= _BUFFERED:
                return arrival, arrival + self.network_ns
        else:
            key = communicator, "collective", sequence
            self.arrivals[key][rank] = arrival
        started = max(arrival, *self.known.get(key, {}).values(), _NONE)
        return started, started + self.network_ns


def _plain(trace: Trace) -> list[tuple[Any, ...]]:
    columns = [trace.records[name].tolist() for name in ("kind", "stream", "value", "thread", "ops", "flags")]
    signatures = [trace.signature(number) for number in trace.records["signature"].tolist()]
    return [(RecordKind(kind), *rest) for kind, *rest in zip(*columns, signatures, strict=True)]
