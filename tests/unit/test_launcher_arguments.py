"""The command line of maya-torchrun, and the variables that a rank gets from it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from maya.launcher.arguments import StreamChoice, parse
from maya.launcher.worker_environment import RendezvousAddress, worker_variables
from rank_runtime.build import Build
from rank_runtime.environment import rank_environment
from rank_runtime.variables import PROCESS_VARIABLES, RANK_VARIABLES, VariableError

BUILD = Build(Path("/cache/build"), (Path("/cache/build/libmaya_device.so"),), None, None, "2.12.1", "13.0")


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


def test_arguments_after_the_script_belong_to_the_script(script: str) -> None:
    own = ["--gpu", "b200", "--help", "-m", "--", "--nproc=3", "--local", "--no=4"]  # even what could be two of ours
    launch = parse(["--gpu", "a40", script, *own], {})
    assert launch.gpu == "a40"
    assert launch.command == (sys.executable, "-u", script, *own)


def test_defaults_are_one_rank_on_an_h100(script: str) -> None:
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
    assert len(launch.run_id) == 36  # generated, since no rendezvous was chosen


def test_options_accept_dashes_and_underscores(script: str) -> None:
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


def test_a_module_and_a_program_can_be_run() -> None:
    assert parse(["-m", "package.train", "-m"], {}).command == (sys.executable, "-u", "-m", "package.train", "-m")
    assert parse(["--no-python", "./train.sh", "1"], {}).command == ("./train.sh", "1")


def test_another_python_can_be_chosen(script: str) -> None:
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
def test_nodes_and_ranks_per_node_follow_from_the_options(
    script: str, words: list[str], nodes: int, ranks_per_node: int
) -> None:
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
        (["--ranks-filter", "a"], "--ranks-filter: 'a' does not name ranks; write e.g. 0-7"),
        (["--ranks-filter", "0-7", "--nproc", "2"], "--ranks-filter 0-7: there is no rank 7; ranks are 0 to 1"),
        (["--local-ranks-filter", "a"], "--local-ranks-filter a: expected local ranks"),
        (["--rdzv-backend", "etcd"], "--rdzv-backend etcd is not supported yet"),
        (["--rdzv-endpoint", "nowhere"], "--rdzv-endpoint nowhere: expected <host>:<port>"),
        (["--rdzv-endpoint", "host:99999999"], "--rdzv-endpoint host:99999999: there is no port 99999999"),
        (["--master-port", "99999999"], "--master-port: there is no port 99999999; ports are 1 to 65535"),
        (["--trace-ranks", "0-7", "--nproc", "2"], "--trace-ranks 0-7: there is no rank 7; ranks are 0 to 1"),
        (["--trace-ranks", "0-999999999999"], "there is no rank 999999999999"),
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
def test_contradictory_command_lines_are_refused(
    capsys: pytest.CaptureFixture[str], script: str, words: list[str], expected: str
) -> None:
    assert expected in refusal(capsys, *words, script)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--represent", "0,99"], "--represent 0,99: there is no rank 99; ranks are 0 to 7"),
        (["--represent", "1,2"], "--represent 1,2: rank 0 has to be among them"),
        (["--represent", "some"], "--represent: 'some' does not name ranks"),
        (["--represent", "no-such-file.txt"], "or write auto, all or a file"),
        (["--represent", "0-999999999999"], "there is no rank 999999999999; ranks are 0 to 7"),
        (["--represent", "auto", "--max-restarts", "2"], "--represent and --max-restarts exclude each other"),
        (["--stop-after", "0"], "--stop-after"),
    ],
)
def test_impossible_representatives_are_refused(
    script: str, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert expected in refusal(capsys, "--nproc", "8", *words, script)


def test_a_rank_has_as_much_room_for_contents_whoever_else_is_present(script: str) -> None:
    launch = parse(["--nproc", "256", script], {})
    assert launch.ranks_with_contents == 256
    assert {launch.with_present(range(present)).ranks_with_contents for present in (1, 2, 60)} == {32}
    assert parse(["--nproc", "8", "--represent", "0", script], {}).ranks_with_contents == 8


def test_representatives_are_named_by_ranks_or_a_file(script: str, tmp_path: Path) -> None:
    file = tmp_path / "ranks.txt"
    file.write_text("0-1, \n4\n")
    assert parse(["--nproc", "8", "--represent", "0,4,2-3", script], {}).processes == (0, 2, 3, 4)
    assert parse(["--nproc", "8", "--represent", str(file), script], {}).processes == (0, 1, 4)
    assert parse(["--nproc", "8", "--represent", "0-7", script], {}).present is None


def test_without_a_choice_all_ranks_run_unless_they_do_not_fit(script: str) -> None:
    launch = parse(["--nproc", "8", script], {})
    assert launch.processes == range(8)
    assert (launch.finds_representatives, launch.may_find_representatives) == (False, True)
    assert not parse(["--nproc", "8", "--represent", "all", script], {}).may_find_representatives


def test_a_missing_script_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "training_script" in refusal(capsys)
    assert "PET_MODULE=yes: expected 0 or 1" in refusal(capsys, "train", PET_MODULE="yes")


def test_rendezvous_options_set_address_and_port(script: str) -> None:
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


def test_stream_codes_are_read_per_rank(script: str) -> None:
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
    chosen = ["--compute", "all", "--host-tensors", "real", "--strict-values"]
    assert parse([*chosen, *sizes, script], {}).variables == {
        "MAYA_COMPUTE": "all",
        "MAYA_COMPUTE_BYTES": "7",
        "MAYA_COPY_BYTES": "8",
        "MAYA_HOST_TENSORS": "real",
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


def test_virtual_local_ranks_see_one_gpu_each(script: str) -> None:
    launch = parse(["--nproc", "8", "--virtual-local-rank", script], {})
    variables = worker_variables(launch, 3, RendezvousAddress(1), 0, Path("e"), {})
    assert (variables["LOCAL_RANK"], variables["CUDA_VISIBLE_DEVICES"]) == ("0", "3")
    variables = worker_variables(launch, 1, RendezvousAddress(1), 0, Path("e"), {"CUDA_VISIBLE_DEVICES": "6, 7"})
    assert (variables["LOCAL_RANK"], variables["CUDA_VISIBLE_DEVICES"]) == ("0", "7")
    with pytest.raises(ValueError, match="no GPU for local rank 2"):
        worker_variables(launch, 2, RendezvousAddress(1), 0, Path("e"), {"CUDA_VISIBLE_DEVICES": "6, 7"})


def test_chosen_values_win_over_inherited_variables() -> None:
    inherited = {"MAYA_COMPUTE": "none", "MAYA_COPY_BYTES": "5", "MAYA_TRACE": "theirs", "LD_PRELOAD": "libjemalloc.so"}
    variables = rank_environment(
        BUILD, {"name": "Mine", "sm_count": 3}, {"MAYA_COMPUTE": "all", "MAYA_TRACE": ""}, inherited
    )
    assert variables["MAYA_GPU_PROPERTIES"] == "name=Mine;sm_count=3"
    assert variables["MAYA_COMPUTE"] == "all"
    assert variables["MAYA_COPY_BYTES"] == "5"
    assert variables["MAYA_KEPT_BYTES"] == "268435456"
    assert variables["MAYA_TRACE"] == ""
    assert variables["LD_PRELOAD"].split(":") == [*map(str, BUILD.libraries), "libjemalloc.so"]
    assert variables["TRITON_LIBCUDA_PATH"] == str(BUILD.folder)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("MAYA_COMPUTE", "some", "MAYA_COMPUTE=some: expected none, small or all"),
        ("MAYA_GPUS", "eight", "MAYA_GPUS=eight: expected a whole number, e.g. 8"),
        ("MAYA_STRICT_VALUES", "yes", "MAYA_STRICT_VALUES=yes: expected 0 or 1"),
    ],
)
def test_invalid_variables_are_refused(name: str, value: str, expected: str) -> None:
    with pytest.raises(VariableError) as refused:
        rank_environment(BUILD, {}, {}, {name: value})
    assert str(refused.value) == expected


def test_every_variable_of_the_table_is_read_by_the_device() -> None:
    runtime = Path(__file__).parents[2] / "rank_runtime"
    files = [*(runtime / "shim" / "device").glob("*.c"), *(runtime / "zygote").rglob("*.py")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    for variable in (*RANK_VARIABLES, *PROCESS_VARIABLES):
        name = variable.name.removeprefix("MAYA_")
        pattern = rf'MAYA_VARIABLE_{name}\b|"{variable.name}"|\b(NUMBER|CHOICE)\({name}\)'
        assert re.search(pattern, text), variable.name


def test_c_names_variables_by_their_macros() -> None:
    shim = Path(__file__).parents[2] / "rank_runtime" / "shim"
    for file in shim.rglob("*.c"):
        assert not re.search(r'(getenv|number_of|read_text)\("MAYA_', file.read_text(encoding="utf-8")), file


# ---- representatives ----


def test_a_rank_with_an_injected_fault_is_a_process(script: str) -> None:
    words = ["--nproc", "16", "--represent", "0", "--inject", "delay:rank=9,step=1,seconds=1", script]
    assert parse(words, {}).present == (0, 9)


def test_faults_on_all_present_ranks_are_refused(capsys: pytest.CaptureFixture[str], script: str) -> None:
    said = refusal(capsys, "--nproc", "16", "--represent", "0", "--inject", "delay:rank=0,step=1,seconds=1", script)
    assert "a fault is injected into rank 0" in said
    assert "add a rank without a fault" in said


# ---- several machines ----


def test_ray_and_its_resources(script: str) -> None:
    launch = parse(["--ray", "10.0.0.1:6379", "--ray-resources", "big_memory=1,CPU=0.5", script], {})
    assert launch.ray == "10.0.0.1:6379"
    assert launch.ray_resources == {"big_memory": 1, "CPU": 0.5}
    assert parse([script], {}).ray is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--ray-resources", "big=1"], "--ray-resources needs --ray"),
        (["--ray", "auto", "--ray-resources", "big"], "'big' is not NAME=AMOUNT"),
        (["--ray", "auto", "--ray-resources", "big=0"], "'big=0' is not NAME=AMOUNT"),
        (["--ray", "auto", "--ray-resources", "big=many"], "'big=many' is not NAME=AMOUNT"),
        (["--ray", ""], "--ray: expected the address of a Ray cluster"),
    ],
)
def test_wrong_ray_options_are_refused(
    script: str, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in refusal(capsys, *words, script)
