"""Scaling studies: templates, sizes, rows of recorded summaries, strong and weak, growth, texts, folders, refusals."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner, Result
from helpers.browser import needs_browser, open_page

import maya
from maya.cli.main import main
from maya.launcher.option_parser import make_parser, option_actions
from maya.scaling.argument_template import TemplateError, fill
from maya.scaling.efficiency import find_mode, with_efficiency
from maya.scaling.failure_reason import reason
from maya.scaling.growth import efficiency_text, find_growth, matching_calls
from maya.scaling.scale_row import ExposedCallFigures, ScaleRow, row_of_dict, row_of_summary
from maya.scaling.size_commands import StudyError, commands_of, parse_sizes
from maya.scaling.study import ScaleStudy
from maya.scaling.study_folder import StudyFolder, StudyFolderError, StudySettings
from maya.scaling.study_progress import StudyProgress, seconds_left, short_time
from maya.scaling.study_text import bar, csv_of

RECORDED = Path(__file__).parent / "recorded"  # runs of train_gpt.py --data fsdp on dgx-h100, with --represent 0
SIZES = (2, 8, 16)


def summary(nproc: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"scale-{nproc}.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def rows() -> list[ScaleRow]:
    return [row_of_summary(nproc, f"nproc-{nproc}", summary(nproc), 10.04) for nproc in SIZES]


def settings(**changes: Any) -> StudySettings:
    return replace(StudySettings("train.py", ("--batch", "{nproc}"), ("--represent=auto",), {}, {}), **changes)


def study_of(rows: list[ScaleRow], folder: Path = Path("study"), scaling: str | None = None) -> ScaleStudy:
    return ScaleStudy(folder, settings(), rows, scaling)


# ---- arguments ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--steps", "--steps"),
        ("{nproc}", "64"),
        ("--batch={4096//nproc}", "--batch=64"),
        ("{nproc//8}x{ 2 * (nproc - 1) + 3 }", "8x129"),
        ('{{"size": {nproc}}}', '{"size": 64}'),
    ],
)
def test_arithmetic_in_braces(text: str, expected: str) -> None:
    assert fill(text, 64) == expected


@pytest.mark.parametrize(
    "text", ["{", "a}", "{}", "{ranks}", "{nproc", "{nproc/8}", "{2**nproc}", "{nproc.real}", "{True}", "{1.5}", "{-1}",
             "{__import__('os')}", "{nproc//0}", "{" + "(" * 300 + "1" + ")" * 300 + "}"],
)  # fmt: skip
def test_other_braces_are_refused(text: str) -> None:
    with pytest.raises(TemplateError, match=r"write e\.g|a single|divides by zero"):
        fill(text, 64)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8,x", "'x' is not a number of ranks"),
        ("8,", "'' is not a number of ranks"),
        ("0,8", "0 ranks; a job has at least 1"),
        ("8,16,8", "nproc names 8 twice"),
        ("-8", "'-8' is not a number"),
    ],
)
def test_sizes_that_are_refused(text: str, expected: str) -> None:
    with pytest.raises(StudyError, match=expected):
        parse_sizes(text)


def test_sizes_are_put_in_order() -> None:
    assert parse_sizes("64, 8,16") == [8, 16, 64]


def test_command_of_every_size(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    commands = commands_of([8, 16], str(script), ["--rows", "{64//nproc}"], ["--tokens-per-step={nproc*4}"], {})
    assert [command.words for command in commands] == [
        ("--nproc=8", "--tokens-per-step=32", str(script), "--rows", "8"),
        ("--nproc=16", "--tokens-per-step=64", str(script), "--rows", "4"),
    ]


# ---- rows ----


def test_row_of_a_recorded_summary(rows: list[ScaleRow]) -> None:
    row, prediction = rows[2], summary(16)["prediction"]
    assert (row.nproc, row.gpus, row.nodes, row.processes, row.seconds) == (16, 16, 2, 1, 10.0)
    assert row.step_time_ns == prediction["steps"]["median_ns"]
    assert row.samples_per_step == 16 * 4 * 512
    assert sum(row.class_ns.values()) == pytest.approx(row.step_time_ns, rel=0.01)
    assert row.exposed_share == row.class_ns["communication"] / sum(row.class_ns.values())
    assert sum(call.ns for call in row.exposed_calls) == pytest.approx(row.class_ns["communication"], abs=10)
    assert sum(row.memory_bytes.values()) == row.peak_memory_bytes


def test_row_survives_json(rows: list[ScaleRow]) -> None:
    assert row_of_dict(json.loads(json.dumps(rows[1].to_dict()))) == rows[1]


# ---- strong or weak ----


def test_weak_scaling_is_found_from_tokens(rows: list[ScaleRow]) -> None:
    mode = find_mode(rows)
    assert (mode.kind, mode.work) == ("weak", "tokens")
    assert mode.text == "weak scaling: a step has 2,048 tokens per GPU at every size"


def test_strong_scaling_is_found_from_tokens(rows: list[ScaleRow]) -> None:
    mode = find_mode([replace(row, samples_per_step=1 << 20) for row in rows])
    assert mode.text == "strong scaling: a step has 1,048,576 tokens at every size"


def test_neither_strong_nor_weak(rows: list[ScaleRow]) -> None:
    mode = find_mode([replace(row, samples_per_step=row.nproc**2) for row in rows])
    assert mode.kind == "mixed"
    assert "4 tokens on 2 ranks and 256 tokens on 16; efficiency compares tokens/s per GPU" in mode.text


def test_flops_decide_where_tokens_are_unknown(rows: list[ScaleRow]) -> None:
    mode = find_mode([replace(row, samples_per_step=None, unit=None) for row in rows])
    assert (mode.kind, mode.work) == ("weak", "FLOPs")


def test_user_decides_where_nothing_is_known(rows: list[ScaleRow]) -> None:
    unknown = [replace(row, samples_per_step=None, unit=None, flops_per_step=0.0) for row in rows]
    assert find_mode(unknown).kind == "unknown"
    assert [row.efficiency for row in with_efficiency(unknown, find_mode(unknown))] == [None] * 3
    weak = with_efficiency(unknown, find_mode(unknown, "weak"))
    assert weak[2].efficiency == pytest.approx((rows[0].step_time_ns or 0) / (rows[2].step_time_ns or 1))
    strong = with_efficiency(unknown, find_mode(unknown, "strong"))
    assert strong[2].efficiency == pytest.approx((weak[2].efficiency or 0) / 8)


def test_contradiction_to_the_tokens_is_stated(rows: list[ScaleRow]) -> None:
    assert "although tokens per step say otherwise" in find_mode(rows, "strong").text


def test_efficiency_is_the_throughput_of_a_gpu(rows: list[ScaleRow]) -> None:
    found = with_efficiency(rows, find_mode(rows))
    for row in found:
        expected = (row.samples_per_second_per_gpu or 0) / (rows[0].samples_per_second_per_gpu or 1)
        assert row.efficiency == pytest.approx(expected)
        assert row.speedup == pytest.approx(expected * row.nproc / 2)


def test_failed_sizes_are_left_out_of_comparisons(rows: list[ScaleRow]) -> None:
    failed = ScaleRow(4, "nproc-4", "out of memory")
    found = with_efficiency([failed, *rows], find_mode([failed, *rows]))
    assert [row.efficiency for row in found[:2]] == [None, 1.0]


# ---- growth ----


def test_what_grows_is_named(rows: list[ScaleRow]) -> None:
    [growth] = find_growth(rows, find_mode(rows))
    assert growth.what == "communication"
    assert growth.text == (
        "exposed communication grows from 15.0 % to 27.1 % of the step (632.8 us to 1.121 ms): ncclAllGather of groups "
        "of 16 (7.8 % to 14.1 %) and ncclReduceScatter of groups of 16 (7.0 % to 12.1 %)"
    )


def test_growth_adds_up_to_the_lost_efficiency(rows: list[ScaleRow]) -> None:
    """A step that only gets longer in one class loses exactly what that class gains."""
    first = rows[0]
    whole = sum(first.class_ns.values())
    longer = dict(first.class_ns, waiting=whole)
    second = replace(first, nproc=4, gpus=4, samples_per_step=2 * (first.samples_per_step or 0), class_ns=longer)
    [growth] = find_growth([first, second], find_mode([first, second]))
    assert (growth.what, growth.cost, growth.before, growth.after) == ("waiting", 1.0, 0.0, 0.5)
    assert growth.text.startswith("waiting for other ranks grows from 0.0 % to 50.0 % of the step")


def test_memory_that_grows_is_named(rows: list[ScaleRow]) -> None:
    parts = dict(rows[0].memory_bytes, nccl=2 << 30)
    larger = replace(rows[2], memory_bytes=parts, peak_memory_bytes=sum(parts.values()))
    [*_, growth] = find_growth([rows[0], larger], find_mode(rows))
    assert growth.text == "peak memory grows from 1.64 GiB to 3.49 GiB, mostly NCCL's buffers"


def test_efficiency_says_where_it_falls(rows: list[ScaleRow]) -> None:
    text = efficiency_text(with_efficiency(rows, find_mode(rows)))
    assert text == (
        "efficiency is 102.3 % on 16 ranks, compared with 2; it falls most, by 2.8 points, from 8 to 16 ranks"
    )


def test_calls_are_matched_by_their_groups() -> None:
    def call(name: str, ranks: int) -> ExposedCallFigures:
        return ExposedCallFigures(name, ranks, 1)

    before = [call("ncclAllReduce", 8), call("ncclAllReduce", 64), call("ncclBroadcast", 8)]
    after = [call("ncclAllReduce", 8), call("ncclAllReduce", 4096), call("ncclAllReduce", 2), call("ncclSend", 2)]
    pairs = [
        (None if one is None else one.ranks, other.call, other.ranks) for one, other in matching_calls(before, after)
    ]
    assert pairs == [
        (8, "ncclAllReduce", 8), (64, "ncclAllReduce", 4096), (None, "ncclAllReduce", 2), (None, "ncclSend", 2),
    ]  # fmt: skip


def test_one_size_has_nothing_to_compare(rows: list[ScaleRow]) -> None:
    study = study_of(rows[:1])
    assert (study.growth, study.statements) == ((), [])
    assert str(study).startswith("Scaling needs two sizes that succeed.")


# ---- failures ----

OUT_OF_MEMORY = """\
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 5, in <module>
[rank1]:   File "/home/me/train.py", line 5, in <module>
[rank0]:   File "/env/lib/python3.13/site-packages/torch/nn/modules/module.py", line 77, in _call_impl
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total capacity of 79.11 \
GiB of which 78.60 GiB is free. Including non-PyTorch memory, this process has 520.00 MiB memory in use. Of the \
allocated memory 0 bytes is allocated by PyTorch
"""
BLOCK = """\
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : {code} (pid: 17791)
  traceback : {cause}
============================================================
maya-torchrun: nothing recorded
"""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            OUT_OF_MEMORY,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total capacity of "
            "79.11 GiB of which 78.60 GiB is free. Including non-PyTorch memory, this process has 520.00 MiB memory in "
            "use. … (train.py:5)",
        ),
        ("usage: train.py\ntrain.py: error: argument --batch: 0\n", "train.py: error: argument --batch: 0"),
        (
            BLOCK.format(code=-9, cause="Signal 9 (SIGKILL) received by PID 17791"),
            "Signal 9 (SIGKILL) received by PID 17791",
        ),
        (
            "no data\n" + BLOCK.format(code=3, cause="To enable traceback see: ..."),
            "a rank ended with exit code 3; the last line before: no data",
        ),
        ("maya-torchrun: --out x is not empty", "--out x is not empty"),
        ("", "exit code 1"),
    ],
    ids=["exception", "usage", "signal", "exit", "own message", "nothing"],
)
def test_reason_of_a_failure(output: str, expected: str) -> None:
    assert reason(output.splitlines(), 1) == expected


def test_hang_and_missing_prediction_are_reasons() -> None:
    assert reason(OUT_OF_MEMORY.splitlines(), 1, hang="deadlock: 2 of 2 ranks wait") == "deadlock: 2 of 2 ranks wait"
    assert reason([], 0, unpredicted="nothing was recorded") == "no prediction: nothing was recorded"


# ---- texts, CSV, chart, page ----


def test_table_on_the_terminal(rows: list[ScaleRow]) -> None:
    failed = ScaleRow(32, "nproc-32", "RuntimeError: no (train.py:1)", seconds=7.0)
    lines = str(study_of([*rows, failed])).splitlines()
    assert lines[0] == "Weak scaling: a step has 2,048 tokens per GPU at every size."
    assert [" ".join(lines[at].split()) for at in (2, 5, 6)] == [
        "ranks processes step time tokens/s per GPU MFU efficiency exposed memory GPU-h/1e9 tokens run",
        "16 1 4.135 ms 7,923,805 495,238 11.7 % 102.3 % ████████████▎ 27.1 % 1.36 GiB 0.561 nproc-16 (10 s)",
        "32 - failed - - - - - - - nproc-32 (7 s)",
    ]
    assert "32 ranks failed: RuntimeError: no (train.py:1); see nproc-32.log" in lines
    assert lines[-1].startswith("assumes: the script reads placeholder values")


def test_bars() -> None:
    assert [bar(share) for share in (None, 0.0, 0.5, 1.0)] == ["", "", "██████", "████████████"]


def test_price_replaces_gpu_hours(rows: list[ScaleRow]) -> None:
    priced = [replace(row, price_per_billion=2.5, price_per_step=0.1) for row in rows]
    assert "price/1e9 tokens" in str(study_of(priced))


def test_csv_has_plain_numbers(rows: list[ScaleRow]) -> None:
    tables = list(csv.DictReader(io.StringIO(csv_of([*rows, ScaleRow(32, "nproc-32", "a, b")]))))
    assert [table["nproc"] for table in tables] == ["2", "8", "16", "32"]
    assert int(tables[2]["class_ns.communication"]) == rows[2].class_ns["communication"]
    assert (tables[3]["problem"], tables[3]["step_time_ns"]) == ("a, b", "")


def test_pandas_has_a_row_for_each_size(rows: list[ScaleRow]) -> None:
    table = study_of(rows).to_pandas()
    assert list(table.index) == [2, 8, 16]
    assert table["class_ns.gemm"].tolist() == [row.class_ns["gemm"] for row in rows]


def test_study_is_plain(rows: list[ScaleRow]) -> None:
    found = json.loads(json.dumps(study_of(rows).to_dict()))
    assert [row["nproc"] for row in found["rows"]] == [2, 8, 16]
    assert found["growth"][0]["what"] == "communication"


@pytest.mark.parametrize("unknown", [False, True], ids=["tokens", "no tokens"])
def test_chart_and_page(rows: list[ScaleRow], tmp_path: Path, unknown: bool) -> None:
    failed = ScaleRow(32, "nproc-32", "bad <shape> & more")
    chosen = [*rows, failed]
    if unknown:
        gone: dict[str, Any] = {"samples_per_second": None, "samples_per_step": None, "gpu_hours_per_billion": None}
        chosen = [replace(row, unit=None, **gone) for row in chosen]
    page, table, chart = study_of(chosen, tmp_path).write()
    drawn = ElementTree.fromstring(chart.read_text(encoding="utf-8"))
    texts = [element.text for element in drawn.iter() if element.text]
    assert "Efficiency (weak scaling)" in texts
    assert any("bad <shape> & more" in text for text in texts)
    assert texts.count("32") == 4
    text = page.read_text(encoding="utf-8")
    assert '<a href="nproc-16/">' in text
    assert "bad &lt;shape&gt; &amp; more" in text
    assert "{{" not in text
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "").replace("http-equiv", "")
    assert table.name == "scale.csv"
    again = study_of(chosen, tmp_path).write()[0].read_text(encoding="utf-8")
    assert again == text


@needs_browser
def test_page_in_a_browser(rows: list[ScaleRow], tmp_path: Path) -> None:
    page = study_of(rows, tmp_path).write()[0]
    opened = open_page(page.read_text(encoding="utf-8"), tmp_path)
    assert opened.complaints == []
    assert "15.0 % to 27.1 % of the step" in opened.text_of("growth")
    assert 'data-theme="light"' in opened.dom


# ---- progress ----


def test_time_left_follows_the_last_two_sizes() -> None:
    assert seconds_left([], [8]) is None
    assert seconds_left([(8, 10.0)], [16, 32]) == 20.0
    assert seconds_left([(8, 10.0), (16, 18.0)], [32], elapsed=4.0) == 30.0
    assert seconds_left([(8, 10.0), (16, 6.0)], [32]) == 6.0
    assert seconds_left([(8, 10.0)], [16], elapsed=99.0) == 0.0


def test_times_for_people() -> None:
    assert [short_time(seconds) for seconds in (4.6, 75, 1234, 7300)] == ["5 s", "1 min 15 s", "21 min", "2 h 1 min"]


def test_progress_in_plain_lines() -> None:
    console = io.StringIO()
    with StudyProgress([8, 16], console) as shown:
        shown.end(8, "4 ms a step", 30.0, ran=False)
        shown.begin(16)
        shown.output("maya-torchrun: survey, round 1: rank 0 of 16\n")
        assert shown.text() == "16 ranks (2 of 2), 0 s, about 30 s left: survey, round 1: rank 0 of 16"
        shown.end(16, "5 ms a step, efficiency 80.0 %", 40.0, ran=True)
    assert console.getvalue().splitlines() == [
        "maya scale: 8 ranks: 4 ms a step",
        "maya scale: 16 ranks (2 of 2), 0 s, about 30 s left: starting",
        "maya scale: 16 ranks: 5 ms a step, efficiency 80.0 %; took 40 s",
    ]


# ---- folders ----


def finish(folder: Path, row: ScaleRow, chosen: StudySettings) -> None:
    with StudyFolder(folder, chosen).opened() as study:
        run = study.begin(row.nproc)
        run.mkdir()
        (run / "run.json").touch()
        study.add(row)


def test_finished_sizes_are_found_again(tmp_path: Path, rows: list[ScaleRow]) -> None:
    finish(tmp_path, rows[0], settings())
    finish(tmp_path, ScaleRow(8, "nproc-8", "failed"), settings())
    with StudyFolder(tmp_path, settings()).opened() as study:
        assert study.finished(2) == rows[0]
        assert study.finished(8) is None  # runs again
        assert study.finished(16) is None
        assert not study.begin(8).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nproc-2", "scale.json"]


def test_size_without_its_run_is_not_finished(tmp_path: Path, rows: list[ScaleRow]) -> None:
    finish(tmp_path, rows[0], settings())
    (tmp_path / "nproc-2" / "run.json").unlink()
    with StudyFolder(tmp_path, settings()).opened() as study:
        assert study.finished(2) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"args": ("--batch", "8")}, r"args: --batch \{nproc\} instead of --batch 8"),
        ({"options": ()}, "options: --represent=auto instead of none"),
        ({"files": {"train.py": "12ab"}}, "train.py changed since"),
        ({"environment": {"NCCL_ALGO": "Ring"}}, "environment: NCCL_ALGO"),
        ({"maya": "9.9"}, "maya: .* instead of 9.9"),
    ],
)
def test_study_of_other_settings_is_refused(
    tmp_path: Path, rows: list[ScaleRow], changes: dict[str, Any], expected: str
) -> None:
    finish(tmp_path, rows[0], settings())
    with pytest.raises(StudyFolderError, match=expected), StudyFolder(tmp_path, settings(**changes)).opened():
        pass
    with StudyFolder(tmp_path, settings()).opened() as study:
        assert study.finished(2) == rows[0]


def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(StudyFolderError, match=r"is not empty and has no scale\.json"):
        StudyFolder(tmp_path, settings()).opened().__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(("text", "expected"), [("{", "is not valid"), ('{"version": 9, "settings": {}}', "version 9")])
def test_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "scale.json").write_text(text, encoding="utf-8")
    with pytest.raises(StudyFolderError, match=expected):
        StudyFolder(tmp_path, settings()).opened().__enter__()


def test_two_studies_in_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        StudyFolder(tmp_path, settings()).opened(),
        pytest.raises(StudyFolderError, match="another maya scale is at work there"),
        StudyFolder(tmp_path, settings()).opened(),
    ):
        pass


def test_settings_name_files_and_variables(tmp_path: Path) -> None:
    script, cluster = tmp_path / "train.py", tmp_path / "own.toml"
    script.write_text("1", encoding="utf-8")
    cluster.write_text("2", encoding="utf-8")
    found = StudySettings.of(
        str(script), [], [f"--cluster={cluster}", "--gpu=h100"], {"NCCL_ALGO": "Ring", "HOME": "/"}
    )
    assert list(found.files) == [str(script), str(cluster)]
    assert found.environment == {"NCCL_ALGO": "Ring"}


# ---- the command ----


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.touch()
    yield path
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]  # nothing ran


def command(*words: str) -> Result:
    return CliRunner().invoke(main, ["scale", *words])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["none.py", "--nproc", "2"], "the script none.py does not exist"),
        ([".", "--nproc", "2"], "the script . is a folder"),
        (["train.py", "--nproc", "2,2"], "nproc names 2 twice"),
        (["train.py", "--nproc", "2,12"], "12 ranks: --nproc 12 does not fill 2 nodes evenly"),
        (["train.py", "--nproc", "2", "--cluster", "dgx"], '2 ranks: --cluster: unknown cluster "dgx"'),
        (["train.py", "--nproc", "2", "--gpu", "h10"], 'unknown GPU "h10"'),
        (["train.py", "--nproc", "2", "--represent", "0,7"], "there is no rank 7"),
        (["train.py", "--nproc", "2", "--host-time", "slow"], "argument --host-time: invalid choice"),
        (["train.py", "--nproc", "2", "--on-hang", "wait"], "a study goes on with the next size"),
        (["train.py", "--nproc", "2", "--", "{nproc%2}"], "is not arithmetic on nproc"),
        (["train.py", "--nproc", "2", "--tokens-per-step", "{nproc-2}"], "--tokens-per-step: '0'"),
        (["train.py", "--nproc", "2", "--out", "train.py"], "--out"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(script: Path, words: list[str], expected: str) -> None:
    result = command(*words)
    assert result.exit_code == 1
    assert expected in result.output


def test_arguments_of_the_script_need_dashes(script: Path) -> None:
    result = command("train.py", "--nproc", "2", "--layers", "3")
    assert result.exit_code == 2
    assert "No such option '--layers'. The script's own arguments come after --." in result.output


def test_options_are_those_of_the_launcher() -> None:
    found = main.commands["scale"]
    names = {parameter.name for parameter in found.params if isinstance(parameter, click.Option)}
    assert set(option_actions(make_parser({}))) - names == {"no_trace", "no_timeline"}


def test_unknown_option_in_python(script: Path) -> None:
    with pytest.raises(TypeError, match=r"scale\(\) got an unexpected keyword argument 'clusters'"):
        maya.scale("train.py", nproc=[2], clusters="dgx-h100")


@pytest.mark.parametrize("nproc", [[], [2, 0], [2.5], ["2"], [True]])
def test_sizes_that_are_refused_in_python(script: Path, nproc: Any) -> None:
    with pytest.raises(ValueError, match="nproc"):
        maya.scale("train.py", nproc=nproc)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"no_trace": True}, "there is nothing to compare"), ({"scaling": "linear"}, "neither strong nor weak")],
)
def test_options_that_are_refused_in_python(script: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        maya.scale("train.py", nproc=[2], **options)
