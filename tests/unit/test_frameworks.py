"""scripts/frameworks: its catalogue names programs that exist, and the document's table was made from it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from framework_catalogue import Program, read_catalogue  # type: ignore[import-not-found]
from framework_results import (  # type: ignore[import-not-found]
    BEGIN,
    END,
    HEADING,
    conclude,
    read_result,
    update_document,
)

ROOT = Path(__file__).parents[2]
PROGRAMS = read_catalogue()
SUMMARY = {
    "emulation": {"private_bytes_per_rank": {"largest": 50_000_000, "median": 40_000_000}},
    "prediction": {"steps": {"median_ns": 12_345_678}},
}


@pytest.fixture
def document(tmp_path: Path) -> Path:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\n{END}\n\nafter\n")
    return page


def program(name: str) -> Program:
    return next(program for program in PROGRAMS if program.key == name)


def test_programs_exist() -> None:
    missing = [str(file) for each in PROGRAMS for file in each.files() if not file.is_file()]
    assert not missing


def test_packages_have_a_version() -> None:
    assert not [text for each in PROGRAMS for text in each.framework.packages if "==" not in text]


def test_rows_of_the_document_are_programs_of_the_catalogue() -> None:
    text = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    table = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    assert tuple(table[:2]) == HEADING
    known = {f"| {each.framework.title} | {each.what} " for each in PROGRAMS}
    strangers = [line for line in table[2:] if not any(line.startswith(begin) for begin in known)]
    assert not strangers


def test_a_command_has_its_folders(tmp_path: Path) -> None:
    lightning = program("lightning.trainer-own-launch")
    assert lightning.arguments({"programs": tmp_path}) == ["--", "python", f"{tmp_path}/lightning_trainer.py", "ddp"]
    by_us = program("lightning.trainer-ddp")
    assert by_us.arguments({"programs": tmp_path}) == ["--nproc", "2", f"{tmp_path}/lightning_trainer.py", "ddp"]


def test_a_result_becomes_a_row(document: Path, tmp_path: Path) -> None:
    fabric = program("lightning.fabric-ddp")
    conclude(fabric, 0, 9.4, "fine", SUMMARY, {}).write(tmp_path)
    assert fabric.key not in update_document(document, PROGRAMS, tmp_path)
    (line,) = [line for line in document.read_text().splitlines() if "`Fabric`, DDP" in line]
    assert line.endswith("| 2 | ran | 9 | 50 | 12.35 ms |")
    assert document.read_text().startswith("before\n")
    assert document.read_text().endswith("after\n")


def test_a_failure_states_the_last_error(tmp_path: Path) -> None:
    log = (
        "[rank0]: Traceback\n[rank0]: ValueError: first\n[rank1]: package.OddError: no room | left\nmaya: [rank 0] x\n"
    )
    result = conclude(program("lightning.fabric-ddp"), 1, 3.0, log, {}, {})
    assert (result.ran, result.reason) == (False, "package.OddError: no room | left")
    assert result.notes == ["maya: x"]


def test_a_row_without_a_result_stays(document: Path, tmp_path: Path) -> None:
    fabric = program("lightning.fabric-ddp")
    conclude(fabric, 0, 9.4, "", SUMMARY, {}).write(tmp_path)
    update_document(document, PROGRAMS, tmp_path)
    before = document.read_text()
    update_document(document, PROGRAMS, tmp_path / "empty")
    assert document.read_text() == before


def test_a_result_of_a_changed_program_does_not_count(tmp_path: Path) -> None:
    fabric = program("lightning.fabric-ddp")
    conclude(fabric, 0, 9.4, "", SUMMARY, {}).write(tmp_path)
    assert read_result(fabric, tmp_path) is not None
    assert read_result(replace(fabric, ranks=4), tmp_path) is None
