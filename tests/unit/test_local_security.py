"""Other users of the same machine: what they can offer to a job, and what it takes from them."""

from __future__ import annotations

import os
import pickle
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from coordinator.hangs.flight_recorder import Recorder, parse
from coordinator.hangs.plain_pickle import PlainPickleError, plain_value
from rank_runtime.build.cache import check_cache_folder
from rank_runtime.build.errors import BuildError
from rank_runtime.introspection import ask
from rank_runtime.stacks_socket import stacks_socket

PLAIN = {
    "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [
        {"sizes": [[4, 2], []], "n": [0, 255, 65535, -7, 2**40], "share": 0.5, "none": None, "t": (True, False)}
    ],
    "wide": "ä" * 300,
}
NOBODY = 65534
ENDPOINT = "ipc://@maya-test-of-local-security"


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_plain_values_are_read_from_a_pickle(protocol: int) -> None:
    assert plain_value(pickle.dumps(PLAIN, protocol=protocol)) == PLAIN


def test_nothing_in_a_pickle_is_executed(tmp_path: Path) -> None:
    file = tmp_path / "made"
    for protocol in (0, 2, 5):
        with pytest.raises(PlainPickleError):
            plain_value(pickle.dumps({"pg_config": Evil(file)}, protocol=protocol))
        assert parse(pickle.dumps(Evil(file), protocol=protocol)) == Recorder()
    assert not file.exists()


def test_a_damaged_flight_recorder_is_an_empty_one() -> None:
    draw = random.Random(3)
    original = pickle.dumps(PLAIN, protocol=2)
    for _ in range(2000):
        mutant = bytearray(original)
        for _ in range(draw.randrange(1, 4)):
            mutant[draw.randrange(len(mutant))] = draw.randrange(256)
        with suppress(PlainPickleError):
            plain_value(bytes(mutant))
        parse(bytes(mutant[: draw.randrange(len(mutant))]))


@contextmanager
def taken_by_another_user(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody else listens at an address, and answers. Without root's rights, we are somebody else instead."""
    with socket.socket(socket.AF_UNIX) as listening:
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
            try:
                listening.bind(address)
                listening.listen()  # the peer's credentials are those of this moment
            finally:
                os.seteuid(0)
        else:
            listening.bind(address)
            listening.listen()
            monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
        thread = threading.Thread(target=_answer, args=(listening,))
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _answer(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            with listening.accept()[0] as connection:
                connection.sendall(b"not the rank's stacks")


def test_only_this_users_processes_answer_for_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    process = os.getpid()
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(stacks_socket(process, ENDPOINT))
        own.listen()
        thread = threading.Thread(target=_answer, args=(own,))
        thread.start()
        assert ask(ENDPOINT, {process: "stacks"}, 5) == {process: b"not the rank's stacks"}
        own.shutdown(socket.SHUT_RDWR)
        thread.join()
    with taken_by_another_user(stacks_socket(process, ENDPOINT), monkeypatch):
        assert ask(ENDPOINT, {process: "stacks"}, 5) == {}


def test_a_cache_folder_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    check_cache_folder(folder)
    folder.mkdir()
    check_cache_folder(folder)
    folder.chmod(0o1777)
    with pytest.raises(BuildError, match=r"can be written by every user \(mode 1777\).*Set MAYA_CACHE"):
        check_cache_folder(folder)
    folder.chmod(0o775)  # a group of the user's choice
    check_cache_folder(folder)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(BuildError, match=r"belongs to .*, who could put libraries there"):
        check_cache_folder(folder)
