"""Several checks in one program: the program starts once, and each check is a test of its own.

Starting torch on a virtual GPU takes seconds, a check milliseconds. So the checks are functions in the text of one
program, which calls one after the other and prints what became of each. A failed check does not keep the others from
running.

In: the text of the functions, and a way to run a script. Out: for each function, nothing or its traceback.

    STREAMS = Checks('''
        import torch

        def a_new_stream_is_idle():
            assert torch.cuda.Stream().query()
        ''')

    @pytest.fixture(scope="module")
    def outcomes(maya_run_once: MayaRun) -> Outcomes:
        return STREAMS.run(maya_run_once)

    @pytest.mark.parametrize("check", STREAMS.names)
    def test_streams(outcomes: Outcomes, check: str) -> None:
        outcomes.require(check)

Every top-level function without parameters is a check, unless its name begins with an underscore. One named
`after_each` runs after every check.
"""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass
from typing import Any

from helpers.script_run import MayaRun, ScriptRun

_MARK = "outcome of a check: "
_CALLS = """
def _call_checks(names):
    import json, traceback
    after_each = globals().get("after_each")
    for name in names:
        problem = ""
        try:
            globals()[name]()
        except (Exception, SystemExit):
            problem = traceback.format_exc()
        print({mark!r} + json.dumps([name, problem]), flush=True)
        if after_each is not None:
            after_each()

_call_checks({names!r})
"""


@dataclass(frozen=True)
class Outcomes:
    """What became of the checks of one program."""

    run: ScriptRun
    problems: dict[str, str]  # a traceback for each check that ran; empty if it succeeded

    def require(self, check: str) -> None:
        require(check, self.problems, self.run.output)
        assert self.run.exit_code == 0, f"the program failed after its checks: {self.run.output}"


class Checks:
    """A program whose functions are checks. `tools` is text that comes before them and has no checks."""

    def __init__(self, text: str, tools: str = "") -> None:
        functions = textwrap.dedent(text)
        self.names = [name for name in re.findall(r"^def ([a-z]\w*)\(\):", functions, re.M) if name != "after_each"]
        self.program = textwrap.dedent(tools) + functions + _CALLS.format(mark=_MARK, names=self.names)

    def run(self, maya_run: MayaRun, *options: str, **settings: Any) -> Outcomes:
        """`settings`: as the function that `runner_in` makes takes them."""
        run = maya_run(self.program, *options, **settings)
        return Outcomes(run, problems_in(run.stdout))


def problems_in(output: str) -> dict[str, str]:
    """The traceback of each check that ran, from what the program printed; empty for a check that succeeded."""
    lines = [line.removeprefix(_MARK) for line in output.splitlines() if line.startswith(_MARK)]
    return dict(json.loads(line) for line in lines)


def require(check: str, problems: dict[str, str], output: str) -> None:
    assert check in problems, f"the program ended before {check}: {output}"
    assert not problems[check], problems[check]
