"""A job that is refused before any rank runs says why, and leaves its folder as it was."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from maya.launcher import main
from rank_runtime.build import Build

REFUSED = 2


def test_a_refused_start_does_not_use_up_its_folder(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--no-python", "no-such-program"]
    for _ in range(2):
        assert main(["--out", "named", *words]) == REFUSED
        assert "cannot start no-such-program" in capfd.readouterr().err
    assert list((tmp_path / "named").iterdir()) == []
    assert main(words) == REFUSED
    assert not (tmp_path / "maya-runs").exists()


def test_an_address_space_without_room_for_a_gpu_is_refused(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").touch()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64 << 30, 64 << 30))
    assert main(["--out", "named", "job.py"]) == REFUSED
    error = capfd.readouterr().err
    assert "address space: at most 64 GiB; use ulimit -v unlimited" in error
    assert list((tmp_path / "named").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").touch()
    assert main(["--out", "/proc/self/net/named", "job.py"]) == REFUSED
    assert "--out /proc/self/net/named: " in capfd.readouterr().err
    assert main(["--out", "/proc/self/task", "job.py"]) == REFUSED
    assert "is not empty" in capfd.readouterr().err
    readonly = tmp_path / "readonly"
    readonly.mkdir(mode=0o555)
    if os.geteuid() != 0:  # root writes there all the same
        assert main(["--out", str(readonly), "job.py"]) == REFUSED
        assert "choose another folder" in capfd.readouterr().err


def test_a_working_folder_that_was_deleted_is_one_message(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = tmp_path / "job.py"
    script.touch()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main([str(script)]) == REFUSED
    assert "the working folder was deleted" in capfd.readouterr().err
