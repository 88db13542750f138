"""A process that answers questions as a rank does, without torch and the fake libraries: `AnsweringRank`.

Its main thread runs code of the test. It listens at a rank's stack socket, and may be connected to the coordinator.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rank_runtime.stacks_socket import stacks_socket

_PROGRAM = r"""
import faulthandler, os, socket, sys, threading
address, port, code = sys.argv[1:4]
listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listening.bind("\0" + address + str(os.getpid()) + sys.argv[4])
listening.listen(16)
if int(port):
    coordinator = socket.create_connection(("127.0.0.1", int(port)))

def answer():
    while True:
        connection, _ = listening.accept()
        question = connection.recv(4096).decode().strip()
        with connection, connection.makefile("wb") as file:
            if question == "stacks":
                file.write(b"main 0x%016x\npython\n" % threading.main_thread().ident)
                file.flush()
                faulthandler.dump_traceback(file)
            elif question.startswith("recorder all "):
                with open(question.removeprefix("recorder all "), "wb") as dump:
                    dump.write(b"a recorder")
                file.write(b"10\n")
            elif question == "recorder all":
                file.write(b"a recorder")
            elif question.startswith("run "):
                file.write(b'{"threads": [], "modules": {"train.py": {"step": 3}}}')

threading.Thread(target=answer, name="maya-answers", daemon=True).start()
print("ready", flush=True)
exec(compile(open(code).read(), code, "exec"))
"""


@contextmanager
def answering_rank(
    folder: Path, code: str, endpoint: str, *, file: str = "train.py", relative: bool = False, connects: bool = True
) -> Iterator[int]:
    """The process id. `endpoint`: the coordinator's; the process connects to it if it is a TCP address.
    `relative`: its frames name the file as it is called in the process's working folder."""
    before, after = stacks_socket(12345, endpoint)[1:].split("12345", 1)
    script = folder / file
    script.write_text(code, encoding="utf-8")
    port = endpoint.rpartition(":")[2] if connects and endpoint.startswith("tcp:") else "0"
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, before, port, file if relative else str(script), after],
        cwd=folder,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@contextmanager
def listening_coordinator() -> Iterator[str]:
    """The endpoint of a socket that ranks connect to, and that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
