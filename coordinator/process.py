"""The coordinator's process: opens the sockets, reports their addresses, and serves until SIGTERM.

In: settings, and lines of JSON on the control pipe:

    {"started": {"rank": 3, "pid": 4711}}   the process of a rank has started; "node": its machine, if there are several
    {"exited": {"rank": 3, "status": 1}}    the process of a rank has ended
    {"lost": {"rank": 3, "status": -9}}     the machine of a rank is lost
    {"stopping": {}}                        the launcher stops the job: later activity is not progress
    {"continued": {}}                       stopped ranks have been continued
    {"describe": true}                      report the pending waits

Out: lines of JSON on the report pipe, each written at once, and short enough for one atomic write to a pipe:

    {"coordinator": {"endpoint": ..., "store_port": ..., "pid": ...}}    it serves; "questions": where it asks
                                                                         node agents, if there are any
    {"coordinator_failed": "..."}                                        why it cannot serve
    {"progress": {"joined": ..., "ended": ..., "steps": ..., "messages": ..., "posts": ...}}    at most once a second
    {"waiting": {"waits": ["..."], "more": ..., "silent": "..."}}       waits of most ranks first; the number of
                                                                         omitted waits; silent ranks, or ""
    {"hang": {"file": ..., "kind": ..., "raises": ...}}                  ranks can never go on; the file says why;
                                                                         whether they get an error of NCCL
    {"no_progress": {"file": ..., "seconds": ...}}                       no rank shows any activity; the file has the
                                                                         details (without a file, "report" has them)
    {"resumed": {"seconds": ...}}                                        the ranks go on, after this pause
    {"clocks": {"first": 0, "ns": [...]}}                                at the end: clocks of ranks 0, 1, ...
    {"coordinator_done": {...}}                                          at the end: statistics

It ends at SIGTERM, or when the process that started it has ended.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from coordinator.absent_ranks import AbsentRanks
from coordinator.hangs.node_processes import NodeProcesses, NodeProcessesError
from coordinator.hangs.rank_processes import LocalProcesses, RankProcesses
from coordinator.hangs.watcher import Watcher, WatcherSettings
from coordinator.represented_store import RepresentedStore
from coordinator.server import Server, ServerError
from coordinator.state import State
from coordinator.store import ADDRESS, Store, StoreError
from coordinator.time_model import NO_TIME_MODEL, RunTimeModel
from maya.hangs.request_socket import RequestSocket
from maya.nodes.run_keys import RunKeys
from maya.util.open_files import LimitError, allow_descriptors
from maya.util.ranks import parse_ranks, ranks_text

SUCCESS, FAILED = 0, 1

_NAME = b"maya-coord"  # the name in ps
_PROGRESS_SECONDS = 1.0
_SILENT_SECONDS = 15.0  # a rank sends a heartbeat every five seconds
_LONGEST_REPORT = 3500  # bytes; a write of up to 4096 to a pipe is atomic
_CLOCKS_A_LINE = 128  # clocks of up to 20 digits
_END_SECONDS = 0.02  # interval of polling for the end of a connection
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_TEXTS = {"started": ("node",)}  # fields of control lines that may be absent
_NUMBERS = {  # numeric fields of control lines
    "started": ("rank", "pid"),
    "exited": ("rank", "status"),
    "lost": ("rank", "status"),
    "stopping": (),
    "continued": (),
    "describe": (),
}


@dataclass(frozen=True)
class Settings:
    """The settings of a run's coordinator."""

    world_size: int
    secret: str
    endpoint: str = ""  # ZeroMQ endpoint; empty: an abstract local socket with a random name
    store_port: int | None = 0  # 0: any free one; None: no store
    run_folder: str = ""  # its run.json has the settings of the time model; empty: no time model
    hang_folder: str = ""  # for reports of hangs; empty: no hang detection
    hang_after: float = 60.0  # seconds without progress until it is reported
    hang_freezes: bool = False  # stop the ranks when a hang is reported
    present: str = ""  # the ranks that are processes, as "0-3,8"; empty: all
    store_address: str = ADDRESS  # where the store listens
    keys: str = ""  # `RunKeys` as JSON, of a job on several machines; empty: ranks are on this one

    @property
    def processes(self) -> int:
        """How many ranks are processes."""
        return len(parse_ranks(self.present)) if self.present else self.world_size

    @property
    def run_keys(self) -> RunKeys | None:
        return RunKeys.from_json(json.loads(self.keys)) if self.keys else None


def run(settings: Settings, report_fd: int, control_fd: int | None = None, parent: int | None = None) -> int:
    """Serve until SIGTERM; return the exit code. The coordinator also ends when its `parent` process ends."""
    wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _become_coordinator(wakeup_write, parent)
        return _serve(settings, report_fd, control_fd, wakeup_read)
    finally:
        signal.set_wakeup_fd(-1)
        os.close(wakeup_read)
        os.close(wakeup_write)


def run_with_values(values: Mapping[str, Any], report_fd: int, control_fd: int, parent: int) -> int:
    """The entry point that the launcher names to the zygote. `values` are the fields of `Settings`."""
    return run(Settings(**values), report_fd, control_fd, parent)


def _become_coordinator(wakeup_fd: int, parent: int | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, _NAME)
    signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the wakeup descriptor ends the loop
    # Ctrl-C on a terminal reaches all processes. The launcher reacts to it; until then the ranks need answers.
    for other in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(other, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if parent is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has already ended
            os.kill(os.getpid(), signal.SIGTERM)
    # Inherited objects are never freed: keep the garbage collector from touching pages shared with the parent.
    gc.freeze()
    gc.enable()


def _serve(settings: Settings, report_fd: int, control_fd: int | None, wakeup_fd: int) -> int:
    report = _Report(report_fd)
    server = store = nodes = None
    try:
        try:
            allow_descriptors(settings.processes)
            times = RunTimeModel(Path(settings.run_folder)) if settings.run_folder else None
            absent = AbsentRanks(settings.world_size, parse_ranks(settings.present)) if settings.present else None
            server = Server(
                settings.world_size,
                settings.secret,
                settings.endpoint,
                times or NO_TIME_MODEL,
                absent,
                settings.run_keys,
            )
            store = _store(settings, absent)
            nodes = _node_processes(settings, server)
        except (LimitError, ServerError, StoreError, NodeProcessesError) as error:
            report.write({"coordinator_failed": str(error)})
            return FAILED
        store_port = store.port if store else None
        addresses = {"endpoint": server.endpoint, "store_port": store_port, "pid": os.getpid()}
        if nodes is not None:
            addresses["questions"] = nodes.endpoint
        report.write({"coordinator": addresses})
        if times is not None:
            times.load()  # takes a while; meanwhile the ranks start, and the socket queues their batches
        watcher = _watcher(settings, server, nodes or LocalProcesses(server.endpoint), store_port)
        if watcher is not None and isinstance(store, RepresentedStore):
            watcher.fill_in = store.fill_in
        control = _Control(control_fd) if control_fd is not None else None
        requests = RequestSocket(Path(settings.hang_folder)) if watcher is not None else None
        _loop(
            server,
            report,
            control,
            wakeup_fd,
            watcher,
            store if isinstance(store, RepresentedStore) else None,
            requests,
        )
        if requests is not None:
            requests.close()
        resumed = watcher.resumed() if watcher is not None else None
        if resumed is not None:
            report.write(resumed)
        if times is not None:
            for line in _clocks(server, settings.world_size):
                report.write(line)
        _save_groups(server.state, Path(settings.hang_folder or settings.run_folder))
        report.write({"coordinator_done": _statistics(server)})
        return SUCCESS
    finally:
        if nodes is not None:
            nodes.close()
        if server is not None:
            server.close()
        if store is not None:
            store.close()


def _store(settings: Settings, absent: AbsentRanks | None) -> Store | RepresentedStore | None:
    if settings.store_port is None:
        return None
    port, address = settings.store_port, settings.store_address
    return Store(port, address) if absent is None else RepresentedStore(port, absent, address)


def _node_processes(settings: Settings, server: Server) -> NodeProcesses | None:
    """The processes of ranks on other machines; None: ranks run here, or nobody asks about them."""
    keys = settings.run_keys
    if keys is None or not settings.hang_folder:
        return None
    return NodeProcesses(server.context, keys, settings.endpoint, server.turn)


def _save_groups(state: State, folder: Path) -> None:
    """Keep the process groups of a job with absent ranks for its replay."""
    absent = state.absent
    if absent is None:
        return
    from maya.replay.represented_ranks import GroupOfCommunicator, RepresentedJob  # imports numpy

    numbers = {group: number for number, group in enumerate(absent.groups)}
    communicators = {
        key: GroupOfCommunicator(numbers[origin.group], origin.pair)
        for key, origin in state.origins.items()
        if origin is not None and origin.group in numbers
    }
    groups = [group.members for group in absent.groups]
    descriptions = [group.description for group in absent.groups]
    present = tuple(sorted(absent.present))
    job = RepresentedJob(absent.world_size, present, groups, communicators, absent.filled, descriptions)
    with suppress(OSError):  # a full disk: without the file, the traces cannot be predicted, and the launcher says so
        job.save(folder)


def _watcher(settings: Settings, server: Server, processes: RankProcesses, store_port: int | None) -> Watcher | None:
    """The watcher; of a single rank, it only answers requests."""
    if not settings.hang_folder:
        return None
    folder = Path(settings.hang_folder)
    server.holds_failures = settings.world_size > 1
    return Watcher(
        server,
        WatcherSettings(
            settings.processes,
            folder,
            settings.hang_after,
            store_port,
            settings.hang_freezes,
            answers_only=settings.world_size == 1,
        ),
        processes,
    )


def _loop(
    server: Server,
    report: _Report,
    control: _Control | None,
    wakeup_fd: int,
    watcher: Watcher | None = None,
    store: RepresentedStore | None = None,
    requests: RequestSocket | None = None,
) -> None:
    poller = zmq.Poller()
    poller.register(server.socket, zmq.POLLIN)
    poller.register(wakeup_fd, zmq.POLLIN)
    if server.authentication is not None:
        poller.register(server.authentication.socket, zmq.POLLIN)
    if control is not None:
        poller.register(control.descriptor, zmq.POLLIN)
    if store is not None:
        poller.register(store.descriptor, zmq.POLLIN)
    if requests is not None and requests.descriptor is not None:
        poller.register(requests.descriptor, zmq.POLLIN)
    reported = _progress(server)
    due = 0.0
    while True:
        seconds = _PROGRESS_SECONDS if watcher is None else watcher.seconds()
        ready = dict(poller.poll(round(1000 * (_END_SECONDS if server.expects_an_end else seconds))))
        if wakeup_fd in ready:
            return
        if control is not None and control.descriptor in ready:
            for line in control.lines():
                if "started" in line and watcher is not None:
                    started = line["started"]
                    watcher.started(started["rank"], started["pid"], started.get("node", ""))
                for kind, tell in (("exited", server.exited), ("lost", server.lost)):
                    if kind in line:
                        tell(line[kind]["rank"])
                        if watcher is not None:
                            watcher.exited(line[kind]["rank"], line[kind]["status"])
                if "stopping" in line and watcher is not None:
                    watcher.stopping()
                if "continued" in line and watcher is not None:
                    watcher.continued()
                if "describe" in line:
                    report.write({"waiting": _waiting(server)})
            if control.ended:
                poller.unregister(control.descriptor)
                control = None
        server.turn()
        if store is not None:
            store.turn()
            server.complete_joins()
            if watcher is not None:
                store.fill_in_when_idle(server.state.activity, watcher.all_wait_in_store)
        if requests is not None and watcher is not None and requests.descriptor in ready:
            requests.serve(lambda: [watcher.activity()])
        found = watcher.poll() if watcher is not None else None
        if found is not None:
            raises = "hang" in found and watcher is not None and not watcher.is_frozen and server.holds_nccl_errors
            report.write({"hang": {**found["hang"], "raises": raises}} if "hang" in found else found)
            if raises:
                server.release_failures()
        now = time.monotonic()
        if now >= due:
            progress = _progress(server)
            if progress != reported:
                report.write({"progress": progress})
                reported = progress
                due = now + _PROGRESS_SECONDS


def _progress(server: Server) -> dict[str, int]:
    state = server.state
    return {
        "joined": state.joined,
        "ended": state.ended,
        "steps": state.steps,
        "messages": server.batches_in,
        "posts": state.posts,
    }


def _waiting(server: Server) -> dict[str, Any]:
    """The pending waits, as many as fit on one line."""
    waits = sorted(server.state.waits(), key=lambda wait: len(wait.waiting), reverse=True)
    silent = server.silent_since(time.monotonic() - _SILENT_SECONDS)
    texts: list[str] = []
    room = _LONGEST_REPORT
    for wait in waits:
        text = str(wait)
        room -= len(json.dumps(text)) + 2
        if room < 0:
            break
        texts.append(text)
    return {"waits": texts, "more": len(waits) - len(texts), "silent": ranks_text(silent) if silent else ""}


def _statistics(server: Server) -> dict[str, Any]:
    state = server.state
    return {
        "messages": server.batches_in + server.batches_out,
        "bytes": server.bytes_in + server.bytes_out,
        "posts": state.posts,
        "collectives": state.collectives,
        "communicators": state.communicators,
        "ignored": server.ignored,
        "cpu_seconds": round(time.process_time(), 3),
    }


def _clocks(server: Server, world_size: int) -> Iterator[dict[str, Any]]:
    """The final clocks of all ranks, on lines short enough for an atomic write."""
    for first in range(0, world_size, _CLOCKS_A_LINE):
        ranks = range(first, min(first + _CLOCKS_A_LINE, world_size))
        yield {"clocks": {"first": first, "ns": [server.state.clock(rank) for rank in ranks]}}


class _Report:
    """Writes lines of JSON to the parent process, which may have ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, line: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")


class _Control:
    """Reads lines of JSON from the parent process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.ended = False
        self._rest = b""

    def lines(self) -> list[dict[str, dict[str, Any]]]:
        """The complete lines that have arrived."""
        chunk = os.read(self.descriptor, 1 << 16)
        self.ended = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        understood = []
        for line in lines:
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                ((kind, content),) = json.loads(line).items()
                if kind in _NUMBERS:
                    fields = {name: int(content[name]) for name in _NUMBERS[kind]}
                    texts = {name: str(content[name]) for name in _TEXTS.get(kind, ()) if name in content}
                    understood.append({kind: {**fields, **texts}})
        return understood
