"""Which configuration to try next.

In: all configurations, those that are taken, and the scores of finished ones. Out: a configuration. The choice depends
on nothing else but the seed and the number of the trial, so a search that goes on chooses as one that was never
interrupted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from maya.config_search.errors import SearchError
from maya.config_search.search_space import Configuration, SearchSpace
from maya.config_search.trial_ledger import optuna_library
from maya.util.expressions import Value
from maya.util.suggestions import did_you_mean

SAMPLERS = ("auto", "exhaustive", "tpe", "random")
_MOST_REFUSED = 64  # proposals of the sampler in turn that are taken or violate a constraint
_MOST_LOOKED_AT = 3000
_FIRST = 8  # trials that are drawn at random before the sampler has anything to go by


@dataclass(frozen=True)
class TriedConfiguration:
    """A configuration that is taken. `score`: smaller is better; None: it runs, or has failed."""

    configuration: Configuration
    score: float | None
    is_running: bool = False


class TrialChoice:
    """`sampler`: one of SAMPLERS. "auto" is "exhaustive" where `trials` are enough for the runs that all configurations
    need, and "tpe" otherwise."""

    def __init__(
        self,
        space: SearchSpace,
        configurations: Sequence[Configuration],
        *,
        runs: int,
        sampler: str,
        seed: int,
        trials: int,
    ) -> None:
        if sampler not in SAMPLERS:
            raise SearchError(f"sampler {sampler!r}{did_you_mean(sampler, SAMPLERS)}: there are {', '.join(SAMPLERS)}")
        if sampler == "auto":
            sampler = "exhaustive" if runs <= trials else "tpe"
        self.sampler = sampler
        self._space = space
        self._seed = seed
        self._all = {configuration_key(each): each for each in configurations}

    @property
    def count(self) -> int:
        """How many configurations there are."""
        return len(self._all)

    @property
    def can_be_searched(self) -> bool:
        """Whether the configurations are few enough to look at each of them when no more runs are left."""
        return len(self._all) <= _MOST_LOOKED_AT

    def next(
        self, number: int, tried: Sequence[TriedConfiguration], is_open: Callable[[Configuration], bool]
    ) -> Configuration | None:
        """The configuration of trial `number`; None: all that are open are taken."""
        taken = {configuration_key(each.configuration) for each in tried}
        left = {key: each for key, each in self._all.items() if key not in taken}
        if self.sampler == "tpe" and len(tried) >= _FIRST:
            found = self._proposed(number, tried, left, is_open)
            if found is not None:
                return found
        rest = list(left.values())
        if self.sampler != "exhaustive":
            random.Random(f"{self._seed} {number}").shuffle(rest)
        return next((each for each in rest if is_open(each)), None)

    def _proposed(
        self,
        number: int,
        tried: Sequence[TriedConfiguration],
        left: Mapping[tuple[Value, ...], Configuration],
        is_open: Callable[[Configuration], bool],
    ) -> Configuration | None:
        """A proposal of Optuna's TPE sampler that may run."""
        optuna = optuna_library()
        parameters = [each for each in self._space.parameters if len(each.values) > 1]
        distributions = {
            each.name: optuna.distributions.IntDistribution(0, len(each.values) - 1)
            if each.is_ordered
            else optuna.distributions.CategoricalDistribution(list(range(len(each.values))))
            for each in parameters
        }
        sampler = optuna.samplers.TPESampler(
            seed=random.Random(f"{self._seed} {number}").getrandbits(31),
            multivariate=True,
            constant_liar=True,
            n_startup_trials=_FIRST,
        )
        study = optuna.create_study(sampler=sampler, direction="minimize")
        worst = 2 * max((each.score for each in tried if each.score is not None), default=1.0)
        states = optuna.trial.TrialState
        for each in tried:
            places = {name.name: name.values.index(each.configuration[name.name]) for name in parameters}
            value = None if each.is_running else (worst if each.score is None else each.score)
            state = states.RUNNING if each.is_running else states.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(state=state, params=places, distributions=distributions, value=value)
            )
        first = {each.name: each.values[0] for each in self._space.parameters}
        for _ in range(_MOST_REFUSED):
            places = study.ask(distributions).params
            chosen = {each.name: each.values[places[each.name]] for each in parameters}
            found = left.get(configuration_key(self._space.normalised({**first, **chosen})))
            if found is not None and is_open(found):
                return found
        return None


def configuration_key(configuration: Configuration) -> tuple[Value, ...]:
    return tuple(configuration.values())
