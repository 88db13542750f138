"""Searches: choices in words, spaces, constraints, what follows from finished trials, the answer, refusals."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from helpers.browser import needs_browser, open_page
from helpers.search_rows import inferred, space_of, trial

from maya.cli.main import main
from maya.config_search.errors import SearchError
from maya.config_search.inference import inferred_from, memory_directions
from maya.config_search.objective import find_objective
from maya.config_search.parameter import parse_values
from maya.config_search.search_answer import SearchAnswer
from maya.config_search.search_chart import draw_search
from maya.config_search.search_folder import SearchFolder
from maya.config_search.search_page import SearchPage
from maya.config_search.search_settings import SearchSettings, read_search_file
from maya.config_search.search_space import SearchSpace
from maya.config_search.search_text import csv_of_search, lines_of_search
from maya.config_search.trial_choice import TrialChoice, TriedConfiguration
from maya.config_search.trial_command import JobTemplate
from maya.config_search.trial_row import (
    FAILED,
    RUN,
    TrialRow,
    trial_of_dict,
)
from maya.config_search.word_template import read_words
from maya.util.expressions import Expression, ExpressionError, Value

# ---- expressions ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp*pp <= nproc", True),
        ("nproc // (tp*pp)", 8),
        ("nproc / tp", 32),
        ("7 % 4 - -1.5", 4.5),
        ("tp in (1, 2) and not pp == 1", True),
        ("1 < tp < 3 or mode == 'none'", True),
        ("max(tp, pp, 3)", 4),
        ("'full' if pp > 1 else 'none'", "full"),
    ],
)
def test_values_of_expressions(text: str, expected: object) -> None:
    assert Expression(text).value({"tp": 2, "pp": 4, "nproc": 64, "mode": "full"}) == expected


@pytest.mark.parametrize(
    "text",
    ["", "tp =", "__import__('os')", "tp.real", "tp[0]", "[x for x in tp]", "lambda: 1", "2 ** 99", "max(tp)",
     "f'{tp}'", "tp := 1", "min(*tp)", "(" * 300 + "1" + ")" * 300],
)  # fmt: skip
def test_nothing_else_is_an_expression(text: str) -> None:
    with pytest.raises(ExpressionError, match="not an expression"):
        Expression(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pp > 1", "there is no pp"),
        ("tp % 0", "divides by zero"),
        ("tp < 'a'", "not supported"),
        ("'a' * 9", "not a number"),
    ],
)
def test_expressions_without_a_value(text: str, expected: str) -> None:
    with pytest.raises(ExpressionError, match=expected):
        Expression(text).value({"tp": 2})


# ---- choices ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2,4", [1, 2, 4]),
        ("1..4", [1, 2, 3, 4]),
        ("1..20*2", [1, 2, 4, 8, 16]),
        ("8..40+16,64", [8, 24, 40, 64]),
        ("0.5,1e-3,full, none,", [0.5, 0.001, "full", "none", ""]),
        ("007,-3", ["007", -3]),
    ],
)
def test_values_of_a_choice(text: str, expected: list[Value]) -> None:
    assert parse_values("size", text) == expected


@pytest.mark.parametrize(("text", "expected"), [("4..1", "empty"), ("0..8*2", "never ends"), ("1..8+0", "never ends")])
def test_ranges_that_are_refused(text: str, expected: str) -> None:
    with pytest.raises(SearchError, match=expected):
        parse_values("size", text)


def test_a_choice_is_called_after_its_option() -> None:
    words = ["--tp", "{1,2}", "--micro-batch={1..4*2}", "model.layers={12,24}", "{wd:0.1,0.2}", "{--recompute full,}"]
    templates, parameters = read_words(words)
    assert [each.name for each in parameters] == ["tp", "micro_batch", "model_layers", "wd", "recompute"]
    values: dict[str, Value] = {
        "tp": 2,
        "micro_batch": 4,
        "model_layers": 12,
        "wd": 0.1,
        "recompute": "--recompute full",
    }
    made = [word for each in templates for word in each.words(values)]
    assert made == ["--tp", "2", "--micro-batch=4", "model.layers=12", "0.1", "--recompute", "full"]
    assert templates[-1].words({"recompute": ""}) == []


def test_expressions_and_braces_in_words() -> None:
    templates, parameters = read_words(["{nproc//tp}x{max(tp, 3)}", '{{"tp": {tp}}}', ""])
    assert parameters == []
    assert [each.words({"nproc": 8, "tp": 2}) for each in templates] == [["4x3"], ['{"tp": 2}'], [""]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["{"], "a single {"),
        (["{a b}"], "neither a choice"),
        (["{1,2}"], r"needs a name; write e.g. {size:1,2}"),
        (["--x", "{1,2,1}"], "x has the value 1 twice"),
        (["--x", "{1..9999}"], "at most 1000"),
    ],
)
def test_words_that_are_refused(words: list[str], expected: str) -> None:
    with pytest.raises(SearchError, match=expected):
        read_words(words)


# ---- spaces ----


def test_constraints_select_configurations() -> None:
    space = space_of(("tp*pp <= nproc", "pp == 1 or tp > 1"), tp=[1, 2, 4], pp=[1, 2, 4])
    assert [tuple(each.values()) for each in space.configurations()] == [(1, 1), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2)]


def test_a_parameter_that_does_not_matter_has_its_first_value() -> None:
    space = space_of(when="pp > 1", pp=[1, 2], chunks=[1, 2, 4])
    assert [tuple(each.values()) for each in space.configurations()] == [(1, 1), (2, 1), (2, 2), (2, 4)]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: space_of(("nprocs > 1",), tp=[1, 2]),
            r"there is no parameter nprocs \(did you mean nproc\?\); there are nproc, tp",
        ),
        (lambda: space_of(("tp >",), tp=[1, 2]), "'tp >' is not an expression"),
        (lambda: space_of(tp=[1]), "nothing to choose"),
        (lambda: space_of(nproc=[1, 2]), "both a choice and fixed to 8"),
        (lambda: space_of(when="x > 1", tp=[1, 2]), "condition of tp: there is no parameter x"),
        (lambda: space_of(a=list(range(999)), b=list(range(999))), "998,001 combinations; at most 200,000"),
    ],
)
def test_spaces_that_are_refused(make: Callable[[], SearchSpace], expected: str) -> None:
    with pytest.raises(SearchError, match=expected):
        make()


def test_constraints_that_nothing_satisfies_are_named() -> None:
    with pytest.raises(SearchError, match="no configuration satisfies the constraints: 'tp > 9' refuses most"):
        space_of(("tp > 9", "pp > 1"), tp=[1, 2], pp=[1, 2]).configurations()


# ---- commands ----


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.touch()
    return file


def test_commands_of_configurations(script: Path) -> None:
    settings = SearchSettings(
        str(script), ("--tp", "{1,2}", "--dp", "{nproc//tp}"), variables={"NCCL_ALGO": "{Ring,Tree}"}
    )
    job, space = settings.make(["--cluster={dgx-h100,dgx-b200}", "--nproc=8", "--represent=auto"])
    commands = [job.command(space, each, {}) for each in space.configurations()]
    assert len(commands) == 8
    last = commands[-1]
    assert last.words == (
        "--cluster=dgx-b200", "--nproc=8", "--represent=auto", str(script), "--tp", "2", "--dp", "4",
    )  # fmt: skip
    assert (last.environment, last.hardware) == ({"NCCL_ALGO": "Tree"}, {"cluster": "dgx-b200"})
    assert len({each.software for each in commands}) == 4
    assert last.text("maya-torchrun") == (
        f"NCCL_ALGO=Tree maya-torchrun --cluster=dgx-b200 --nproc=8 {script} --tp 2 --dp 4"
    )
    assert last.text("torchrun") == f"NCCL_ALGO=Tree torchrun --nnodes=1 --nproc-per-node=8 {script} --tp 2 --dp 4"


def test_jobs_that_are_refused(script: Path, tmp_path: Path) -> None:
    settings = SearchSettings(str(script), ("--tp", "{1,2}"))
    with pytest.raises(SearchError, match="--nproc is missing"):
        settings.make([])
    with pytest.raises(SearchError, match="nothing depends on dp"):
        replace(settings, space={"dp": [1, 2]}).make(["--nproc=8"])
    job, space = replace(settings, script=str(tmp_path / "other.py")).make(["--nproc=8"])
    with pytest.raises(SearchError, match=r"other\.py does not exist"):
        job.command(space, {"tp": 1}, {})


# ---- trials ----


SPACE = space_of(tp=[1, 2, 4], mb=[1, 2, 4, 8])
ROWS = [
    trial(0, 100.0, 40, tp=1, mb=1),
    trial(1, 120.0, 60, tp=1, mb=2),
    trial(2, None, tp=1, mb=4),
    inferred(3, 2, tp=1, mb=8),
    trial(4, 110.0, 25, tp=2, mb=1),
    trial(5, 130.0, 35, tp=2, mb=2),
    trial(6, 131.0, 70, tp=2, mb=4),
    trial(7, 90.0, 15, tp=4, mb=1),
    TrialRow(8, {"tp": 4, "mb": 8}, RUN, FAILED, problem="AssertionError: heads (train.py:3)"),
]


def test_rows_survive_json() -> None:
    for row in ROWS:
        assert trial_of_dict(json.loads(json.dumps(row.to_dict()))) == row


def test_memory_that_grows_or_falls_with_a_parameter() -> None:
    assert memory_directions(ROWS, SPACE.parameters) == {"tp": -1, "mb": 1}


def test_one_pair_of_trials_is_no_evidence() -> None:
    assert memory_directions(ROWS[:2], SPACE.parameters) == {}


def test_a_pair_that_contradicts_the_others_counts() -> None:
    rows = [*ROWS, trial(9, 80.0, 5, tp=4, mb=2)]
    assert memory_directions(rows, SPACE.parameters) == {"tp": -1}


def test_more_of_what_takes_memory_runs_out_of_it() -> None:
    directions = {"tp": -1, "mb": 1}
    rows = [trial(2, None, tp=2, mb=4)]
    assert inferred_from({"tp": 2, "mb": 8}, rows, directions) == rows[0]
    assert inferred_from({"tp": 1, "mb": 8}, rows, directions) == rows[0]
    assert inferred_from({"tp": 4, "mb": 8}, rows, directions) is None
    assert inferred_from({"tp": 2, "mb": 8}, rows, {"tp": -1}) is None


def test_nothing_follows_from_an_inferred_trial() -> None:
    assert inferred_from({"tp": 1, "mb": 8}, [inferred(3, 2, tp=1, mb=4)], {"mb": 1}) is None


# ---- the choice ----


def choice(sampler: str, trials: int = 30, seed: int = 0) -> TrialChoice:
    configurations = SPACE.configurations()
    return TrialChoice(SPACE, configurations, runs=len(configurations), sampler=sampler, seed=seed, trials=trials)


def walk(sampler: str, seed: int = 0) -> list[tuple[Value, ...]]:
    """All configurations, in the order in which the sampler chooses them."""
    chooser, tried = choice(sampler, seed=seed), list[TriedConfiguration]()
    while (found := chooser.next(len(tried), tried, lambda each: True)) is not None:
        tried.append(TriedConfiguration(found, float(abs(int(found["tp"]) - 2) + abs(int(found["mb"]) - 4))))
    return [tuple(each.configuration.values()) for each in tried]


def test_few_configurations_are_all_tried() -> None:
    assert choice("auto", trials=12).sampler == "exhaustive"
    assert choice("auto", trials=11).sampler == "tpe"


@pytest.mark.parametrize("sampler", ["exhaustive", "tpe", "random"])
def test_every_configuration_is_chosen_once(sampler: str) -> None:
    chosen = walk(sampler)
    assert sorted(chosen) == sorted(tuple(each.values()) for each in SPACE.configurations())
    assert walk(sampler) == chosen


def test_the_seed_decides_the_order() -> None:
    assert walk("random", seed=1) != walk("random", seed=2)


def test_unknown_samplers_are_refused() -> None:
    with pytest.raises(SearchError, match=r"did you mean random\?"):
        choice("randm")


# ---- the answer ----


def answer_of(rows: list[TrialRow], objective: str = "throughput", memory: float = 1.0) -> SearchAnswer:
    return SearchAnswer(rows, SPACE, objective, memory)


def test_best_equals_and_pareto_front() -> None:
    answer = answer_of(ROWS)
    assert [row.number for row in answer.ranked] == [6, 5, 1, 4, 0, 7]
    assert [row.number for row in answer.equals] == [5]
    assert [row.number for row in answer.pareto] == [6, 5, 4, 7]


def test_memory_limit() -> None:
    answer = answer_of(ROWS, memory=0.8)
    assert answer.best == ROWS[5]
    assert [row.number for row in answer.too_large] == [6]


def test_effects_of_parameters() -> None:
    effects = {each.name: each for each in answer_of(ROWS).effects}
    assert [each.best for each in effects["mb"].values] == [4, 5, 6, None]
    assert effects["tp"].range == pytest.approx(131 / 90 - 1)


def test_objectives() -> None:
    rows = [row.figures for row in ROWS if row.figures is not None]
    assert [find_objective(name, rows).title for name in ("throughput", "step-time", "cost")] == [
        "tokens/s", "step time", "GPU-h/1e9 tokens",
    ]  # fmt: skip
    unknown = [*rows, replace(rows[0], unit=None, samples_per_second=None)]
    objective = find_objective("throughput", unknown)
    assert objective.title == "steps/s"
    assert "tokens of some trials are not known" in objective.note


def test_text_of_an_answer() -> None:
    text = "\n".join(lines_of_search(answer_of(ROWS)))
    assert text.startswith(
        "8 run, 1 inferred to run out of memory, 1 out of memory, 1 failed.\n\ntrial  tp  mb  tokens/s"
    )
    assert "as good as trial 6, within the error of a kernel's time (2.0 %): trial 5" in text
    assert "tp: best 2; with others at best 1 +9.2 %, 4 +45.6 %" in text
    assert "mb: best 4; with others at best 1 +19.1 %, 2 +0.8 %, 8 never fits" in text
    assert "trial 8 failed (tp=4 mb=8): AssertionError: heads (train.py:3)" in text


def test_an_answer_without_figures() -> None:
    assert lines_of_search(answer_of([ROWS[2]])) == [
        "1 run, 1 out of memory.",
        "",
        "No configuration has figures that fit.",
    ]


def test_csv_has_a_line_for_each_trial() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_of_search(answer_of(ROWS)))))
    assert [row["outcome"] for row in rows].count("predicted") == 6
    assert (rows[6]["parameter.tp"], rows[6]["samples_per_second"], rows[3]["source"]) == ("2", "131.0", "2")


def page_of(rows: list[TrialRow]) -> str:
    return SearchPage("train.py", answer_of(rows), {"torchrun": "torchrun <x>"}, {"script": "{{title}}"}).html()


def test_chart_and_page() -> None:
    ElementTree.fromstring(draw_search(answer_of(ROWS)))
    html = page_of(ROWS)
    assert "torchrun &lt;x&gt;" in html
    assert "<td>{{title}}</td>" in html
    assert 'href="trial-6/"' in html
    assert draw_search(answer_of([ROWS[2]])) == ""


@needs_browser
def test_page_in_a_browser(tmp_path: Path) -> None:
    opened = open_page(page_of(ROWS), tmp_path)
    assert opened.complaints == []
    assert "as good as trial 6" in opened.text_of("best")
    assert 'data-theme="light"' in opened.dom


# ---- files ----

STUDY = """
script = "train.py"
args = ["--tp", "{tp}", "--mb={mb}", "{chunks}"]
nproc = 16
where = "tp*mb <= 16"
objective = "cost"
seed = 3

[options]
cluster = "dgx-h100"
host-time = "zero"

[space]
tp = [1, 2, 4]
mb = "1..8*2"
chunks = ["", "--chunks 2"]

[when]
chunks = "mb > 1"

[limits]
memory = 0.9
trials = 12
"""


def test_a_file_has_everything(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY, encoding="utf-8")
    settings = read_search_file(file)
    assert settings.options == {"cluster": "dgx-h100", "host_time": "zero", "nproc": 16}
    assert (settings.memory, settings.trials, settings.objective, settings.seed) == (0.9, 12, "cost", 3)
    _, space = settings.make(["--nproc=16"])
    assert len(space.configurations()) == 3 + 2 * (3 + 3 + 2)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("seed = 3", "sed = 3"), r'unknown key "sed" \(did you mean seed\?\)'),
        (("seed = 3", "seed = -1"), "seed: -1 is not a whole number from 0"),
        (("memory = 0.9", "memory = 90"), "memory: 90 is not a share"),
        (("trials = 12", "trial = 12"), r'limits: unknown key "trial" \(did you mean trials\?\)'),
        (('"cost"', '"price"'), "objective 'price': there are throughput, step-time, cost"),
        (('mb = "1..8*2"', "mb = 8"), "space.mb = 8: expected a list"),
        (('script = "train.py"', ""), 'the key "script" is missing'),
        (("[space]", "[space"), "not valid TOML"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY.replace(*change), encoding="utf-8")
    with pytest.raises(SearchError, match=expected) as error:
        read_search_file(file)
    assert str(file) in str(error.value)


def test_a_folder_goes_on_with_the_same_settings_only(tmp_path: Path) -> None:
    folder = SearchFolder(tmp_path / "search", {"script": "train.py"})
    folder.write(ROWS[5])
    assert SearchFolder(folder.folder, {"script": "train.py"}).finished(5) == ROWS[5]
    with pytest.raises(SearchError, match=r"other settings \(script\)"):
        SearchFolder(folder.folder, {"script": "other.py"})
    (folder.folder / "trial-5.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SearchError, match=r"trial-5\.json is not valid"):
        folder.finished(5)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(SearchError, match=r"not empty and has no search\.json"):
        SearchFolder(tmp_path, {})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["missing.py", "--nproc", "8", "--", "--tp", "{1,2}"], "the script missing.py does not exist"),
        (["missing.toml"], "missing.toml: cannot be read"),
        (["train.py", "--nproc", "8", "--", "--tp", "2"], "nothing to choose"),
        (["train.py", "--nproc", "8", "--when", "tp", "--", "--tp", "{1,2}"], "expected NAME:TEXT"),
        (["train.py", "--nproc", "8", "--no-trace", "--", "--tp", "{1,2}"], "No such option"),
        (["train.py", "--nproc", "8", "--gpu", "h1000", "--", "--tp", "{1,2}"], 'unknown GPU "h1000"'),
        (["train.py", "--nproc", "0", "--", "--tp", "{1,2}"], "expected a number of ranks"),
    ],
)
def test_searches_that_are_refused(
    script: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    monkeypatch.chdir(script.parent)
    result = CliRunner().invoke(main, ["search", *words])
    assert result.exit_code != 0
    assert expected in result.output
    assert [each.name for each in script.parent.iterdir()] == ["train.py"]  # nothing is left behind


def test_job_template_of_words() -> None:
    job = JobTemplate.of("train.py", ["--tp", "{1,2}"], ["--nproc=8"], {"NCCL_ALGO": "{Ring,Tree}"})
    assert [each.name for each in job.parameters] == ["tp", "NCCL_ALGO"]
