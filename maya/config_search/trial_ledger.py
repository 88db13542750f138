"""The trials of a search in an Optuna storage, an SQLite file that optuna-dashboard opens.

In: configurations that are about to run, and their results. Out: which configurations were taken, by this search or by
another one on the same storage. Figures and problems are in trial-N.json; the storage has parameters, state and value.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maya.config_search.errors import SearchError
from maya.config_search.parameter import Parameter
from maya.config_search.search_space import Configuration
from maya.launcher.giving_up import GiveUpLimit
from maya.util.extras import MissingPackage, needs

if TYPE_CHECKING:
    import optuna

STUDY = "maya search"
_LIMIT = "give_up_above"  # attribute of a trial


@dataclass(frozen=True)
class LedgerEntry:
    """A trial that was begun."""

    number: int
    configuration: Configuration
    is_finished: bool
    limit: GiveUpLimit | None = None  # above which it is given up


class TrialLedger:
    """The trials of one search."""

    def __init__(self, file: Path, parameters: Sequence[Parameter], *, maximise: bool) -> None:
        library = optuna_library()
        self._optuna = library
        self._distributions = {
            each.name: library.distributions.CategoricalDistribution(each.values) for each in parameters
        }
        try:
            self._storage = library.storages.RDBStorage(f"sqlite:///{file}")
            self._study: optuna.Study = library.create_study(
                storage=self._storage,
                study_name=STUDY,
                direction="maximize" if maximise else "minimize",
                load_if_exists=True,
            )
        except Exception as error:  # SQLAlchemy's, by the state of the file
            raise SearchError(
                f"{file} cannot be opened: {str(error).splitlines()[0]}; choose another folder with --out, or remove it"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def entries(self) -> list[LedgerEntry]:
        """All trials, in the order in which they were begun."""
        return [
            LedgerEntry(
                each.number, dict(each.params), each.state.is_finished(), _limit_of(each.user_attrs.get(_LIMIT))
            )
            for each in self._study.get_trials(deepcopy=False)
        ]

    def begin(self, configuration: Configuration, folder: str, limit: GiveUpLimit | None = None) -> int:
        """Note that a configuration is taken; returns the number of its trial."""
        attributes = {"folder": folder, **({} if limit is None else {_LIMIT: limit.text()})}
        state = self._optuna.trial.TrialState.RUNNING
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=state,
                params=dict(configuration),
                distributions=self._distributions,
                user_attrs=attributes,
            )
        )
        return int(self._study.get_trials(deepcopy=False)[-1].number)

    def finish(self, number: int, value: float | None) -> None:
        """Note the result; None: the trial has no figures."""
        if value is None:
            self._study.tell(number, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)
        else:
            self._study.tell(number, value, skip_if_finished=True)

    def prune(self, number: int, bound: float, limit: float) -> None:
        """Note that a trial was given up: its value cannot be better than `bound`, and would have to be better than
        `limit`."""
        trial = next(each for each in self._study.get_trials(deepcopy=False) if each.number == number)
        if trial.state.is_finished():
            return
        library = self._optuna
        is_high = self._study.direction == library.study.StudyDirection.MAXIMIZE
        self._study.pruner = library.pruners.ThresholdPruner(**{"lower" if is_high else "upper": limit})
        running = library.trial.Trial(self._study, trial._trial_id)
        running.report(bound, step=1)
        assert running.should_prune(), f"trial {number} was given up at {bound}, within {limit}"
        self._study.tell(number, state=library.trial.TrialState.PRUNED)


def _limit_of(text: str | None) -> GiveUpLimit | None:
    return None if text is None else GiveUpLimit.parse(text)


def optuna_library() -> Any:
    """The module optuna, which logs only warnings."""
    try:
        with needs("search", "maya search"):
            import optuna
    except MissingPackage as error:
        raise SearchError(str(error)) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
