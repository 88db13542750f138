"""Python's debugger on a hanging rank: inspects blocked threads from a thread of its own.

In: a connected socket and the identity of the main thread, the globals `connection` and `main_thread` with which
shim/device/stacks.c runs this file in the rank. Out: a session of pdb over that socket, until the user leaves it or the
socket is closed. Maya may not be importable in a rank, so this file needs only the standard library.

The session keeps the GIL while it waits for the next command, so no other Python code of the rank runs meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import pdb
import re
import sys
import threading
from types import FrameType
from typing import Any

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[.\d]*/|^<")
_MOVES = (
    *("step", "s", "next", "n", "continue", "cont", "c", "return", "r", "until", "unt", "jump", "j"),
    *("run", "restart", "debug", "interact"),
    *("break", "b", "tbreak", "clear", "cl", "commands", "condition", "ignore", "enable", "disable"),
)


class Terminal:
    """A socket as the file that pdb reads from and writes to."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._calls = ctypes.PyDLL(None)  # calls through PyDLL keep the GIL
        self._buffer = ctypes.create_string_buffer(4096)
        self._rest = b""

    def readline(self) -> str:
        """The next line; empty at the end."""
        while b"\n" not in self._rest:
            count = self._calls.recv(self._descriptor, self._buffer, len(self._buffer), 0)
            if count <= 0:
                return ""
            self._rest += self._buffer.raw[:count]
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace") + "\n"

    def write(self, text: str) -> int:
        content = text.encode(errors="replace")
        while content:
            count = self._calls.send(self._descriptor, content, len(content), 0x4000)  # MSG_NOSIGNAL
            if count <= 0:
                raise EOFError("the connection is closed")
            content = content[count:]
        return len(text)

    def flush(self) -> None:
        pass


class Debugger(pdb.Pdb):
    """pdb for inspection only: the frames belong to other threads, which cannot be resumed from here."""

    def __init__(self, terminal: Any, main_thread: int) -> None:
        super().__init__(stdin=terminal, stdout=terminal, nosigint=True)
        self.prompt = f"(Pdb rank {os.environ.get('RANK', '?')}) "
        self._main_thread = main_thread

    def look_at(self, thread: int) -> bool:
        """Begin the session at the innermost line of the program's own code; `down` leads into the libraries."""
        frame = sys._current_frames().get(thread)
        if frame is None:
            self.message("*** that thread does not run Python")
            return False
        self.reset()
        self.interaction(frame, None)
        return True

    def setup(self, f: FrameType | None, tb: Any) -> None:
        super().setup(f, tb)
        own = [index for index, (frame, _) in enumerate(self.stack) if not _LIBRARY.search(frame.f_code.co_filename)]
        self._select(own[-1] if own else self.curindex)

    def _select(self, index: int) -> None:
        self.curindex = index
        self.curframe = self.stack[index][0]
        self.curframe_locals = self.curframe.f_locals
        self.lineno = None

    def do_threads(self, _: str) -> None:
        """threads

        List the threads of this rank that run Python.
        """
        for number, thread in enumerate(self._threads()):
            frame = sys._current_frames()[thread]
            where = f"{frame.f_code.co_filename}({frame.f_lineno}){frame.f_code.co_name}()"
            names = {each.ident: each.name for each in threading.enumerate()}
            self.message(f"{number:3}  {names.get(thread, 'unnamed')}  {where}")

    def do_thread(self, arg: str) -> None:
        """thread number

        Inspect another thread, by its number in `threads`; 0 is the main thread.
        """
        threads = self._threads()
        if not arg.isdigit() or int(arg) >= len(threads):
            self.error(f"expected a number from 0 to {len(threads) - 1}")
            return
        self.setup(sys._current_frames()[threads[int(arg)]], None)
        self.print_stack_entry(self.stack[self.curindex])

    def _threads(self) -> list[int]:
        """All threads but this one, the main thread first."""
        others = sorted(set(sys._current_frames()) - {self._main_thread, threading.get_ident()})
        return [self._main_thread, *others]


def _refuse(debugger: Debugger, _: str) -> None:
    """Not possible on a hanging rank."""
    debugger.error(
        "not possible on a hanging rank: it is blocked in a call that never returns. To inspect it: up, down,"
    )
    debugger.error("where, list, args, p, pp, display, threads, thread N; q leaves")


for _name in _MOVES:
    setattr(Debugger, f"do_{_name}", _refuse)


def session(descriptor: int, thread: int) -> None:
    """Run the debugger until the user leaves it."""
    terminal = Terminal(descriptor)
    try:
        Debugger(terminal, thread).look_at(thread)
    except EOFError:
        pass
    except Exception as error:
        terminal.write(f"*** the debugger failed: {type(error).__name__}: {error}\n")


if "connection" in globals():  # run in a rank, not imported
    session(globals()["connection"], globals()["main_thread"])
