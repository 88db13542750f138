"""Pruned trials: the limit that a trial gets, when a job is given up, and how the answer and the storage show it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from helpers.search_rows import figures, space_of, trial

from maya.config_search.errors import SearchError
from maya.config_search.objective import find_objective
from maya.config_search.pruning import bounds_of, give_up_limit, pruned_row
from maya.config_search.search_answer import SearchAnswer
from maya.config_search.search_folder import SearchFolder
from maya.config_search.search_page import SearchPage
from maya.config_search.search_progress import SearchProgress
from maya.config_search.search_runner import SearchRunner
from maya.config_search.search_settings import SearchSettings
from maya.config_search.search_text import csv_of_search, lines_of_search
from maya.config_search.trial_choice import TrialChoice
from maya.config_search.trial_command import TrialCommand
from maya.config_search.trial_ledger import STUDY, TrialLedger
from maya.config_search.trial_row import PRUNED, TrialRow, trial_of_dict
from maya.launcher.arguments import UsageError, check
from maya.launcher.giving_up import GiveUpLimit, LeastStep

SPACE = space_of(tp=[1, 2, 4])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text("")
    return file


def command(script: Path, *words: str, nproc: int = 8) -> TrialCommand:
    """The command of a trial with these options."""
    settings = SearchSettings(str(script), ("--tp", "{1,2,4}"))
    job, space = settings.make([f"--nproc={nproc}", *(words or ["--represent=auto"])])
    return job.command(space, {"tp": 1}, {})


# ---- limits ----


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("2.1s", GiveUpLimit(2_100_000_000)),
        ("300ms/4096", GiveUpLimit(300_000_000, 4096)),
        ("300ms/=4096", GiveUpLimit(300_000_000, 4096, is_fixed=True)),
    ],
)
def test_limits_as_text(text: str, limit: GiveUpLimit) -> None:
    assert GiveUpLimit.parse(text) == limit
    assert GiveUpLimit.parse(limit.text()) == limit


@pytest.mark.parametrize("text", ["2.1", "2.1s/", "2.1s/0", "s", "2s/4/5"])
def test_limits_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a time|a number and its unit|no unit"):
        GiveUpLimit.parse(text)


def test_a_limit_needs_a_survey(script: Path) -> None:
    with pytest.raises(UsageError, match="needs --represent auto"):
        check(["--nproc", "8", "--give-up-above", "2s", str(script)], {})


def least(ns: int, samples: int | None = 1000) -> LeastStep:
    return LeastStep(ns, 0.1, "tokens", samples, "1s")


def test_a_step_has_to_be_longer_by_the_error_of_kernels() -> None:
    limit = GiveUpLimit(1_000_000)
    assert not least(1_099_000).exceeds(limit)
    assert least(1_101_000).exceeds(limit)


def test_limits_are_for_a_number_of_tokens() -> None:
    limit = GiveUpLimit(1_000_000, 500)
    assert not least(2_100_000).exceeds(limit)
    assert least(2_300_000).exceeds(limit)
    assert not least(2_300_000, samples=None).exceeds(limit)


# ---- the limit of a trial ----


def test_the_limit_leaves_room_for_the_error_of_the_best(script: Path) -> None:
    best = trial(0, 100.0, tp=1)  # 10 s for 1,000 tokens
    job = command(script)
    assert give_up_limit([], "throughput", 1.0, job) is None
    assert give_up_limit([best], "throughput", 1.0, job) == GiveUpLimit(11_000_000_000, 1000)
    uncertain = replace(best, spread=0.3)
    assert give_up_limit([uncertain], "throughput", 1.0, job) == GiveUpLimit(13_000_000_000, 1000)
    assert give_up_limit([best], "step-time", 1.0, job) == GiveUpLimit(11_000_000_000)


def test_a_trial_that_takes_too_much_memory_sets_no_limit(script: Path) -> None:
    rows = [trial(0, 100.0, 40, tp=1), trial(1, 200.0, 79, tp=2)]
    found = give_up_limit(rows, "throughput", 0.9, command(script))
    assert found is not None
    assert found.ns == 11_000_000_000


def test_several_trials_with_the_same_tokens_show_that_all_have_them(script: Path) -> None:
    rows = [trial(number, 100.0 + number, tp=1) for number in range(3)]
    found = give_up_limit(rows, "throughput", 1.0, command(script))
    assert found is not None
    assert found.is_fixed
    other = TrialRow(3, {"tp": 2}, "run", "predicted", figures=figures(90.0, 10, samples_per_step=500))
    found = give_up_limit([*rows, other], "throughput", 1.0, command(script))
    assert found is not None
    assert not found.is_fixed


def test_the_limit_of_a_cost_depends_on_the_number_of_gpus(script: Path) -> None:
    best = trial(0, 100.0, tp=1)
    hours = 8 * 10 / 3600
    best = replace(best, figures=figures(100.0, 10, gpu_hours_per_step=hours, gpu_hours_per_billion=hours * 1e6))
    same, double = (give_up_limit([best], "cost", 1.0, command(script, nproc=nproc)) for nproc in (8, 16))
    assert same is not None
    assert double is not None
    assert same.ns == pytest.approx(2 * double.ns, rel=1e-6)


def test_trials_without_a_survey_are_not_pruned(script: Path) -> None:
    assert give_up_limit([trial(0, 100.0, tp=1)], "throughput", 1.0, command(script, "--represent=0")) is None


# ---- pruned trials ----


@pytest.fixture
def pruned(script: Path, tmp_path: Path) -> TrialRow:
    """A trial that was given up: 20 s for 1,000 tokens, where 11 s were allowed."""
    run = tmp_path / "trial-1"
    run.mkdir()
    LeastStep(20_000_000_000, 0.05, "tokens", 1000, "11s/1000").save(run)
    row = pruned_row(1, {"tp": 2}, command(script), run, 4.25)
    assert row is not None
    return row


def test_a_pruned_trial_has_a_bound_and_a_reason(pruned: TrialRow, script: Path, tmp_path: Path) -> None:
    assert (pruned.outcome, pruned.figures, pruned.seconds) == (PRUNED, None, 4.2)
    assert pruned.bound is not None
    assert pruned.bound.samples_per_second == pytest.approx(50.0)
    assert pruned.problem.startswith("a step of 1,000 tokens takes at least 20 s: that is what rank 0 needs")
    assert "11 s would be the best trial so far" in pruned.problem
    assert trial_of_dict(json.loads(json.dumps(pruned.to_dict()))) == pruned
    assert pruned_row(1, {"tp": 2}, command(script), tmp_path, 4.0) is None


def test_the_answer_shows_pruned_trials(pruned: TrialRow) -> None:
    answer = SearchAnswer([trial(0, 100.0, tp=1), pruned], SPACE, "throughput", 1.0)
    assert answer.counts == "2 run, 1 pruned"
    assert [row.number for row in answer.ranked] == [0]
    text = "\n".join(lines_of_search(answer))
    assert "tp: best 1; with others at best 2 at least +100.0 % (pruned), 4 was not tried" in text
    assert "pruned, because they would be far behind: trial 1 (at least +100.0 %)" in text
    table = {row["number"]: row for row in csv.DictReader(io.StringIO(csv_of_search(answer)))}
    assert (table["1"]["outcome"], table["1"]["least_step_time_ns"]) == (PRUNED, "20000000000")
    assert table["1"]["step_time_ns"] == ""
    page = SearchPage("search", answer, {}, {}).html()
    assert "pruned: a step of 1,000 tokens takes at least 20 s" in page


@pytest.mark.parametrize(("objective", "state"), [("throughput", "lower"), ("step-time", "upper")])
def test_the_storage_has_the_bound_of_a_pruned_trial(
    pruned: TrialRow, tmp_path: Path, objective: str, state: str
) -> None:
    assert pruned.bound is not None
    limit = GiveUpLimit(11_000_000_000, 1000)
    found = find_objective(objective, [pruned.bound])
    bound, least_value = bounds_of(pruned.bound, limit, found)
    assert bound < least_value if state == "lower" else bound > least_value
    ledger = TrialLedger(tmp_path / "search.db", SPACE.parameters, maximise=found.is_best_high)
    try:
        ledger.begin({"tp": 1}, "one")
        number = ledger.begin({"tp": 2}, "two", limit)
        assert ledger.entries()[number].limit == limit
        for _ in range(2):  # a search that was killed may note it again
            ledger.prune(number, bound, least_value)
        assert [entry.is_finished for entry in ledger.entries()] == [False, True]
    finally:
        ledger.close()
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'search.db'}")
    try:
        kept = optuna.load_study(study_name=STUDY, storage=storage).trials[number]
    finally:
        storage.remove_session()
        storage.engine.dispose()
    assert kept.state is optuna.trial.TrialState.PRUNED
    assert kept.intermediate_values == {1: bound}


def test_a_search_killed_before_it_noted_the_end_notes_it_later(pruned: TrialRow, script: Path, tmp_path: Path) -> None:
    """The row is written first, then Optuna's storage."""
    settings = SearchSettings(str(script), ("--tp", "{1,2,4}"))
    job, space = settings.make(["--nproc=8", "--represent=auto"])
    folder = SearchFolder(tmp_path / "search", {})
    choice = TrialChoice(space, space.configurations(), runs=3, sampler="exhaustive", seed=0, trials=3)
    ledger = TrialLedger(folder.database, space.parameters, maximise=True)
    try:
        ledger.begin({"tp": 1}, "one")
        ledger.begin({"tp": 2}, "two", GiveUpLimit(11_000_000_000, 1000))
        folder.write(pruned)
        runner = SearchRunner(settings, job, space, choice, folder, {}, SearchProgress((), None), None)
        try:
            assert [row.number for row in runner.rows()] == [1]
        finally:
            runner.close()
        assert [entry.is_finished for entry in ledger.entries()] == [False, True]
    finally:
        ledger.close()


def test_prune_is_true_or_false() -> None:
    wrong: dict[str, Any] = {"prune": 3}
    with pytest.raises(SearchError, match="neither true nor false"):
        SearchSettings("train.py", **wrong).check_limits()
