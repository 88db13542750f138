"""maya-torchrun: its command line, what a worker finds in its environment, its output, signals and failures.

None of the scripts here touches a GPU; tests/programs/test_tiny.py does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maya.launcher.arguments import StreamChoice, parse
from maya.launcher.failure import Failure, failure_block
from maya.launcher.worker_environment import RendezvousAddress, worker_variables
from rank_runtime.build import Build
from rank_runtime.environment import RANK_VARIABLES, VariableError, rank_environment

if TYPE_CHECKING:
    from conftest import Run

    MayaRun = Callable[..., Run]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    return str(path)


def refusal(capsys: pytest.CaptureFixture[str], *words: str, **environment: str) -> str:
    """The message with which a command line is refused."""
    with pytest.raises(SystemExit) as stopped:
        parse(words, environment)
    assert stopped.value.code == 2
    return capsys.readouterr().err


# ---- the command line ----


def test_everything_after_the_script_is_the_scripts(script: str) -> None:
    own = ["--gpu", "b200", "--help", "-m", "--", "--nproc=3", "--local", "--no=4"]  # even what could be two of ours
    launch = parse(["--gpu", "a40", script, *own], {})
    assert launch.gpu == "a40"
    assert launch.command == (sys.executable, "-u", script, *own)


def test_defaults(script: str) -> None:
    launch = parse([script], {})
    assert (launch.nodes, launch.ranks_per_node, launch.world_size) == (1, 1, 1)
    assert (launch.gpu, launch.role, launch.master_address, launch.master_port) == (
        "h100",
        "default",
        "127.0.0.1",
        None,
    )
    assert [s.name for s in launch.signals] == ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"]
    assert launch.shutdown_seconds == 30
    assert launch.variables == {}
    assert len(launch.run_id) == 36  # made up, since nobody chose a rendezvous


def test_dashes_and_underscores(script: str) -> None:
    for option in ("--max-restarts", "--max_restarts"):
        assert parse([option, "3", script], {}).max_restarts == 3
        assert parse([f"{option}=3", script], {}).max_restarts == 3
    assert parse(["--nproc_per_node=4", "--nnodes", "2", script], {}).world_size == 8


def test_pet_variables_are_defaults(script: str) -> None:
    environment = {"PET_ROLE": "trainer", "PET_MAX_RESTARTS": "2", "PET_NPROC_PER_NODE": "8", "PET_MODULE": "1"}
    launch = parse(["package.train"], environment)
    assert (launch.role, launch.max_restarts, launch.ranks_per_node) == ("trainer", 2, 8)
    assert launch.command == (sys.executable, "-u", "-m", "package.train")
    assert parse(["--role", "other", "package.train"], environment).role == "other"


def test_module_and_program() -> None:
    assert parse(["-m", "package.train", "-m"], {}).command == (sys.executable, "-u", "-m", "package.train", "-m")
    assert parse(["--no-python", "./train.sh", "1"], {}).command == ("./train.sh", "1")


def test_python_of_the_users_choice(script: str) -> None:
    assert parse([script], {"PYTHON_EXEC": "/opt/python"}).command == ("/opt/python", "-u", script)


@pytest.mark.parametrize(
    ("words", "nodes", "ranks_per_node"),
    [
        (["--nproc", "1"], 1, 1),
        (["--nproc", "4"], 1, 4),
        (["--nproc", "1024"], 128, 8),
        (["--nproc", "16", "--nnodes", "4"], 4, 4),
        (["--nproc", "16", "--nproc-per-node", "4"], 4, 4),
        (["--nproc", "16", "--nnodes", "4", "--nproc-per-node", "4"], 4, 4),
        (["--nnodes", "2:2", "--nproc-per-node", "gpu"], 2, 8),
        (["--nproc-per-node", "auto"], 1, 8),
        (["--nproc-per-node", "gpu", "--cluster", "gb200-nvl72"], 1, 4),
        (["--nproc", "8", "--cluster", "gb200-nvl72"], 2, 4),
        (["--nproc-per-node", "cpu"], 1, os.cpu_count()),
    ],
)
def test_world(script: str, words: list[str], nodes: int, ranks_per_node: int) -> None:
    launch = parse([*words, script], {})
    assert (launch.nodes, launch.ranks_per_node) == (nodes, ranks_per_node)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--nproc", "4", "--nnodes", "2", "--nproc-per-node", "8"],
            "--nproc 4 contradicts --nnodes 2 x --nproc-per-node 8",
        ),
        (["--nproc", "12"], "--nproc 12 does not fill 2 nodes evenly"),
        (["--nproc", "1", "--nnodes", "2"], "--nproc 1 does not fill 2 nodes evenly"),
        (["--nproc", "0"], "expected at least 1"),
        (["--nproc", "many"], "'many' is not a whole number"),
        (["--nnodes", "1:4"], "--nnodes 1:4: a varying number of nodes is not supported"),
        (["--nnodes", "some"], "--nnodes some: expected a number of nodes"),
        (["--nproc-per-node", "tpu"], "--nproc-per-node tpu: expected a number, gpu, auto or cpu"),
        (["--redirects", "4"], "--redirects 4: expected 0, 1, 2 or 3"),
        (["--signals-to-handle", "SIGTERM,SIGKILL"], "SIGKILL is not a signal that can be handled"),
        (["--local-ranks-filter", "a"], "--local-ranks-filter a: expected local ranks"),
        (["--rdzv-backend", "etcd"], "--rdzv-backend etcd is not supported yet"),
        (["--rdzv-endpoint", "nowhere"], "--rdzv-endpoint nowhere: expected <host>:<port>"),
        (["--node-rank", "1"], "--node-rank 1: all nodes are virtual"),
        (["--numa-binding", "node"], "--numa-binding is not supported yet"),
        (["--logs-specs", "mine"], "--logs-specs is not supported yet"),
        (["--event-log-handler", "mine"], "--event-log-handler is not supported yet"),
        (["--duplicate-stdout-filters", "a"], "--duplicate-stdout-filters is not supported yet"),
        (["--module", "--no-python"], "--no-python and --module exclude each other"),
        (["--compute", "some"], "invalid choice: 'some'"),
        (["--cluster", "dgx-h10"], '--cluster: unknown cluster "dgx-h10" (did you mean dgx-h100'),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], script: str, words: list[str], expected: str) -> None:
    assert expected in refusal(capsys, *words, script)


def test_refused_without_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert "training_script" in refusal(capsys)
    assert "PET_MODULE=yes: expected 0 or 1" in refusal(capsys, "train", PET_MODULE="yes")


def test_rendezvous(script: str) -> None:
    def place(*words: str) -> tuple[str, str, int | None]:
        launch = parse([*words, script], {})
        return launch.run_id, launch.master_address, launch.master_port

    assert place("--master-port", "1234", "--master-addr", "10.0.0.1") == ("none", "10.0.0.1", 1234)
    assert place("--rdzv-endpoint", "10.0.0.1:99", "--rdzv-id", "job") == ("job", "10.0.0.1", 99)
    assert place("--rdzv-backend", "c10d", "--rdzv-endpoint", "host:1", "--rdzv-id", "job") == (
        "job",
        "127.0.0.1",
        None,
    )
    assert place("--standalone", "--rdzv-id", "job")[0] != "job"


def test_stream_codes(script: str) -> None:
    launch = parse(["--nproc", "8", "-r", "0:1,1:3", "-t", "2", script], {})
    codes = [launch.redirects.of(local_rank) for local_rank in range(3)]
    assert codes == [
        StreamChoice(stdout=True, stderr=False),
        StreamChoice(stdout=True, stderr=True),
        StreamChoice(False, False),
    ]
    assert [launch.tee.of(local_rank) for local_rank in (0, 7)] == [StreamChoice(stdout=False, stderr=True)] * 2


def test_own_options_become_variables(script: str) -> None:
    sizes = ["--compute-bytes", "7", "--copy-bytes", "8", "--collective-bytes", "9"]
    assert parse(["--compute", "all", *sizes, "--strict-values", script], {}).variables == {
        "MAYA_COMPUTE": "all",
        "MAYA_COMPUTE_BYTES": "7",
        "MAYA_COPY_BYTES": "8",
        "MAYA_COLLECTIVE_BYTES": "9",
        "MAYA_STRICT_VALUES": "1",
    }


# ---- the environment of a worker ----


def test_worker_variables_of_a_large_job(script: str) -> None:
    launch = parse(["--nproc", "1024", "--role", "trainer", script], {})
    variables = worker_variables(
        launch, 1021, RendezvousAddress(29500, "secret", hosted=True), 2, Path("error.json"), {}
    )
    expected = {
        "LOCAL_RANK": "5",
        "RANK": "1021",
        "GROUP_RANK": "127",
        "ROLE_RANK": "1021",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "8",
        "WORLD_SIZE": "1024",
        "GROUP_WORLD_SIZE": "128",
        "ROLE_WORLD_SIZE": "1024",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    assert expected.items() <= variables.items()
    kept = worker_variables(
        launch, 0, RendezvousAddress(1), 0, Path("e"), {"OMP_NUM_THREADS": "4", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    )
    assert "OMP_NUM_THREADS" not in kept
    assert kept["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_virtual_local_rank(script: str) -> None:
    launch = parse(["--nproc", "8", "--virtual-local-rank", script], {})
    variables = worker_variables(launch, 3, RendezvousAddress(1), 0, Path("e"), {})
    assert (variables["LOCAL_RANK"], variables["CUDA_VISIBLE_DEVICES"]) == ("0", "3")
    variables = worker_variables(launch, 1, RendezvousAddress(1), 0, Path("e"), {"CUDA_VISIBLE_DEVICES": "6, 7"})
    assert (variables["LOCAL_RANK"], variables["CUDA_VISIBLE_DEVICES"]) == ("0", "7")
    with pytest.raises(ValueError, match="no GPU for local rank 2"):
        worker_variables(launch, 2, RendezvousAddress(1), 0, Path("e"), {"CUDA_VISIBLE_DEVICES": "6, 7"})


def test_rank_environment_prefers_what_was_chosen(build: Build) -> None:
    inherited = {"MAYA_COMPUTE": "none", "MAYA_COPY_BYTES": "5", "MAYA_TRACE": "theirs", "LD_PRELOAD": "libjemalloc.so"}
    variables = rank_environment(
        build, {"name": "Mine", "sm_count": 3}, {"MAYA_COMPUTE": "all", "MAYA_TRACE": ""}, inherited
    )
    assert variables["MAYA_GPU_PROPERTIES"] == "name=Mine;sm_count=3"
    assert variables["MAYA_COMPUTE"] == "all"
    assert variables["MAYA_COPY_BYTES"] == "5"
    assert variables["MAYA_KEPT_BYTES"] == "268435456"
    assert variables["MAYA_TRACE"] == ""
    assert variables["LD_PRELOAD"].split(":") == [*map(str, build.libraries), "libjemalloc.so"]
    assert variables["TRITON_LIBCUDA_PATH"] == str(build.folder)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("MAYA_COMPUTE", "some", "MAYA_COMPUTE=some: expected none, small or all"),
        ("MAYA_GPUS", "eight", "MAYA_GPUS=eight: expected a whole number, e.g. 8"),
        ("MAYA_STRICT_VALUES", "yes", "MAYA_STRICT_VALUES=yes: expected 0 or 1"),
    ],
)
def test_rank_environment_refuses(build: Build, name: str, value: str, expected: str) -> None:
    with pytest.raises(VariableError) as refused:
        rank_environment(build, {}, {}, {name: value})
    assert str(refused.value) == expected


def test_the_table_names_what_the_device_reads() -> None:
    runtime = Path(__file__).parents[2] / "rank_runtime"
    device = runtime / "shim" / "device"
    files = (device / "settings.c", device / "faults.c", runtime / "zygote" / "clock.py")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    for variable in RANK_VARIABLES:
        assert f'"{variable.name}"' in text


# ---- whole runs ----


def test_a_worker_sees_torchruns_environment(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import json, os, sys
        session = os.getsid(0) == os.getpid()
        print(json.dumps({"environment": dict(os.environ), "arguments": sys.argv, "session": session}))
        """,
        "--role",
        "trainer",
        script_arguments=["--help", "a b"],
    )
    assert run.exit_code == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["arguments"][1:] == ["--help", "a b"]
    assert seen["session"]
    environment = seen["environment"]
    expected = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "0",
        "ROLE_NAME": "trainer",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "MAYA_COMPUTE": "small",
        "MAYA_TRACE": str(run.trace),
    }
    assert expected.items() <= environment.items()
    assert int(environment["MASTER_PORT"]) > 0
    assert environment["MAYA_GPU_PROPERTIES"].startswith("name=NVIDIA H100 80GB HBM3;")
    assert "libmaya_device.so" in environment["LD_PRELOAD"]
    assert environment["TORCHELASTIC_ERROR_FILE"].startswith(str(run.folder / "logs"))
    assert environment["TORCHELASTIC_ERROR_FILE"].endswith("/attempt_0/0/error.json")
    assert "asked nothing of its GPU" in run.stderr


def test_nothing_is_recorded_without_a_trace(maya_run: MayaRun) -> None:
    run = maya_run("import os; print([os.environ['MAYA_TRACE']])", "--no-trace", environment={"MAYA_TRACE": "theirs"})
    assert run.stdout == "['']\n"
    assert "recorded" not in run.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--gpu", "h10"], 'unknown GPU "h10" (did you mean h100'),
        (["--gpu", "nowhere.toml"], "no GPU file nowhere.toml"),
    ],
)
def test_a_job_that_cannot_start(maya_run: MayaRun, options: list[str], expected: str) -> None:
    run = maya_run("print('started')", *options)
    assert run.exit_code == 2
    assert expected in run.stderr
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1


def test_a_broken_variable_is_refused(maya_run: MayaRun) -> None:
    run = maya_run("print('started')", environment={"MAYA_COMPUTE": "some"})
    assert (run.exit_code, run.stdout) == (2, "")
    assert "MAYA_COMPUTE=some: expected none, small or all" in run.stderr


def test_cpu_only_torch_is_refused(maya_run: MayaRun, tmp_path: Path) -> None:
    package = tmp_path / "cpu" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    run = maya_run("print('started')", environment={"PYTHONPATH": str(package.parent)})
    assert (run.exit_code, run.stdout) == (2, "")
    assert "torch 2.13.0+cpu" in run.stderr
    assert "CPU-only build" in run.stderr
    assert "pip install --no-deps torch" in run.stderr


def test_missing_compiler_is_said(maya_run: MayaRun, tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "CC": "", "CXX": "", "MAYA_CACHE": str(tmp_path / "cache")}
    run = maya_run("print('started')", environment=environment)
    assert (run.exit_code, run.stdout) == (2, "")
    assert "No C compiler found" in run.stderr
    assert "gcc" in run.stderr


def test_out_folder_is_not_overwritten(maya_run: MayaRun, tmp_path: Path) -> None:
    (tmp_path / "run1").mkdir()
    (tmp_path / "run1" / "precious").touch()
    run = maya_run("print('started')")
    assert (run.exit_code, run.stdout) == (2, "")
    assert "is not empty" in run.stderr


def test_runs_are_numbered(script: str, build: Build, tmp_path: Path) -> None:
    for number in (1, 2):
        ended = launcher(tmp_path, script)
        assert ended.wait(timeout=60) == 0
        assert (tmp_path / "maya-runs" / f"train-{number}" / "logs").is_dir()


def test_a_module_is_run_from_the_current_folder(tmp_path: Path, build: Build) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys\nprint('trained', *sys.argv[1:])\n")
    ended = launcher(tmp_path, "-m", "package.train", "--fast")
    output, _ = ended.communicate(timeout=60)
    assert (ended.returncode, output) == (0, "trained --fast\n")


def test_a_program_of_its_own(tmp_path: Path, build: Build) -> None:
    ended = launcher(tmp_path, "--no-python", "/bin/sh", "-c", "echo rank $RANK; exit 3")
    output, errors = ended.communicate(timeout=60)
    assert (ended.returncode, output) == (1, "rank 0\n")
    assert "exitcode  : 3" in errors
    missing = launcher(tmp_path, "--no-python", "/no/such/program")
    _, errors = missing.communicate(timeout=60)
    assert missing.returncode == 2
    assert "cannot start /no/such/program: No such file or directory" in errors


def test_redirected_output(maya_run: MayaRun) -> None:
    text = "import sys; print('to out'); print('to err', file=sys.stderr)"
    run = maya_run(text, "--redirects", "3")
    assert "to out" not in run.stdout
    assert "to err" not in run.stderr
    assert log(run, "stdout.log") == "to out\n"
    assert "to err\n" in log(run, "stderr.log")


def test_tee(maya_run: MayaRun, tmp_path: Path) -> None:
    text = "import sys; print('one'); print('two', end='')"
    run = maya_run(text, "--tee", "1", "--role", "trainer", "--log-dir", str(tmp_path / "elsewhere"))
    assert run.stdout == "[trainer0]:one\n[trainer0]:two\n"
    [file] = (tmp_path / "elsewhere").glob("*/attempt_0/0/stdout.log")
    assert file.read_text() == "one\ntwo"
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}/${local_rank}> "}
    assert maya_run(text, "--tee", "3", environment=template).stdout == "default/0> one\ndefault/0> two\n"


def test_output_of_other_ranks_only(maya_run: MayaRun) -> None:
    run = maya_run("print('hidden')", "--local-ranks-filter", "1", "--tee", "1")
    assert run.stdout == ""
    assert log(run, "stdout.log") == "hidden\n"
    assert maya_run("print('hidden')", "--local-ranks-filter", "1").stdout == ""


def test_failure_block(maya_run: MayaRun) -> None:
    run = maya_run("import sys; sys.exit(7)")
    assert run.exit_code == 1
    assert "script1.py FAILED\n" in run.stderr
    assert "Root Cause (first observed failure):" in run.stderr
    assert "  rank      : 0 (local_rank: 0)" in run.stderr
    assert "  exitcode  : 7 (pid: " in run.stderr
    assert "  error_file: <N/A>" in run.stderr


def test_failure_by_a_signal(maya_run: MayaRun) -> None:
    run = maya_run("import os; os.kill(os.getpid(), 11)")
    assert run.exit_code == 1
    assert "  exitcode  : -11 (pid: " in run.stderr
    assert ")  (SIGSEGV)" in run.stderr
    assert "Signal 11 (SIGSEGV) received by PID" in run.stderr


def test_failure_with_an_error_file(maya_run: MayaRun, tmp_path: Path) -> None:
    above = tmp_path / "above.json"
    run = maya_run(
        """
        import json, os, sys
        details = {"py_callstack": "Traceback:\\n  line", "timestamp": "7"}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": {"message": "ValueError: bad", "extraInfo": details}}, file)
        sys.exit(3)
        """,
        environment={"TORCHELASTIC_ERROR_FILE": str(above)},
    )
    assert run.exit_code == 1
    assert "  traceback : Traceback:\n    line\n" in run.stderr
    assert "  error_file: " + str(run.folder) in run.stderr
    assert json.loads(above.read_text())["message"]["errorCode"] == 3


def test_torchs_record_decorator(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            raise RuntimeError("recorded")

        main()
        """
    )
    assert run.exit_code == 1
    assert "RuntimeError: recorded" in run.stderr.split("Root Cause")[1]


def test_failure_block_names_the_earliest_as_root_cause() -> None:
    failures = [Failure(rank, rank, 100 + rank, 1, "<N/A>", "text", 50 - rank) for rank in range(3)]
    block = failure_block("train.py", failures)
    others, root = block.split("Root Cause (first observed failure):")
    assert "rank      : 2" in root
    assert "rank      : 0" in others
    assert "rank      : 1" in others


def test_restarts(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import os, sys
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("attempt", attempt, "of", os.environ["TORCHELASTIC_MAX_RESTARTS"])
        sys.exit(attempt != "2")
        """,
        "--max-restarts",
        "3",
    )
    assert run.exit_code == 0
    assert run.stdout == "attempt 0 of 3\nattempt 1 of 3\nattempt 2 of 3\n"
    assert run.stderr.count("FAILED") == 2
    assert maya_run("import sys; sys.exit(1)", "--max-restarts", "1").stderr.count("FAILED") == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signals_are_passed_on(tmp_path: Path, build: Build, number: signal.Signals) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: (print('got it', flush=True), sys.exit(5)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = launcher(tmp_path, str(script))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert output == "got it\n"
    assert f"got {number.name}, passing it on" in errors


def test_a_worker_that_will_not_stop_is_killed_with_its_children(tmp_path: Path, build: Build) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = launcher(tmp_path, "--shutdown-timeout", "1", "--max-restarts", "3", str(script))
    assert process.stdout is not None
    child = int(process.stdout.readline())
    began = time.monotonic()
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 1
    assert 0.9 < time.monotonic() - began < 10
    assert not is_running(child)


def test_a_worker_ends_with_its_launcher(tmp_path: Path, build: Build) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    process = launcher(tmp_path, str(script))
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(worker)


def test_children_of_a_failed_worker_are_killed(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import os, sys, time
        child = os.fork()
        if child == 0:
            os.close(1), os.close(2)
            time.sleep(60)
        print(child)
        sys.exit(1)
        """
    )
    assert run.exit_code == 1
    assert not is_running(int(run.stdout))


def launcher(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A maya-torchrun under way; the test waits for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "maya.launcher", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def log(run: Run, name: str) -> str:
    [file] = (run.folder / "logs").glob(f"*/attempt_0/0/{name}")
    return file.read_text()


def is_running(process: int) -> bool:
    """Whether it is there and not merely waiting to be collected by whoever adopted it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
