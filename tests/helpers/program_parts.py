"""Small programs that run as parts of one process on a virtual GPU, each with its own output and library calls.

Starting torch takes seconds, a part milliseconds. So tests declare their programs beside them, and all programs of a
module run one after the other when the first test asks for its part. A part that fails does not keep the others from
running. Parts have their own variables, but share torch's settings: a part that changes one changes it back.

In: the texts of the programs, and a way to run a script. Out: for each test, what its part printed and recorded, as the
fixture `part`.

    PROGRAM = ProgramParts()

    @PROGRAM.part('''
        import torch
        torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
        ''')
    def test_a_matmul_is_recorded(part: Part) -> None:
        assert len(part.library_calls) == 1
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from helpers.script_run import MayaRun, ScriptRun

from maya.trace import RecordKind, Trace, read

Test = TypeVar("Test", bound=Callable[..., None])

_MARK = "outcome of a part: "
# The sleep: torch's autograd thread releases a graph after backward() has returned, and needs the interpreter for it. A
# script that ends at that very moment makes CPython abort the thread, and with it the process.
_RUN_PARTS = """
import contextlib, io, json, time, traceback
import torch

torch.cuda.init()  # ops are recorded from here on
for name, text in {texts!r}.items():
    printed, problem = io.StringIO(), ""
    with contextlib.redirect_stdout(printed), torch.profiler.record_function(name):
        try:
            exec(compile(text, name, "exec"), {{"__name__": name}})
        except Exception:
            problem = traceback.format_exc()
    print({mark!r} + json.dumps([name, printed.getvalue(), problem]), flush=True)
time.sleep(0.2)
"""


@dataclass(frozen=True)
class Part:
    """What a program printed, and the signatures of its library calls, in order."""

    stdout: str
    library_calls: list[dict[str, Any]]


class Parts:
    """The parts of a finished run."""

    def __init__(self, run: ScriptRun) -> None:
        self.run = run
        lines = (line.removeprefix(_MARK) for line in run.stdout.splitlines() if line.startswith(_MARK))
        self.outcomes = {name: (printed, problem) for name, printed, problem in map(json.loads, lines)}
        self.trace = read(run.trace)

    def of(self, test: Callable[..., None]) -> Part:
        name = test.__name__
        assert name in self.outcomes, f"the program ended before {name}: {self.run.output}"
        printed, problem = self.outcomes[name]
        assert not problem, problem
        assert self.run.exit_code == 0, f"the program failed after its parts: {self.run.output}"
        assert "not emulated" not in self.run.output
        assert self.trace.complete, self.trace.problem
        return Part(printed, _library_calls(self.trace, name))


class ProgramParts:
    """Programs by the names of the tests that they belong to."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def part(self, text: str) -> Callable[[Test], Test]:
        """Declares the program of a test."""

        def declare(test: Test) -> Test:
            self.texts[test.__name__] = textwrap.dedent(text)
            return test

        return declare

    def run(self, maya_run: MayaRun, *options: str, **settings: Any) -> Parts:
        """`settings`: as the function that `runner_in` makes takes them."""
        return Parts(maya_run(_RUN_PARTS.format(texts=self.texts, mark=_MARK), *options, **settings))


def _library_calls(trace: Trace, name: str) -> list[dict[str, Any]]:
    """Those of all threads while the part's annotation was open: backward runs on its own thread."""
    (annotation,) = trace.ops[(trace.ops["kind"] == RecordKind.ANNOTATION) & (trace.ops["name"] == name)]
    begun = annotation["start_ns"]
    records = trace.select(RecordKind.LIBRARY)
    inside = records[(records["host_ns"] >= begun) & (records["host_ns"] <= begun + annotation["duration_ns"])]
    return [trace.signature(number) for number in inside["signature"].tolist()]
