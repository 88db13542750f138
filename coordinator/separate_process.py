"""The coordinator as a process of its own, for a job whose ranks run on other machines: a zygote forks it otherwise.

In: one line of JSON on standard input (it has the run's keys, which do not belong on a command line): the fields of
`Settings`; on the command line, the descriptors for reports and control lines, and the process id of the launcher.
"""

from __future__ import annotations

import json
import sys

from coordinator.process import run_with_values


def main() -> int:
    reports, control, launcher = map(int, sys.argv[1:4])
    values = json.loads(sys.stdin.readline())
    return run_with_values(values, reports, control, launcher)
