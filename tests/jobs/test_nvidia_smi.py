"""nvidia-smi as ranks and their children find it on PATH: two virtual nodes with two ranks each."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import pytest
from helpers.script_run import MayaRun

# Rank r allocates (r + 1) * 256 MiB. Rank 2, the first of the second node, calls the tool.
PROGRAM = """
    import json, os, subprocess, sys
    import torch
    import torch.distributed as dist

    local = int(os.environ["LOCAL_RANK"])
    os.environ["CUDA_VISIBLE_DEVICES"] = str(3 - local)  # which the tool ignores
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    rank = dist.get_rank()
    held = torch.empty((rank + 1) << 28, dtype=torch.uint8, device="cuda")
    dist.barrier()
    torch.cuda.synchronize()
    if rank == 2:
        for command in json.loads(sys.argv[1]):
            ended = subprocess.run(command, shell=True, capture_output=True, text=True)
            print("asked: " + json.dumps([command, ended.returncode, ended.stdout, ended.stderr]), flush=True)
        print("pids: " + json.dumps(os.getpid()), flush=True)
    free, total = torch.cuda.mem_get_info()
    print(f"used: {rank} {total - free >> 20}", flush=True)
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()
"""
COMMANDS = (
    "nvidia-smi",
    "nvidia-smi -L",
    "nvidia-smi -L -i 1,2",
    "nvidia-smi topo -m",
    "nvidia-smi nvlink --status -i 0",
    "nvidia-smi --query-gpu=index,memory.used,memory.total,utilization.gpu,gpu_name,clocks.sm,fan.speed --format=csv",
    "nvidia-smi --query-gpu=memory.used,power.draw --format=csv,noheader,nounits --id=2",
    "nvidia-smi --query-compute-apps=pid,used_memory,gpu_bus_id --format=csv,noheader",
    "nvidia-smi -q -x",
    "nvidia-smi -q -d MEMORY,PIDS -i 2",
    "nvidia-smi --help-query-gpu",
    "python -c 'import os; print(os.popen(\"nvidia-smi -L | wc -l\").read())'",
    "nvidia-smi --query-gpu=index,nonsense --format=csv",
    "nvidia-smi --query-gpu=index",
    "nvidia-smi --nonsense",
    "nvidia-smi -i 8",
    "nvidia-smi -pl 300",
    "nvidia-smi dmon",
)


@dataclass(frozen=True)
class Answer:
    exit_code: int
    text: str


@dataclass(frozen=True)
class Asked:
    answers: dict[str, Answer]
    used: dict[int, int]  # rank -> MiB, by CUDA
    pid: int  # of rank 2

    def __call__(self, begin: str) -> Answer:
        """The answer to the first command that begins so."""
        return next(answer for command, answer in self.answers.items() if command.startswith(begin))


@pytest.fixture(scope="module")
def asked(maya_run_once: MayaRun) -> Asked:
    nodes = ("--nnodes", "2", "--nproc-per-node", "2")
    run = maya_run_once(PROGRAM, *nodes, script_arguments=[json.dumps(COMMANDS)])
    assert run.exit_code == 0, run.output
    answers, used = {}, {}
    for line in run.stdout.splitlines():
        if line.startswith("asked: "):
            command, exit_code, out, err = json.loads(line.removeprefix("asked: "))
            answers[command] = Answer(exit_code, out + err)
        elif line.startswith("used: "):
            rank, size = line.split()[1:]
            used[int(rank)] = int(size)
    (pid,) = re.findall(r"^pids: (\d+)", run.stdout, re.MULTILINE)
    return Asked(answers, used, int(pid))


def test_the_table_shows_the_memory_of_the_ranks_of_this_node(asked: Asked) -> None:
    table = asked("nvidia-smi")
    assert table.exit_code == 0
    sizes = re.findall(r"(\d+)MiB / +81007MiB", table.text)
    assert [int(size) for size in sizes] == [0, 0, asked.used[3], asked.used[2], 0, 0, 0, 0]
    assert re.search(r"Driver Version: \d+\.\d+\.\d+ +CUDA Version: \d+\.\d ", table.text)
    assert re.search(rf"\|    3   N/A  N/A +{asked.pid}      C   .*python +{asked.used[2]}MiB \|", table.text)
    assert {len(line) for line in table.text.splitlines()[1:]} == {91}


def test_gpus_are_listed_with_their_uuids(asked: Asked) -> None:
    lines = asked("nvidia-smi -L").text.splitlines()
    assert len(lines) == 8
    assert re.fullmatch(r"GPU 0: NVIDIA H100 80GB HBM3 \(UUID: GPU-[0-9a-f-]{36}\)", lines[0])
    assert asked("nvidia-smi -L -i 1,2").text.splitlines() == lines[1:3]


def test_the_matrix_shows_links_between_all_gpus(asked: Asked) -> None:
    rows = [line.split("\t") for line in asked("nvidia-smi topo -m").text.splitlines()[:9]]
    assert rows[0][1:9] == [f"GPU{i}" for i in range(8)]
    for i, row in enumerate(rows[1:]):
        assert row[:9] == [f"GPU{i}", *(" X " if i == j else "NV18" for j in range(8))]
    assert asked("nvidia-smi nvlink").text.count("26.562 GB/s") == 18


def test_fields_are_csv(asked: Asked) -> None:
    rows = list(csv.reader(asked("nvidia-smi --query-gpu=index,mem").text.splitlines(), skipinitialspace=True))
    assert rows[0][:4] == ["index", "memory.used [MiB]", "memory.total [MiB]", "utilization.gpu [%]"]
    assert rows[0][4:] == ["name", "clocks.current.sm [MHz]", "fan.speed [%]"]
    assert rows[1] == ["0", "0 MiB", "81007 MiB", "0 %", "NVIDIA H100 80GB HBM3", "1980 MHz", "[N/A]"]
    assert rows[3][:4] == ["2", f"{asked.used[3]} MiB", "81007 MiB", "100 %"]
    assert asked("nvidia-smi --query-gpu=memory.used,power").text == f"{asked.used[3]}, 700.00\n"


def test_processes_are_those_of_this_node(asked: Asked) -> None:
    rows = [row.split(", ") for row in asked("nvidia-smi --query-compute-apps").text.splitlines()]
    assert [(size, bus) for _, size, bus in rows] == [
        (f"{asked.used[3]} MiB", "00000000:03:00.0"),
        (f"{asked.used[2]} MiB", "00000000:04:00.0"),
    ]
    assert int(rows[1][0]) == asked.pid


def test_the_report_is_text_or_xml(asked: Asked) -> None:
    tree = ElementTree.fromstring(asked("nvidia-smi -q -x").text)
    assert [gpu.findtext("fb_memory_usage/used") for gpu in tree.iter("gpu")][3] == f"{asked.used[2]} MiB"
    assert tree.findtext("gpu/vbios_version") == "N/A"
    assert not any("is not emulated; it returns" in answer.text for answer in asked.answers.values())
    text = asked("nvidia-smi -q -d MEMORY").text
    assert f"        Used                              : {asked.used[3]} MiB\n" in text
    assert "Process ID" in text
    assert "Power" not in text


def test_children_of_children_find_it(asked: Asked) -> None:
    assert asked("python").text.strip() == "8"


def test_fields_are_listed(asked: Asked) -> None:
    assert '"memory.used" [MiB]' in asked("nvidia-smi --help-query-gpu").text


@pytest.mark.parametrize(
    ("command", "exit_code", "text"),
    [
        ("nvidia-smi --query-gpu=index,nonsense", 2, 'Field "nonsense" is not a valid field to query.'),
        ("nvidia-smi --query-gpu=index", 2, '"--format=" switch is missing'),
        ("nvidia-smi --nonsense", 2, "ERROR: Option --nonsense is not recognized."),
        ("nvidia-smi -i 8", 6, "No devices were found"),
        ("nvidia-smi -pl", 4, "settings of virtual GPUs cannot be changed"),
        ("nvidia-smi dmon", 3, "nvidia-smi dmon is not emulated"),
    ],
)
def test_what_cannot_be_answered_is_refused(asked: Asked, command: str, exit_code: int, text: str) -> None:
    answers = [answer for name, answer in asked.answers.items() if name.startswith(command)]
    if command.endswith("index"):
        answers = [asked.answers[command]]
    assert [answer.exit_code for answer in answers] == [exit_code]
    assert text in answers[0].text
