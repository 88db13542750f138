"""Runs a command as if the launcher were not there: the same terminal, process group, signals and exit code.

In: a command and its environment. Out: its exit code, or the launcher's own end by the signal that ended the command.

Signals of the terminal (Ctrl-C, Ctrl-\\, a closed terminal) reach the command directly, because it is in the launcher's
process group; the launcher itself ignores them. Signals that another process sends to the launcher are passed on.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_SI_KERNEL = 0x80  # si_code of a signal that the terminal sent
_TURN_SECONDS = 0.2


def run_command(command: Sequence[str], environment: Mapping[str, str], turn: Callable[[], None]) -> int:
    """Run the command to its end; returns its exit code, negative for a signal. `turn` is called several times a
    second meanwhile."""
    # A signal that is ignored already, as by nohup, stays so in both processes. Handlers do not survive the exec.
    handled = [number for number in _PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: None) for number in handled}
    try:
        process = subprocess.Popen(list(command), env=dict(environment))
        awaited = {*handled, signal.SIGCHLD}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        try:
            while process.poll() is None:
                arrived = signal.sigtimedwait(awaited, _TURN_SECONDS)
                if arrived is not None and arrived.si_signo != signal.SIGCHLD and arrived.si_code != _SI_KERNEL:
                    process.send_signal(arrived.si_signo)
                turn()
        finally:
            while signal.sigtimedwait(awaited, 0) is not None:
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return process.returncode


def end_like(status: int) -> int:
    """The exit code for a command's status; does not return if a signal ended the command."""
    if status >= 0:
        return status
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the dump would be the launcher's
    number = -status
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number  # the signal is not fatal here
