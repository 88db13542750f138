"""Tables of predicted against published training runs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from training_report import (  # type: ignore[import-not-found]
    MARK,
    Outcome,
    read_outcomes,
    text_tables,
    write_markdown,
)
from training_rows import TrainingJob  # type: ignore[import-not-found]


def _outcome(number: int, gpus: int, step_ms: float) -> Outcome:
    options = ("--micro-batch", "1", "--sequence", "1024", "--tensor", "1")
    job = TrainingJob(
        number, "nanotron 1B", f"job {number}", gpus, "h100", "aws-p5", options, 4, 1, 100.0, 40.0, 2**30, "reserved"
    )
    return Outcome(job, step_ms, 44.0, "gemm 90 attention 10")


def test_rows_without_a_new_result_stay_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "report.md"
    file.write_text(f"By hand.\n\n{MARK}\n", encoding="utf-8")
    outcomes = [_outcome(1, 8, 90.0), _outcome(2, 128, 130.4)]
    write_markdown(file, outcomes, [(3, "no mapping")])
    text = file.read_text(encoding="utf-8")
    assert text.startswith("By hand.")
    assert "| 2 | job 2 | 100 | 130 | +30.4 % | 40.0 | 44.0 | +10.0 % | gemm 90 attention 10 |" in text
    read = read_outcomes(file, [each.job for each in outcomes])
    write_markdown(file, read, [(3, "no mapping")])
    assert file.read_text(encoding="utf-8") == text


def test_a_row_whose_job_has_changed_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "report.md"
    file.write_text(MARK, encoding="utf-8")
    write_markdown(file, [_outcome(1, 8, 90.0)], [])
    assert read_outcomes(file, [_outcome(2, 8, 90.0).job]) == []


def test_errors_by_source_and_size() -> None:
    lines = text_tables([_outcome(1, 8, 90.0), _outcome(2, 128, 130.0), _outcome(3, 2048, 80.0)], [])
    header = next(line for line in lines if line.startswith("rows: median (bias)"))
    assert "65 to 256 GPUs" in header
    assert "more than 1,024 GPUs" in header
    assert any(line.startswith("nanotron ") and "1: 30.0 % (+30.0 %)" in line for line in lines)
