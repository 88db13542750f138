"""The faults of docs/faults.md: for each what to run, and what has to come of it. scripts/faults runs them.

A case is a line of shell in a folder of its own. `job.py` is a small training job of two ranks, into which a case puts
its code after the third of four steps; `run/` is a recording of that job without a fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field

JOB = """
import ctypes, os, signal, subprocess, sys, time
import torch
import torch.distributed as dist


def status(pid):
    head, _, rest = open(f"/proc/{pid}/stat").read().rpartition(")")
    return head.partition("(")[2], int(rest.split()[1])  # name and parent


zygote = os.getppid()
launcher = status(zygote)[1]


def coordinator():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if status(pid) == ("maya-coord", zygote):
                return int(pid)
        except OSError:
            pass


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def reduce(tensor=None):
    dist.all_reduce(torch.ones(4, device="cuda") if tensor is None else tensor)


for step in range(4):
    model(torch.zeros(4, 64, device="cuda")).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    if step == 2:
        FAULT
print("trained", flush=True)
dist.destroy_process_group()
"""
LAUNCH = "maya-torchrun --nproc 2 --out out"
NOTHING = ("!out/*",)  # the folder is as it was
TRACES = ("out/rank0.trace", "out/rank1.trace", "out/run.json", "out/summary.json")
STEPS = "steps that all ranks finished, a step takes"
REPORT = ("out/hang.json", *TRACES)


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    title: str
    exit_code: int
    says: tuple[str, ...]  # texts that the output has, the first of which is shown in the table
    command: str = f"{LAUNCH} job.py"
    code: str = "pass"  # in job.py, after the third step
    keeps: tuple[str, ...] = ()  # patterns of files that exist afterwards, "!…": that do not
    prepare: str = ""  # shell, before the command
    environment: dict[str, str] = field(default_factory=dict)


def refused(title: str, options: str, says: str, *, prepare: str = "", **environment: str) -> Fault:
    """A start that is refused: exit code 2, and `out` can be named again."""
    return Fault(
        title, 2, (says,), f"{LAUNCH} {options} job.py", keeps=NOTHING, prepare=prepare, environment=environment
    )


def broken(title: str, command: str, says: str, prepare: str, exit_code: int = 1) -> Fault:
    """A command that gets damaged files."""
    return Fault(title, exit_code, (says,), command, prepare=prepare)


def python(code: str) -> str:
    """A line of shell that runs Python with `data`, the bytes of rank 0's trace, and saves them."""
    return (
        "python -c \"import pathlib; p = pathlib.Path('run/rank0.trace'); data = bytearray(p.read_bytes()); "
        f'{code}; p.write_bytes(bytes(data))"'
    )


STARTS = (
    refused("unknown option", "--frobnicate 1", "unrecognized arguments"),
    refused("no rank at all", "--nproc 0", "expected at least 1"),
    refused("ranks to trace that do not exist", "--trace-ranks 0-7", "there is no rank 7; ranks are 0 to 1"),
    refused("a billion ranks to trace", "--trace-ranks 0-999999999999", "there is no rank 999999999999"),
    refused("a port that does not exist", "--master-port 99999999", "there is no port 99999999"),
    refused("a GPU that is not in the catalogue", "--gpu h1000", "h1000"),
    refused("a cluster file that does not exist", "--cluster no.toml", "no.toml"),
    refused("a cluster file that is no TOML", "--cluster bad.toml", "bad.toml", prepare="echo '[[' > bad.toml"),
    refused(
        "an unknown key of the cluster", "--cluster dgx-h100 --set node.nic_rat=1Gbps", "nic_rat"
    ),
    refused("a pack that does not exist", "--pack no.npz", "--pack no.npz: no such file"),
    refused("a damaged pack", "--pack bad.npz", "--pack bad.npz", prepare="echo damaged > bad.npz"),
    refused("a rank to represent that does not exist", "--represent 0,9", "there is no rank 9; ranks are 0 to 1"),
    refused("a fault for a rank that does not exist", "--inject kill:rank=5,call=1", "there is no rank 5"),
    refused("no step to record", "--record-steps 0", "expected at least 1"),
    refused("an unknown variable's value", "", "MAYA_COMPUTE", MAYA_COMPUTE="most"),
    refused("a cache folder that every user can write", "", "can be written by every user", MAYA_CACHE="cache",
            prepare="mkdir cache; chmod 1777 cache"),
    Fault("a program that does not exist", 2, ("cannot start no-such-program",),
          f"{LAUNCH} --no-python no-such-program", keeps=NOTHING),
    Fault("a limited address space", 2, ("address space: at most", "ulimit -v unlimited"),
          f"ulimit -v 68719476; {LAUNCH} job.py", keeps=NOTHING),
    Fault("too few open files", 2, ("open files: at most 64", "raise nofile"),
          f"ulimit -n 64; {LAUNCH} job.py", keeps=NOTHING),
    Fault("a working folder that was deleted", 2, ("the working folder was deleted",),
          'mkdir gone; script=$PWD/job.py; cd gone; rmdir ../gone; maya-torchrun "$script"'),
    Fault("a folder that is not empty", 2, ("--out out is not empty",), prepare="mkdir out; touch out/mine",
          keeps=("out/mine", "!out/run.json")),
    Fault("a file in the place of the folder", 2, ("--out out: File exists",), prepare="touch out", keeps=("out",)),
    Fault("a folder where nothing can be written", 2, ("--out /proc/self/net/out: ",),
          "maya-torchrun --nproc 2 --out /proc/self/net/out job.py"),
)  # fmt: skip

SCRIPTS = (
    Fault("the script does not exist", 1, ("can't open file",), f"{LAUNCH} missing.py", keeps=("out/summary.json",)),
    Fault("a syntax error", 1, ("SyntaxError",), prepare="echo 'def' > job.py", keeps=("out/summary.json",)),
    Fault("a module that does not exist", 1, ("No module named 'nowhere'",), prepare="echo 'import nowhere' > job.py",
          keeps=("out/summary.json",)),
    Fault("an exception on all ranks", 1, ("ValueError: bad batch", STEPS), code='raise ValueError("bad batch")',
          keeps=TRACES),
    Fault("an exception on one rank", 1, ("ValueError: bad batch", STEPS),
          code='if rank == 1: raise ValueError("bad batch")', keeps=TRACES),
    Fault("sys.exit(3) on one rank", 1, ("exitcode  : 3", STEPS), code="if rank == 1: sys.exit(3)", keeps=TRACES),
    Fault("os._exit(7) on all ranks", 1, ("exitcode  : 7", STEPS), code="os._exit(7)", keeps=TRACES),
    Fault("a segmentation fault", 1, ("Signal 11 (SIGSEGV)", STEPS), code="if rank == 1: ctypes.string_at(0)",
          keeps=TRACES),
    Fault("abort()", 1, ("Signal 6 (SIGABRT)", STEPS), code="if rank == 0: os.abort()", keeps=TRACES),
    Fault("the GPU's memory runs out", 1, ("CUDA out of memory", STEPS),
          code='torch.empty(1 << 38, device="cuda")', keeps=TRACES),
    Fault("a collective that fails on purpose", 1, ("NCCL error", STEPS),
          f"{LAUNCH} --inject error:rank=1,call=7 job.py", keeps=TRACES),
    Fault("a rank that is killed on purpose", 1, ("Signal 9 (SIGKILL)", STEPS),
          f"{LAUNCH} --inject kill:rank=1,call=7 job.py", keeps=TRACES),
    Fault("the script closes its output", 0, ("maya-torchrun: step",), code="os.close(1); os.close(2)",
          prepare="sed -i '/^print/d' job.py", keeps=TRACES),
    Fault("a child that outlives its rank (nobody waits for it, as under torchrun)", 0, ("maya-torchrun: step",),
          code='subprocess.Popen(["sleep", "8"])', keeps=TRACES),
    Fault("the script removes the run's folder", 0, ("was removed while the job ran",),
          code='__import__("shutil").rmtree("out", ignore_errors=True); dist.barrier()', keeps=("!out/rank0.trace",)),
    Fault("the script leaves for another folder and deletes it", 0, ("maya-torchrun: step",),
          code='os.makedirs(f"d{rank}"); os.chdir(f"d{rank}"); os.rmdir(f"../d{rank}")', keeps=TRACES),
    Fault("a damaged error file of a rank", 1, ("exitcode  : 4",),
          code='open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write("{\\"message\\": []"); os._exit(4)',
          keeps=TRACES),
    Fault("the limit on file sizes is reached", 0, ("The trace ends here", "the limit on file sizes was reached"),
          code='import resource; size = os.path.getsize(os.environ["MAYA_TRACE"]) + 100; '
          "resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))",
          keeps=TRACES),
    Fault("a limit on file sizes that leaves no room to start", 2, ("cannot start the ranks: File too large",),
          f"ulimit -f 4; {LAUNCH} job.py", keeps=NOTHING),
    Fault("standard output is a full disk", 0, ("maya-torchrun: step",), f"{LAUNCH} job.py > /dev/full",
          code="break", prepare="sed -i '/^print/d' job.py", keeps=TRACES),
    Fault("standard error is closed", 0, ("trained",), f"{LAUNCH} job.py 2>&-", keeps=TRACES),
    Fault("the reader of the output ends first", 0, ("",), f"set -o pipefail; {LAUNCH} job.py 2>&1 | true",
          prepare="sed -i '/^print/d' job.py", keeps=TRACES),
)  # fmt: skip

HANGS = (
    Fault("a collective that one rank skips", 1, ("rank 0 never called it", STEPS),
          code="both = dist.new_group([0, 1]); "
          'dist.all_reduce(torch.ones(4, device="cuda"), group=both if rank == 0 else None); '
          "torch.cuda.synchronize()", keeps=REPORT),
    Fault("a rank that ends early", 1, ("can never go on", STEPS), code="if rank == 1: os._exit(0)", keeps=REPORT),
    Fault("collectives of different sizes", 1, ("mismatch: ", "does not match"),
          code='reduce(torch.ones(4 + rank, device="cuda")); torch.cuda.synchronize()', keeps=REPORT),
    Fault("different collectives", 1, ("mismatch: ", "does not match"),
          code='reduce() if rank else dist.broadcast(torch.ones(4, device="cuda"), 0); torch.cuda.synchronize()',
          keeps=REPORT),
    Fault("different types of elements", 1, ("mismatch: ", "does not match"),
          code='reduce(torch.ones(4, device="cuda", dtype=torch.half if rank else torch.float)); '
          "torch.cuda.synchronize()", keeps=REPORT),
    Fault("a recv without a send", 1, ("deadlock", STEPS),
          code='(dist.recv(torch.ones(4, device="cuda"), 1) if rank == 0 else reduce()); torch.cuda.synchronize()',
          keeps=REPORT),
    Fault("two ranks that send first", 1, ("deadlock",),
          code='dist.recv(torch.ones(4, device="cuda"), 1 - rank); torch.cuda.synchronize()', keeps=REPORT),
    Fault("a key of the store that nobody sets", 1, ("never",),
          code='dist.distributed_c10d._get_default_store().get(f"nobody{rank}")', keeps=TRACES),
    Fault("no rank shows any activity", 1, ("no progress",),
          f"{LAUNCH} --on-hang abort --hang-after 3 job.py", code="import threading; threading.Event().wait(600)",
          keeps=("out/no_progress.json", "out/run.json")),
)  # fmt: skip

SIGNALS = (
    Fault("Ctrl-C", 1, ("got SIGINT, passing it on", "the prediction is of the"),
          code="rank == 0 and os.kill(launcher, signal.SIGINT); time.sleep(600)", keeps=TRACES),
    Fault("a second Ctrl-C", 1, ("got SIGINT again: SIGKILL now", "the prediction is of the"),
          code="signal.signal(signal.SIGINT, signal.SIG_IGN); "
          "rank == 0 and (os.kill(launcher, signal.SIGINT), time.sleep(1), os.kill(launcher, signal.SIGINT)); "
          "time.sleep(600)", keeps=TRACES),
    Fault("SIGTERM", 1, ("got SIGTERM, passing it on", "the prediction is of the"),
          code="rank == 0 and os.kill(launcher, signal.SIGTERM); time.sleep(600)", keeps=TRACES),
    Fault("SIGHUP: the terminal is closed", 1, ("got SIGHUP, passing it on",),
          code="rank == 0 and os.kill(launcher, signal.SIGHUP); time.sleep(600)", keeps=TRACES),
    Fault("SIGTERM before the ranks run", 1, ("got SIGTERM",),
          f"{LAUNCH} job.py & until grep -q cluster output.txt; do sleep 0.1; done; sleep 0.5; kill $!; wait $!",
          prepare="sed -i 's/^import torch$/import time; time.sleep(5); import torch/' job.py",
          keeps=("out/summary.json",)),
    Fault("SIGKILL of the launcher", 137, ("",),
          code="rank == 0 and os.kill(launcher, signal.SIGKILL); time.sleep(600)",
          keeps=("out/rank0.trace", "out/run.json")),
    Fault("SIGKILL of the zygote", 1, ("the zygote (the process that forks the ranks) was ended by SIGKILL",),
          code="rank == 0 and os.kill(zygote, signal.SIGKILL); time.sleep(600)", keeps=TRACES),
    Fault("SIGKILL of the coordinator", 1, ("the coordinator (pid", "was ended by SIGKILL"),
          code="rank == 0 and os.kill(coordinator(), signal.SIGKILL); time.sleep(600)", keeps=TRACES),
    Fault("SIGKILL of a rank", 1, ("Signal 9 (SIGKILL)",),
          code="rank == 1 and os.kill(os.getpid(), signal.SIGKILL); time.sleep(600)", keeps=TRACES),
    Fault("SIGSTOP of a rank for a second", 0, ("maya-torchrun: step",),
          code='rank == 1 and subprocess.Popen(["bash", "-c", f"sleep 1; kill -CONT {os.getpid()}"]) and '
          "os.kill(os.getpid(), signal.SIGSTOP)", keeps=TRACES),
)  # fmt: skip

FILES = (
    broken("no folder of a run", "maya whatif .", "is not the folder of a run", ""),
    broken("run.json is missing", "maya report run", "has traces but no run.json", "rm run/run.json"),
    broken("run.json is no JSON", "maya whatif run", "run.json: not valid JSON", "echo '{' > run/run.json"),
    broken("run.json has an impossible number", "maya whatif run", "run.json: world_size is -2",
           "sed -i 's/\"world_size\": 2/\"world_size\": -2/' run/run.json"),
    broken("run.json names a GPU that does not exist", "maya whatif run", "h1000",
           "sed -i 's/\"gpu\": \"h100\"/\"gpu\": \"h1000\"/' run/run.json"),
    broken("no traces", "maya whatif run", "there are no traces", "rm run/*.trace"),
    broken("a trace is empty", "maya trace show run/rank0.trace", "is empty: the disk was full", ": > run/rank0.trace"),
    broken("a trace is something else", "maya trace show run/rank0.trace", "is not a trace of Maya",
           "cp job.py run/rank0.trace"),
    broken("a trace has another version", "maya trace show run/rank0.trace", "is a trace in format version 99",
           python("data[8] = 99")),
    broken("a trace's header is damaged", "maya trace show run/rank0.trace", "the header of run/rank0.trace is damaged",
           python("data[20] ^= 255")),
    broken("a trace is cut off", "maya trace show run/rank0.trace", "is cut short", python("del data[-100:]"), 0),
    broken("a byte of a trace is wrong", "maya trace show run/rank0.trace", "its checksum is wrong",
           python("data[-40] ^= 255"), 0),
    broken("a trace has impossible numbers and right checksums", "maya whatif run", "is damaged: record 3",
           "python wrong_numbers.py run"),
    broken("summary.json is damaged, which a replay does not need", "maya whatif run", "the same timeline",
           "echo '{' > run/summary.json", 0),
    broken("the report cannot be written", "maya report run --out /proc/report.html", "/proc/report.html", ""),
    broken("a what-if with an unknown GPU", "maya whatif run --gpu b2000", "b2000", ""),
    broken("a what-if with an impossible cluster", "maya whatif run --cluster wide.toml", "wide.toml",
           "sed 's/^radix = .*/radix = 1000000000000/; s/^nics = .*/nics = 1000000000000/' "
           '"$(python -c \'from netmodel.cluster import cluster_path; print(cluster_path("dgx-h100"))\')" > wide.toml'),
    broken("measurements that are no CSV", "maya net fit dgx-h100 bad.csv", "bad.csv",
           "printf 'op,nranks,nodes,size_bytes,time_us\\nall_reduce,8,1,1024,\"1\\0\\n' > bad.csv"),
    broken("a profile that is none", "maya estimate --gpu h100 --trace bad.trace", "bad.trace", "echo '[' > bad.trace"),
)  # fmt: skip

GROUPS = {
    "Starts that are refused": STARTS,
    "Scripts and their processes": SCRIPTS,
    "Hangs and mismatches": HANGS,
    "Signals": SIGNALS,
    "Damaged recordings and files": FILES,
}
