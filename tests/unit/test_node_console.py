"""What ranks on other machines print: taken from their pipes at the node, written at the launcher."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from coordinator.node_agent.console import ConsoleStreams
from maya.nodes.console_output import Console, ConsoleOutput

PIPE_BYTES = 1 << 16
PIPES = Console()
TERMINAL = Console(one_stream=True, terminals={"stdout": (30, 100), "stderr": (30, 100)})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def streams(console: Console) -> Iterator[tuple[ConsoleStreams, Clock]]:
    clock = Clock()
    opened = ConsoleStreams(console, clock)
    try:
        yield opened, clock
    finally:
        opened.close()


@contextmanager
def program(console: ConsoleStreams, text: str) -> Iterator[None]:
    """A program that prints to the pipes. It is killed at the end."""
    process = subprocess.Popen([sys.executable, "-c", text], stdout=console.stdout, stderr=console.stderr)
    console.close_writers()
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def read_all(console: ConsoleStreams) -> list[tuple[str, bytes]]:
    arrived = []
    while not console.ended:
        arrived += console.read()
    return arrived


# ---- at the node ----


def test_everything_that_a_program_prints_arrives() -> None:
    text = "import os; os.write(1, b'out' * 100_000); os.write(2, b'error'); os.write(1, b'end')"
    with streams(PIPES) as (console, _), program(console, text):
        arrived = read_all(console)
    assert b"".join(content for stream, content in arrived if stream == "stdout") == b"out" * 100_000 + b"end"
    assert b"".join(content for stream, content in arrived if stream == "stderr") == b"error"


def test_lines_of_several_ranks_are_not_torn() -> None:
    """Each write of up to 4096 bytes is in one piece: a piece of one node never splits a line of another."""
    text = """if True:
        import os
        for rank in range(4):
            if os.fork() == 0:
                for _ in range(300):
                    os.write(1, str(rank).encode() * 4095 + b"\\n")
                os._exit(0)
        for _ in range(4):
            os.wait()
    """
    with streams(PIPES) as (console, _), program(console, text):
        arrived = [content for _, content in read_all(console)]
    assert all(content.endswith(b"\n") for content in arrived)
    lines = b"".join(arrived).splitlines()
    assert len(lines) == 1200
    assert all(line == line[:1] * 4095 for line in lines)


def test_one_stream_keeps_the_order_of_output_and_errors() -> None:
    """As on a terminal."""
    text = "import os\nfor n in range(100): os.write(1 + n % 2, b'%d ' % n)"
    with streams(Console(one_stream=True)) as (console, _), program(console, text):
        arrived = read_all(console)
    assert b"".join(content for _, content in arrived) == b"".join(b"%d " % n for n in range(100))


def test_a_program_waits_while_nobody_reads() -> None:
    """What does not fit into the pipe stays in the program, not in the agent's memory."""
    with streams(PIPES) as (console, _), program(console, "import os; os.write(1, bytes(10 * 65536))"):
        sizes = [len(content) for _, content in read_all(console)]
    assert max(sizes) <= PIPE_BYTES
    assert sum(sizes) == 10 * 65536


GRANDCHILD = """if True:
    import os, sys, time
    os.write(1, b"the last words")
    if os.fork() == 0:
        {printing}
        time.sleep(600)
    os._exit(0)
"""


@pytest.mark.parametrize("console_kind", [PIPES, TERMINAL], ids=["pipes", "terminal"])
@pytest.mark.parametrize("printing", ["pass", "while True: os.write(1, b'x' * 1000)"], ids=["silent", "chatty"])
def test_a_process_that_outlives_its_rank_holds_up_the_end_for_a_second(printing: str, console_kind: Console) -> None:
    with streams(console_kind) as (console, clock):
        text = GRANDCHILD.format(printing=printing)
        process = subprocess.Popen(
            [sys.executable, "-c", text], stdout=console.stdout, stderr=console.stderr, start_new_session=True
        )
        try:
            console.close_writers()
            assert process.wait() == 0
            console.expect_end()
            arrived = console.read()
            assert not console.ended
            clock.now += 1.0
            while not console.ended:
                arrived += console.read()
            assert b"the last words" in b"".join(content for _, content in arrived)
        finally:
            os.killpg(process.pid, 9)


def test_what_was_printed_before_the_end_is_delivered_however_late() -> None:
    """The launcher's window was closed for longer than the grace."""
    with streams(PIPES) as (console, clock):
        keeps_open = os.dup(console.stdout)
        os.write(console.stdout, b"x" * PIPE_BYTES)
        console.close_writers()
        console.expect_end()
        clock.now += 100
        assert not console.ended
        assert console.read() == [("stdout", b"x" * PIPE_BYTES)]
        assert console.ended
        os.close(keeps_open)


@pytest.mark.parametrize("one_stream", [False, True])
def test_writers_to_a_stream_that_nobody_reads_get_an_error(one_stream: bool) -> None:
    with streams(Console(one_stream)) as (console, _):
        console.close_stream("stdout")
        with pytest.raises(BrokenPipeError):
            os.write(console.stdout, b"x")
        if not one_stream:
            assert os.write(console.stderr, b"x") == 1
        console.close_writers()


def test_programs_see_the_launcher_s_terminal() -> None:
    """So they write line by line, as wide as it is; what they write is not changed."""
    text = """if True:
        import os, sys, time
        print(*os.get_terminal_size(), sys.stderr.isatty(), "\\t\\r")
        time.sleep(600)
    """
    with streams(TERMINAL) as (console, _), program(console, text):
        arrived = b""
        while not arrived.endswith(b"\n"):
            arrived += b"".join(content for _, content in console.read())
    assert arrived == b"100 30 True \t\r\n"


def test_everything_that_a_program_prints_to_a_terminal_arrives() -> None:
    text = "import os; os.write(1, b'out' * 100_000); os.write(2, b'end')"
    with streams(TERMINAL) as (console, _), program(console, text):
        assert b"".join(content for _, content in read_all(console)) == b"out" * 100_000 + b"end"


# ---- at the launcher ----


class Launcher:
    """Standard output and error of a launcher are pipes; what its console reports."""

    def __init__(self) -> None:
        self.written: dict[str, int] = {}
        self.closed: list[str] = []
        self.stdout, self.stderr = os.pipe(), os.pipe()
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (os.fdopen(pipe[1], "w", closefd=False) for pipe in (self.stdout, self.stderr))
        self.console = ConsoleOutput(self._on_written, self.closed.append)

    def _on_written(self, node: str, size: int) -> None:
        self.written[node] = self.written.get(node, 0) + size

    def close(self) -> None:
        self.console.close()
        sys.stdout, sys.stderr = self._before
        for descriptor in (*self.stdout, *self.stderr):
            with suppress(OSError):  # closed by the test
                os.close(descriptor)


@contextmanager
def begun_launcher() -> Iterator[Launcher]:
    """Not a fixture: pytest sets the streams after it has made fixtures."""
    launcher = Launcher()
    try:
        yield launcher
    finally:
        launcher.close()


def test_output_goes_to_the_streams_as_bytes() -> None:
    with begun_launcher() as launcher:
        launcher.console.write("w1", "stdout", b"out\xff\n")
        launcher.console.write("w2", "stderr", b"error\r")
        launcher.console.close()
        assert launcher.written == {"w1": 5, "w2": 6}
        assert os.read(launcher.stdout[0], 100) == b"out\xff\n"
        assert os.read(launcher.stderr[0], 100) == b"error\r"


def test_a_stopped_terminal_does_not_stop_the_link() -> None:
    """What it has not taken is not acknowledged, so the nodes stop sending."""
    content = b"x" * (4 * PIPE_BYTES)
    with begun_launcher() as launcher:
        launcher.console.write("w1", "stdout", content)
        assert launcher.written == {}
        reading = threading.Thread(target=read_exactly, args=(launcher.stdout[0], len(content)))
        reading.start()
        launcher.console.close()
        reading.join()
        assert launcher.written == {"w1": len(content)}


def read_exactly(descriptor: int, count: int) -> None:
    while count > 0:
        count -= len(os.read(descriptor, count))


def test_a_closed_pipe_is_reported_once() -> None:
    """maya-torchrun | head"""
    with begun_launcher() as launcher:
        os.close(launcher.stdout[0])
        for _ in range(3):
            launcher.console.write("w1", "stdout", b"lost")
        launcher.console.write("w1", "stderr", b"written")
        launcher.console.close()
        assert launcher.closed == ["stdout"]
        assert launcher.written == {"w1": 19}
        assert os.read(launcher.stderr[0], 100) == b"written"


@pytest.mark.parametrize("is_open", [True, False], ids=["full disk", "closed"])
def test_output_that_cannot_be_written_is_lost(is_open: bool) -> None:
    with begun_launcher() as launcher, Path("/dev/full").open("w") as file:
        sys.stdout = file
        if not is_open:
            file.close()
        launcher.console.write("w1", "stdout", b"lost")
        launcher.console.close()
        assert launcher.written == {"w1": 4}
        assert launcher.closed == []


def test_what_the_streams_are_is_found() -> None:
    outside, inside = os.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with begun_launcher(), os.fdopen(inside, "w") as terminal:
        assert Console.of_this_process() == Console()
        sys.stderr = sys.stdout
        assert Console.of_this_process() == Console(one_stream=True)
        sys.stdout = terminal
        assert Console.of_this_process() == Console(terminals={"stdout": (30, 100)})
    os.close(outside)
