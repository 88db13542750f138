"""Results of the programs that scripts/frameworks has run, and their table in docs/frameworks.md.

In: a program's log, exit code and summary.json. Out: a `ProgramResult` in a JSON file per program, and a Markdown table
between two markers. Rows of programs without a result in the cache stay as they are in the document.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from framework_catalogue import Program

BEGIN = "<!-- table made by scripts/frameworks: begin -->"
END = "<!-- table made by scripts/frameworks: end -->"
HEADING = (
    "| framework | program | ranks | result | seconds | private MB per rank | predicted step |",
    "|---|---|---|---|---|---|---|",
)
_ERROR = re.compile(r"^(?:\[?[\w ]*\]?:? ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)")


@dataclass(frozen=True)
class ProgramResult:
    key: str
    fingerprint: str  # of the program and the framework's packages
    ran: bool
    exit_code: int | None  # None: ended after its time limit
    reason: str  # of a failure
    seconds: float
    private_bytes: int | None  # of the largest rank
    step_ns: int | None
    notes: list[str] = field(default_factory=list)  # what Maya printed about things it does not emulate
    versions: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"
        (folder / f"{self.key}.json").write_text(text, encoding="utf-8")


def read_result(program: Program, folder: Path) -> ProgramResult | None:
    """The program's result, unless the program or its packages have changed since."""
    file = folder / f"{program.key}.json"
    if not file.exists():
        return None
    result = ProgramResult(**json.loads(file.read_text(encoding="utf-8")))
    return result if result.fingerprint == fingerprint(program) else None


def fingerprint(program: Program) -> str:
    text = repr((program.command, program.ranks, program.options, program.framework))
    contents = [file.read_bytes() for file in program.files()]
    return hashlib.sha256(text.encode() + b"".join(contents)).hexdigest()[:16]


def conclude(
    program: Program, exit_code: int | None, seconds: float, log: str, summary: dict[str, Any], versions: dict[str, str]
) -> ProgramResult:
    """What became of a program."""
    private = (summary.get("emulation") or {}).get("private_bytes_per_rank") or {}
    prediction = summary.get("prediction") or {}
    ran = exit_code == 0
    notes = sorted({re.sub(r"\[rank \d+\] ", "", line) for line in log.splitlines() if line.startswith("maya: [")})
    return ProgramResult(
        program.key, fingerprint(program), ran, exit_code, "" if ran else _reason(program, exit_code, log),
        round(seconds, 1), private.get("largest"), (prediction.get("steps") or {}).get("median_ns"), notes, versions,
    )  # fmt: skip


def _reason(program: Program, exit_code: int | None, log: str) -> str:
    if program.reason:
        return program.reason
    if exit_code is None:
        return f"did not end within {program.minutes} minutes"
    errors = [match[1] for line in log.splitlines() if (match := _ERROR.match(line.strip()))]
    return errors[-1][:200] if errors else f"exit code {exit_code}"


def row(program: Program, result: ProgramResult) -> str:
    """The program's line of the table."""
    links = "".join(f" ([{file.name}](../scripts/{file.parent.name}/{file.name}))" for file in program.scripts())
    outcome = "ran" if result.ran else f"failed: {result.reason}".replace("|", "\\|")
    private = "–" if result.private_bytes is None else f"{result.private_bytes / 1e6:.0f}"
    step = "–" if result.step_ns is None else f"{result.step_ns / 1e6:,.2f} ms"
    cells = (
        program.framework.title,
        program.what + links,
        program.ranks,
        outcome,
        f"{result.seconds:.0f}",
        private,
        step,
    )
    return f"| {' | '.join(map(str, cells))} |"


def update_document(document: Path, programs: list[Program], results: Path) -> list[str]:
    """Write the table. Returns the programs that have no row."""
    text = document.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    if not after:
        raise ValueError(f"{document} lacks the lines {BEGIN} and {END}, between which the table belongs")
    rows, absent = [], []
    for program in programs:
        result = read_result(program, results)
        if result is not None:
            rows.append(row(program, result))
        elif (kept := kept_row(program, old)) is not None:
            rows.append(kept)
        else:
            absent.append(program.key)
    table = "\n".join([BEGIN, "", *HEADING, *rows, "", END])
    document.write_text(before + table + after, encoding="utf-8")
    return absent


def kept_row(program: Program, table: str) -> str | None:
    """The row of a program in an earlier table."""
    begin = f"| {program.framework.title} | {program.what} "
    return next((line for line in table.splitlines() if line.startswith(begin)), None)
