"""Limits of the machine that a job may run into: open files, processes, memory."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from maya.doctor import Verdict
from maya.launcher import capacity


@pytest.mark.parametrize(
    ("check", "verdict", "advice"),
    [
        (capacity.check_open_files(1024, 1 << 20), Verdict.OK, ""),
        (capacity.check_open_files(1024, resource.RLIM_INFINITY), Verdict.OK, ""),
        (capacity.check_open_files(1024, 1024), Verdict.FAIL, "1024 ranks need 2112"),
        (capacity.check_processes(1024, None, ""), Verdict.OK, ""),
        (capacity.check_processes(1024, 32000, "kernel.pid_max"), Verdict.OK, ""),
        (capacity.check_processes(4096, 32000, "kernel.pid_max"), Verdict.WARN, "about 49152 with their threads"),
        (capacity.check_processes(1024, 500, "pids.max"), Verdict.FAIL, "raise pids.max"),
        (capacity.check_memory(1024, 24 << 30, shared=True), Verdict.OK, ""),
        (capacity.check_memory(1024, 12 << 30, shared=True), Verdict.WARN, "1024 ranks need about 18.6 GiB"),
        (capacity.check_memory(1024, 2 << 30, shared=True), Verdict.FAIL, "run one rank of each kind"),
        (capacity.check_memory(64, 24 << 30, shared=False), Verdict.OK, ""),
        (capacity.check_memory(256, 24 << 30, shared=False), Verdict.WARN, "256 ranks need about 63.1 GiB"),
    ],
)
def test_limits_get_their_verdict_and_advice(check: Any, verdict: Verdict, advice: str) -> None:
    assert check.verdict is verdict
    assert advice in check.advice


def test_open_files_processes_and_memory_are_checked() -> None:
    assert [check.subject for check in capacity.examine(2, shared=True)] == [
        "open files",
        "processes",
        "memory",
        "address space",
    ]
