"""maya-torchrun with one rank: the environment of the rank, its output, signals and failures.

None of the scripts here touches a GPU; tests/programs/test_tiny.py does.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.script_run import MayaRun, ScriptRun

from rank_runtime.build import Build


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    return str(path)


def test_a_rank_has_the_environment_of_torchrun(maya_run: MayaRun) -> None:
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
    assert "did not use its GPU" in run.stderr


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
def test_a_job_that_cannot_start_is_refused(maya_run: MayaRun, options: list[str], expected: str) -> None:
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


def test_a_missing_compiler_is_reported(maya_run: MayaRun, tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "CC": "", "CXX": "", "MAYA_CACHE": str(tmp_path / "cache")}
    run = maya_run("print('started')", environment=environment)
    assert (run.exit_code, run.stdout) == (2, "")
    assert "No C compiler found" in run.stderr
    assert "gcc" in run.stderr


def test_an_existing_out_folder_is_not_overwritten(maya_run: MayaRun, tmp_path: Path) -> None:
    (tmp_path / "run1").mkdir()
    (tmp_path / "run1" / "precious").touch()
    run = maya_run("print('started')")
    assert (run.exit_code, run.stdout) == (2, "")
    assert "is not empty" in run.stderr


def test_run_folders_are_numbered(script: str, build: Build, tmp_path: Path) -> None:
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


def test_a_program_that_is_no_python_script_runs(tmp_path: Path, build: Build) -> None:
    ended = launcher(tmp_path, "--no-python", "/bin/sh", "-c", "echo rank $RANK; exit 3")
    output, errors = ended.communicate(timeout=60)
    assert (ended.returncode, output) == (1, "rank 0\n")
    assert "exitcode  : 3" in errors
    missing = launcher(tmp_path, "--no-python", "/no/such/program")
    _, errors = missing.communicate(timeout=60)
    assert missing.returncode == 2
    assert "cannot start /no/such/program: No such file or directory" in errors


def test_redirected_output_goes_to_the_logs(maya_run: MayaRun) -> None:
    text = "import sys; print('to out'); print('to err', file=sys.stderr)"
    run = maya_run(text, "--redirects", "3")
    assert "to out" not in run.stdout
    assert "to err" not in run.stderr
    assert log(run, "stdout.log") == "to out\n"
    assert "to err\n" in log(run, "stderr.log")


def test_teed_output_goes_to_the_logs_and_the_terminal(maya_run: MayaRun, tmp_path: Path) -> None:
    text = "import sys; print('one'); print('two', end='')"
    run = maya_run(text, "--tee", "1", "--role", "trainer", "--log-dir", str(tmp_path / "elsewhere"))
    assert run.stdout == "[trainer0]:one\n[trainer0]:two\n"
    [file] = (tmp_path / "elsewhere").glob("*/attempt_0/0/stdout.log")
    assert file.read_text() == "one\ntwo"
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}/${local_rank}> "}
    assert maya_run(text, "--tee", "3", environment=template).stdout == "default/0> one\ndefault/0> two\n"


def test_output_can_be_limited_to_some_ranks(maya_run: MayaRun) -> None:
    run = maya_run("print('hidden')", "--local-ranks-filter", "1", "--tee", "1")
    assert run.stdout == ""
    assert log(run, "stdout.log") == "hidden\n"
    assert maya_run("print('hidden')", "--local-ranks-filter", "1").stdout == ""


def test_a_failed_rank_is_described_in_the_failure_block(maya_run: MayaRun) -> None:
    run = maya_run("import sys; sys.exit(7)")
    assert run.exit_code == 1
    assert "script1.py FAILED\n" in run.stderr
    assert "Root Cause (first observed failure):" in run.stderr
    assert "  rank      : 0 (local_rank: 0)" in run.stderr
    assert "  exitcode  : 7 (pid: " in run.stderr
    assert "  error_file: <N/A>" in run.stderr


def test_a_signal_is_named_in_the_failure_block(maya_run: MayaRun) -> None:
    run = maya_run("import os; os.kill(os.getpid(), 11)")
    assert run.exit_code == 1
    assert "  exitcode  : -11 (pid: " in run.stderr
    assert ")  (SIGSEGV)" in run.stderr
    assert "Signal 11 (SIGSEGV) received by PID" in run.stderr


def test_the_error_file_is_quoted_in_the_failure_block(maya_run: MayaRun, tmp_path: Path) -> None:
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


def test_the_record_decorator_of_torch_writes_the_error_file(maya_run: MayaRun) -> None:
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


def test_a_failed_rank_is_restarted(maya_run: MayaRun) -> None:
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


def test_a_rank_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path, build: Build) -> None:
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


def test_a_rank_ends_with_its_launcher(tmp_path: Path, build: Build) -> None:
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


def test_children_of_a_failed_rank_are_killed(maya_run: MayaRun) -> None:
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


def log(run: ScriptRun, name: str) -> str:
    [file] = (run.folder / "logs").glob(f"*/attempt_0/0/{name}")
    return file.read_text()


def is_running(process: int) -> bool:
    """Whether the process runs, and is not a zombie that waits for its new parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
