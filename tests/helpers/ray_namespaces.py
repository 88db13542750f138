"""Machines of a Ray cluster on this machine: each has namespaces of its own, so that they share nothing but TCP.

In: how many machines, and faults to inject. Out: the folder that is /tmp on a machine, commands that run there, and
their addresses. A machine has its own network, processes, host name, /tmp and /dev/shm; the rest of the file system
(Maya, torch, Python) is the same on all. Their network is a bridge in a network namespace of its own: nothing of this
machine's network is touched.

Each machine hangs on the standard input of its first process: when the test ends, or is killed, everything ends.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

_PORT = 6379
_BRIDGE = "ip link add bridge type bridge && ip link set bridge up && echo ready && read -r"
_STORE_BYTES = 100_000_000  # Ray's object store
_START_SECONDS = 180.0
_SLOW_LINK = Path(__file__).with_name("slow_link.py")
_NETWORK = "10.77.0"
# The whole life of a machine. bash, because the first process has to reap orphans.
_FIRST_PROCESS = (
    'mount --bind "$3" /etc/hosts && mount --bind "$1" /tmp && mount -t tmpfs -o size=512m tmpfs /dev/shm && '
    'hostname "$2" && ip link set lo up && echo ready && read -r'
)
# A raylet that is silent is lost after about ten seconds; a busy machine must not be taken for one.
_FAST_DETECTION = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
# For all processes. Ray asks for a token if there is one in the home folder, which the machines share.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "120"}


def missing() -> str:
    """Why machines cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    programs = ("unshare", "nsenter", "ip", "bridge", "bash")
    absent = [name for name in programs if shutil.which(name) is None]
    if absent:
        return f"namespaces need {', '.join(absent)}"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc",
         "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"],
        capture_output=True, text=True,
    )  # fmt: skip
    return "" if tried.returncode == 0 else f"namespaces cannot be made: {tried.stderr.strip()}"


class NamespacedMachine:
    """A machine; it is lost when its first process ends."""

    def __init__(self, number: int, folder: Path, hub: int, delay: float = 0.0) -> None:
        self._delay = delay  # milliseconds
        self._slow_link: subprocess.Popen[str] | None = None
        self.number = number
        self.name = f"machine{number}"
        self.address = f"{_NETWORK}.{number + 1}"
        self.tmp = folder / self.name  # its /tmp
        self.tmp.mkdir(parents=True)
        self.link = f"port{number}"  # its end at the bridge
        self._hub = hub
        self._unshare = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc",
             "bash", "-c", _FIRST_PROCESS, "bash", self.tmp, self.name, folder / "hosts"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        hub = self._hub
        assert self._unshare.stdout is not None
        assert self._unshare.stdout.readline() == "ready\n"
        self._first = _child_of(self._unshare.pid)
        if self._delay > 0:
            self._slow_link = subprocess.Popen(
                [sys.executable, _SLOW_LINK, str(hub), self.link, str(self._first), str(self._delay)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert self._slow_link.stdout is not None
            assert self._slow_link.stdout.readline() == "ready\n"
        else:
            _in_network(hub, f"ip link add {self.link} type veth peer name eth0 netns {self._first}")
        _in_network(hub, f"ip link set {self.link} master bridge up")
        _in_network(self._first, f"ip addr add {self.address}/24 dev eth0")
        _in_network(self._first, "ip link set eth0 up")

    def command(self, words: Sequence[str | Path]) -> list[str]:
        """The command line that runs a command on this machine."""
        entered = ["nsenter", f"--target={self._first}", "--net", "--mount", "--pid", "--uts", "--ipc", "--wdns=/tmp"]
        return [*entered, *map(str, words)]

    def start(
        self,
        words: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        folder: str = "/tmp",
        **details: int,
    ) -> subprocess.Popen[str]:
        """Begin a command in a session of its own. `folder`: its current folder there. `details`: as for Popen."""
        placed = ["env", f"--chdir={folder}", *words]
        full = {**os.environ, **_ENVIRONMENT, **(environment or {})}
        return subprocess.Popen(self.command(placed), env=full, text=True, start_new_session=True, **details)  # type: ignore[call-overload, no-any-return]

    def run(
        self,
        words: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        folder: str = "/tmp",
        timeout: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, and return its output."""
        process = self.start(words, environment, folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, errors = process.communicate()
            raise AssertionError(f"{shlex.join(map(str, words))} takes longer:\n{output}{errors}") from None
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    @property
    def is_running(self) -> bool:
        return self._unshare.poll() is None

    def command_lines(self) -> list[str]:
        """The command lines of its processes, without the first one's and this query's."""
        listed = self.run(["sh", "-c", "for each in /proc/[0-9]*; do tr '\\0' ' ' < $each/cmdline; echo; done"]).stdout
        found = [line.strip() for line in listed.splitlines()]
        return [line for line in found if line and "/cmdline" not in line and not line.startswith(("bash -c", "tr "))]

    def cut_off(self) -> None:
        """Drop all packets to and from it; connections stay open."""
        _in_network(self._hub, f"bridge link set dev {self.link} state disabled")

    def join_again(self) -> None:
        _in_network(self._hub, f"bridge link set dev {self.link} state forwarding")

    def kill(self) -> None:
        """End it with all its processes, at once and without a last packet, as a power cut does."""
        self.cut_off()
        self.close()

    def close(self) -> None:
        for process in (self._unshare, self._slow_link):
            if process is not None:
                process.kill()
                process.communicate()


class RayNamespaces:
    """A Ray cluster of `nodes` machines, the first of which is the head, and `strangers`: machines on the same network
    without Ray. A context manager."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        strangers: int = 0,
        processors: int = 1,
        resources: Mapping[int, str] | None = None,
        fast_detection: bool = True,
        delay: float = 0.0,
    ) -> None:
        """`folder` gets the machines' /tmp and Ray's output. `resources`: by number of a machine, as `ray start
        --resources` takes them. `fast_detection`: a silent machine is lost in about ten seconds.
        `delay`: milliseconds that a packet takes from a machine to the bridge between them, or back."""
        self.address = f"{_NETWORK}.1:{_PORT}"
        self.machines: list[NamespacedMachine] = []
        self._folder = folder
        self._raylets: list[subprocess.Popen[str]] = []
        self._environment = _FAST_DETECTION if fast_detection else {}
        self._processors = processors
        self._delay = delay
        self._resources = resources or {}
        self._stack = ExitStack()
        try:
            self._begin(nodes, strangers)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RayNamespaces:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self,
        words: Sequence[str | Path],
        node: int = 0,
        environment: Mapping[str, str] | None = None,
        folder: str = "/tmp",
        timeout: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        return self.machines[node].run(words, environment, folder, timeout)

    def kill(self, node: int) -> None:
        """A power cut of this machine."""
        self.machines[node].kill()
        if node < len(self._raylets):
            self._raylets[node].wait()

    def cut_off(self, node: int, seconds: float) -> None:
        """Drop all packets of this machine for a while."""
        self.machines[node].cut_off()
        time.sleep(seconds)
        self.machines[node].join_again()

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
        for raylet in self._raylets:
            raylet.wait()
        self._stack.close()

    def _begin(self, nodes: int, strangers: int) -> None:
        hub = self._stack.enter_context(_Hub())
        hosts = [
            f"{prefix}{_NETWORK}.{number + 1} machine{number}\n"
            for number in range(nodes + strangers)
            for prefix in ("", "::ffff:")  # as torch asks for the name of an address
        ]
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *hosts]), encoding="ascii")
        for number in range(nodes + strangers):
            self.machines.append(NamespacedMachine(number, self._folder, hub.pid, self._delay))
        until = time.monotonic() + _START_SECONDS
        for number in range(nodes):
            head = ["--head", f"--port={_PORT}", "--include-dashboard=false"] if number == 0 else []
            self._start_raylet(number, head or [f"--address={self.address}"])
            if number == 0:  # the others need it
                self._wait(lambda: "Ray runtime started" in self._log(0), until)
        self._wait(lambda: all("Ray runtime started" in self._log(number) for number in range(nodes)), until)

    def _start_raylet(self, number: int, words: Sequence[str]) -> None:
        machine = self.machines[number]
        details = [f"--node-ip-address={machine.address}", f"--object-store-memory={_STORE_BYTES}",
                   f"--num-cpus={self._processors}", f"--resources={self._resources.get(number, '{}')}"]  # fmt: skip
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words, *details]
        with (self._folder / f"raylet{number}.log").open("w") as log:
            self._raylets.append(
                machine.start(
                    command, self._environment, stdin=subprocess.DEVNULL, stdout=log.fileno(), stderr=subprocess.STDOUT
                )
            )

    def _log(self, number: int) -> str:
        return (self._folder / f"raylet{number}.log").read_text(encoding="utf-8")

    def _wait(self, happened: object, until: float) -> None:
        assert callable(happened)
        while not happened():
            for number, raylet in enumerate(self._raylets):
                assert raylet.poll() is None, self._log(number)
            assert time.monotonic() < until, "".join(map(self._log, range(len(self._raylets))))
            time.sleep(0.1)


class _Hub:
    """The network between the machines: a bridge."""

    def __enter__(self) -> _Hub:
        self._process = subprocess.Popen(
            ["unshare", "--net", "bash", "-c", _BRIDGE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _in_network(pid: int, command: str) -> None:
    subprocess.run(["nsenter", f"--target={pid}", "--net", *command.split()], check=True)


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0])
