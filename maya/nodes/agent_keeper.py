"""`python -m maya.nodes.agent_keeper FOLDER COPY WORD...`: keeps a node agent, and removes its copy of a job's folder.

In: on standard input, the agent's settings, which only the agent reads; the end of standard input means that the agent
has to end. FOLDER is the agent's current folder; unless COPY is empty, it works in a copy. COPY is `<a new
folder>/<name>`, below the folder for temporary files: the same on all nodes, so that tracebacks are. WORD... are the
agent's command. Out: the agent's exit code, and its output.

Ray kills the children of a worker that ends, so this process lets a child that is in a session of its own do the work:
the agent gets the time to end its ranks and to remove their files. The agent is killed when it takes too long, and it
ends with the process that keeps it.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_END_SECONDS = 30.0  # for an agent whose standard input has ended
_POLL_SECONDS = 0.1


def main() -> int:
    folder, copy, *words = sys.argv[1:]
    keeper = os.fork()
    if keeper:
        _, status = os.waitpid(keeper, 0)
        return _exit_code(os.waitstatus_to_exitcode(status))
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent ends, then this process
    return _exit_code(_keep(folder, copy, words))


def _keep(folder: str, copy: str, words: list[str]) -> int:
    temporary = _make_folder(str(Path(copy).parent)) if copy else None
    try:
        if temporary is not None:
            own = temporary / Path(copy).name
            shutil.copytree(folder, own, symlinks=True)
            path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            os.environ["PYTHONPATH"] = os.pathsep.join(_moved(entry, folder, str(own)) for entry in path)
            folder = str(own)
        keeper = os.getpid()
        agent = subprocess.Popen(words, cwd=folder, preexec_fn=lambda: _die_with(keeper), start_new_session=True)
        return _wait(agent)
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _make_folder(name: str) -> Path:
    """For this agent alone: several nodes of a cluster may be on one machine."""
    wanted = Path(tempfile.gettempdir()) / name
    try:
        wanted.mkdir(mode=0o700)
    except FileExistsError:
        return Path(tempfile.mkdtemp(prefix=f"{name}-"))
    return wanted


def _moved(entry: str, folder: str, own: str) -> str:
    return own + entry[len(folder) :] if entry == folder or entry.startswith(f"{folder}/") else entry


def _wait(agent: subprocess.Popen[bytes]) -> int:
    """Until the agent has ended, which it has to do soon after the end of standard input."""
    poller = select.poll()
    poller.register(0, 0)  # only the end is of interest: what there is to read is the agent's
    until = None
    while agent.poll() is None:
        if until is None:
            if poller.poll(round(1000 * _POLL_SECONDS)):
                until = time.monotonic() + _END_SECONDS
        elif time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        else:
            print(f"it did not end within {_END_SECONDS:.0f} s, and was killed", flush=True)
            agent.kill()
            agent.wait()
    return agent.returncode


def _die_with(parent: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has already ended
        os.kill(os.getpid(), signal.SIGTERM)


def _exit_code(status: int) -> int:
    """As a shell says it: 128 and the signal."""
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main())
