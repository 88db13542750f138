"""Everything that can go wrong with a job, on purpose: each fault ends it soon, with torchrun's exit code and a message
that names the rank and the cause; logs are kept, and no process, socket, shared memory or temporary file is left.

Where a rank fails, the others wait for much longer than the test does. Most scripts do not need torch; then
`--no-preload` saves its import.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.marked_processes import processes_with

from rank_runtime.build import Build

_PATIENCE_SECONDS = 10.0
WAIT = "import time; time.sleep(600)"


@dataclass(frozen=True)
class Job:
    """A maya-torchrun under way, in a folder of its own."""

    process: subprocess.Popen[str]
    folder: Path
    mark: str  # in the environment of all its processes

    def end(self, timeout: float = 120) -> tuple[int, str, str]:
        output, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, output, errors

    def wait_for(self, file: str) -> str:
        """What a rank has written into a file, once it has."""
        deadline = time.monotonic() + 120
        while not (self.folder / file).exists() or not (self.folder / file).read_text():
            assert time.monotonic() < deadline, f"no {file}"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)
        return (self.folder / file).read_text()

    def wait_for_zygote(self) -> None:
        deadline = time.monotonic() + 120
        while not any("maya-zygote" in process for process in processes_with(self.mark)):
            assert time.monotonic() < deadline, "no zygote"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)


def belongings(folder: Path, mark: str) -> list[str]:
    """What a job may not leave behind. Its sockets have no file, and are gone with its processes."""
    shared_memory = [path.name for path in Path("/dev/shm").glob("*maya*")]
    temporary = [str(path) for path in (folder / "tmp").rglob("*")]
    return [*processes_with(mark), *shared_memory, *temporary]


def set_limits(limits: Mapping[int, int]) -> None:
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


Start = Callable[..., Job]


@pytest.fixture
def start(build: Build, tmp_path: Path) -> Iterator[Start]:
    """Starts jobs in the test's folder, and looks for what they leave behind."""
    before = set(belongings(tmp_path, "no such mark"))
    jobs: list[Job] = []

    def begin(
        script: str, *words: str, environment: Mapping[str, str] | None = None, limits: Mapping[int, int] | None = None
    ) -> Job:
        (tmp_path / "train.py").write_text(textwrap.dedent(script), encoding="utf-8")
        (tmp_path / "tmp").mkdir(exist_ok=True)
        mark = f"MAYA_TEST_MARK={uuid.uuid4().hex}"
        process = subprocess.Popen(
            [sys.executable, "-m", "maya.launcher", "--out", "run", *(words or ["train.py"])],
            cwd=tmp_path,
            env={**os.environ, **dict([mark.split("=")]), "TMPDIR": str(tmp_path / "tmp"), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: set_limits(limits or {}),
        )
        jobs.append(Job(process, tmp_path, mark))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.communicate()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while left := set(belongings(tmp_path, job.mark)) - before:
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)


def root_cause(errors: str) -> str:
    return errors.split("Root Cause (first observed failure):")[1]


# ---- ranks ----


@pytest.mark.parametrize(
    ("fault", "expected", "said"),
    [
        ("raise ValueError('bad data')", "exitcode  : 1 (pid: ", "ValueError: bad data"),
        ("import os; os._exit(3)", "exitcode  : 3 (pid: ", ""),
        ("import os; os.kill(os.getpid(), 9)", "(SIGKILL)", "Signal 9 (SIGKILL) received by PID"),
        ("import os; os.abort()", "(SIGABRT)", "Signal 6 (SIGABRT) received by PID"),
        (
            "import torch; torch.empty(1 << 40, device='cuda')",
            "exitcode  : 1 (pid: ",
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 0 has a total capacity of 79.",
        ),
    ],
    ids=["raises", "os._exit", "killed", "aborts", "out of memory"],
)
def test_a_failed_rank_ends_the_job(start: Start, fault: str, expected: str, said: str) -> None:
    script = f"import os\nif os.environ['RANK'] == '1':\n    {fault}\n{WAIT}"
    job = start(script, "--nproc", "3", "--no-preload", "train.py")
    exit_code, _, errors = job.end()
    assert exit_code == 1
    assert said in errors
    assert "rank      : 1 (local_rank: 1)" in root_cause(errors)
    assert expected in root_cause(errors)
    others = errors.split("Root Cause")[0]
    assert "rank      : 0 (local_rank: 0)" in others
    assert "rank      : 2 (local_rank: 2)" in others
    assert others.count("(SIGTERM)") == 4
    summary = json.loads((job.folder / "run" / "summary.json").read_text())
    assert summary["exit_code"] == 1
    assert [rank["exit_code"] for rank in summary["ranks"]][::2] == [-15, -15]
    assert (job.folder / "run" / "logs").is_dir()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_failed_rank_ends_ranks_that_wait_for_it(start: Start, backend: str) -> None:
    text = f"""
        import os, torch, torch.distributed as dist
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("{backend}")
        x = torch.ones(4, device="{"cuda" if backend == "nccl" else "cpu"}")
        dist.all_reduce(x)
        if dist.get_rank() == 1:
            os._exit(7)
        dist.all_reduce(x)
        print(x.tolist())
        torch.cuda.synchronize()
    """
    exit_code, output, errors = start(text, "--nproc", "3", "train.py").end()
    assert (exit_code, output) == (1, "")
    assert "rank      : 1 (local_rank: 1)" in root_cause(errors)
    assert "exitcode  : 7 (pid: " in root_cause(errors)


def test_several_ranks_that_fail_at_once_are_reported(start: Start) -> None:
    text = """
        import os
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            raise RuntimeError("rank " + os.environ["RANK"])

        main()
    """
    exit_code, _, errors = start(text, "--nproc", "4", "train.py").end()
    assert exit_code == 1
    root = int(root_cause(errors).split("rank      : ")[1].split()[0])
    assert f"RuntimeError: rank {root}" in root_cause(errors)
    assert "error_file: <N/A>" not in root_cause(errors)


def test_a_rank_that_ignores_sigterm_is_killed(start: Start) -> None:
    text = f"""
        import os, pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        rank = os.environ["RANK"]
        if rank == "0" and os.fork() == 0:
            {WAIT}
        pathlib.Path("ready" + rank).write_text("yes")
        while rank == "1":
            if pathlib.Path("ready0").exists(): sys.exit(1)
        {WAIT}
    """
    exit_code, _, errors = start(text, "--nproc", "2", "--no-preload", "--shutdown-timeout", "1", "train.py").end()
    assert exit_code == 1
    assert "rank      : 1" in root_cause(errors)
    assert "(SIGKILL)" in errors.split("Root Cause")[0]


# ---- the other processes ----

FIND = """
    import os, pathlib, signal, sys, time
    zygote = os.getppid()
    children = [int(c) for c in pathlib.Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()]
    name = lambda process: pathlib.Path(f"/proc/{process}/comm").read_text().strip()
    coordinator = next(c for c in children if name(c) == "maya-coord")
    assert name(zygote) == "maya-zygote"
"""


@pytest.mark.parametrize(
    ("victim", "said"),
    [
        ("coordinator", "the coordinator (pid {}) was ended by SIGKILL"),
        ("zygote", "the zygote (the process that forks the ranks) was ended by SIGKILL"),
    ],
)
def test_a_killed_helper_process_ends_the_job(start: Start, victim: str, said: str) -> None:
    text = f"""
        if os.environ["RANK"] == "0":
            child = os.fork()  # as a data loader's worker
            if child == 0: {WAIT}
            pathlib.Path("victim").write_text(str({victim}))
            os.kill({victim}, signal.SIGKILL)
        {WAIT}
    """
    job = start(textwrap.dedent(FIND) + textwrap.dedent(text), "--no-preload", "--nproc", "3", "train.py")
    exit_code, _, errors = job.end()
    assert exit_code == 1
    assert said.format((job.folder / "victim").read_text()) in errors
    assert json.loads((job.folder / "run" / "summary.json").read_text())["problem"] in errors


@pytest.mark.parametrize("ranks", ["1", "3"])
def test_a_killed_launcher_leaves_no_processes(start: Start, ranks: str) -> None:
    text = f"""
        import os, pathlib, time
        rank = os.environ["RANK"]
        if os.fork() == 0: {WAIT}
        pathlib.Path("ready" + rank).write_text("yes")
        {WAIT}
    """
    job = start(text, "--nproc", ranks, "--no-preload", "train.py")
    for rank in range(int(ranks)):
        job.wait_for(f"ready{rank}")
    job.process.kill()
    assert job.end()[0] == -signal.SIGKILL


def test_a_launcher_killed_during_imports_leaves_no_processes(start: Start) -> None:
    job = start(f"import slow\n{WAIT}", "--nproc", "2", "train.py")
    (job.folder / "slow.py").write_text(f"import pathlib, sys\nsys.stderr.flush()\n{WAIT}")
    job.wait_for_zygote()
    job.process.kill()
    assert job.end()[0] == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_launcher_stops_its_ranks(start: Start, number: signal.Signals) -> None:
    text = f"""
        import os, pathlib, signal, sys, time
        rank = os.environ["RANK"]
        if rank == "2":
            signal.signal({int(number)}, lambda *_: (print("told"), sys.exit(0)))
        pathlib.Path("ready" + rank).write_text("yes")
        {WAIT}
    """
    job = start(text, "--nproc", "3", "--no-preload", "--max-restarts", "3", "train.py")
    for rank in range(3):
        job.wait_for(f"ready{rank}")
    job.process.send_signal(number)
    exit_code, output, errors = job.end()
    assert (exit_code, output) == (1, "told\n")
    assert f"got {number.name}, passing it on; SIGKILL in 30 s" in errors
    assert "Root Cause" not in errors
    summary = json.loads((job.folder / "run" / "summary.json").read_text())
    assert (summary["stopped_by"], summary["attempts"]) == (number.name, 1)
    codes = [rank["exit_code"] for rank in summary["ranks"]]
    assert codes == [-number, -number, 0]


def test_a_second_interrupt_ends_ranks_that_ignore_the_first(start: Start) -> None:
    text = f"""
        import pathlib, signal, time
        signal.signal(signal.SIGINT, lambda *_: pathlib.Path("told").write_text("yes"))
        pathlib.Path("ready").write_text("yes")
        {WAIT}
    """
    job = start(text, "--nproc", "1", "--no-preload", "--shutdown-timeout", "3600", "train.py")
    job.wait_for("ready")
    job.process.send_signal(signal.SIGINT)
    job.wait_for("told")
    job.process.send_signal(signal.SIGINT)
    exit_code, _, errors = job.end()
    assert exit_code == 1
    assert "SIGKILL in 3600 s, or at once with another Ctrl-C" in errors
    assert "got SIGINT again: SIGKILL now" in errors


def test_a_launcher_stopped_during_imports_leaves_no_processes(start: Start) -> None:
    job = start(WAIT, "--nproc", "2", "train.py")
    job.wait_for_zygote()
    job.process.send_signal(signal.SIGINT)
    exit_code, _, errors = job.end()
    assert exit_code == 1
    assert "got SIGINT" in errors


# ---- the machine ----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for almost nothing."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") is not None and os.geteuid() == 0
    words = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if not mounted or subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs to mount a small tmpfs, which takes root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_reported(start: Start, small_disk: Path) -> None:
    text = """
        import os
        for line in range(100_000):
            print("a line of output", line)
    """
    job = start(text, "--nproc", "2", "--no-preload", "--redirects", "3", "--log-dir", str(small_disk), "train.py")
    exit_code, _, errors = job.end()
    assert exit_code == 1
    assert "exitcode  : 1 (pid: " in root_cause(errors)
    written = sum(file.stat().st_size for file in small_disk.rglob("*.log"))
    assert written > 50_000  # kept


def test_a_disk_full_of_traces_is_reported(start: Start, small_disk: Path) -> None:
    text = """
        import torch
        x = torch.ones(64, 64, device="cuda")
        for step in range(10_000):
            x = x + 1
        torch.cuda.synchronize()
        print("done")
    """
    job = start(text, "--nproc", "2", "--out", str(small_disk / "full"), "train.py")
    exit_code, output, errors = job.end()
    assert output.count("done") == 2  # lines of two ranks may mix
    assert exit_code == 0
    assert "No space left on device. The trace ends here; the program and its clocks continue" in errors
    assert "no prediction: no step was recorded to its end: the traces of ranks 0-1 are cut short" in errors
    assert "the disk was full (No space left on device); make room there" in errors
    assert not list((small_disk / "full").rglob("*.tmp"))


def test_a_disk_that_is_full_from_the_start_is_reported(start: Start, small_disk: Path) -> None:
    with pytest.raises(OSError), (small_disk / "filler").open("wb") as filler:  # noqa: PT012
        while True:
            filler.write(bytes(4096))
            filler.flush()
    for number in range(200):  # the number of inodes is limited
        try:
            (small_disk / f"file{number}").touch()
        except OSError:
            break
    job = start("print('started')", "--nproc", "2", "--out", str(small_disk / "run"), "train.py")
    exit_code, _, errors = job.end()
    assert exit_code in (1, 2)
    assert "No space left on device" in errors
    assert str(small_disk) in errors


def test_too_few_open_files_are_reported(start: Start) -> None:
    job = start("print('started')", "--nproc", "64", "train.py", limits={resource.RLIMIT_NOFILE: 128})
    exit_code, output, errors = job.end()
    assert (exit_code, output) == (2, "")
    assert "open files: at most 128; 64 ranks need 192" in errors


def test_a_port_in_use_is_reported(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        job = start("print('started')", "--nproc", "2", "--master-port", str(port), "train.py")
        exit_code, output, errors = job.end()
    assert (exit_code, output) == (1, "")
    assert f"port {port} is in use" in errors
    assert "--master-port" in errors


# ---- the command ----


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_missing_script_is_reported(start: Start, ranks: str) -> None:
    job = start("", "--nproc", ranks, "nowhere.py")
    exit_code, _, errors = job.end()
    assert exit_code == 1
    assert errors.count(f"can't open file '{job.folder / 'nowhere.py'}': [Errno 2] No such file or directory") >= 1
    assert "exitcode  : 2" in root_cause(errors)


def test_a_missing_module_is_reported(start: Start) -> None:
    exit_code, _, errors = start("", "--no-preload", "--nproc", "2", "-m", "no_such_package.train").end()
    assert exit_code == 1
    assert "Error while finding module specification for 'no_such_package.train'" in errors
    exit_code, _, errors = start("", "--no-preload", "--nproc", "2", "--out", "run2", "-m", "no_such_module").end()
    assert exit_code == 1
    assert "No module named no_such_module" in errors


def test_a_failed_import_is_reported(start: Start) -> None:
    exit_code, _, errors = start("import no_such_module", "--no-preload", "--nproc", "2", "train.py").end()
    assert exit_code == 1
    assert "ModuleNotFoundError: No module named 'no_such_module'" in errors


def test_contradictory_numbers_of_ranks_are_refused(start: Start) -> None:
    exit_code, _, errors = start("", "--nproc", "4", "--nnodes", "2", "--nproc-per-node", "8", "train.py").end()
    assert exit_code == 2
    assert "--nproc 4 contradicts --nnodes 2 x --nproc-per-node 8 = 16 ranks" in errors
