"""The space of a search: parameters, conditions and constraints, and the configurations that they allow.

In: `Parameter`s and constraints as text. Out: all configurations, each once, in a fixed order. A parameter that does
not matter in a configuration has its first value, so that configurations that mean the same are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from maya.config_search.errors import SearchError
from maya.config_search.parameter import Parameter
from maya.util.expressions import Expression, ExpressionError, Value
from maya.util.suggestions import did_you_mean

Configuration = Mapping[str, Value]
MOST_COMBINATIONS = 200_000


class SearchSpace:
    """`fixed`: values that expressions may name and that the search does not choose, such as nproc."""

    def __init__(self, parameters: Sequence[Parameter], where: Iterable[str], fixed: Mapping[str, Value]) -> None:
        self.parameters = tuple(parameters)
        self.fixed = dict(fixed)
        self.where = tuple(_constraint(text) for text in where)
        self._check()

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that have more than one value."""
        return tuple(each.name for each in self.parameters if len(each.values) > 1)

    def check_names(self, names: Iterable[str], where: str) -> None:
        """Refuse names that are no parameters; `where` begins the message."""
        known = {*self.fixed, *(each.name for each in self.parameters)}
        for name in sorted(names):
            if name not in known:
                raise SearchError(
                    f"{where}: there is no parameter {name}{did_you_mean(name, known)}; there are "
                    f"{', '.join(sorted(known)) or 'none'}"
                )

    def configurations(self) -> list[Configuration]:
        """All that satisfy the constraints; an error if there are none."""
        counts = [0] * len(self.where)
        found: dict[tuple[Value, ...], Configuration] = {}
        for values in product(*(each.values for each in self.parameters)):
            raw = dict(zip((each.name for each in self.parameters), values, strict=True))
            configuration = self.normalised(raw)
            key = tuple(configuration.values())
            if key in found:
                continue
            refused = [at for at, each in enumerate(self.where) if not self._is_true(each, configuration)]
            for at in refused:
                counts[at] += 1
            if not refused:
                found[key] = configuration
        if not found:
            raise SearchError(f"no configuration satisfies the constraints: {self._blame(counts)}")
        return list(found.values())

    def names_of(self, configuration: Configuration) -> dict[str, Value]:
        """All that an expression may name."""
        return {**self.fixed, **configuration}

    def normalised(self, raw: Configuration) -> Configuration:
        """The configuration with the first value of every parameter that does not matter in it."""
        return {
            each.name: raw[each.name] if each.when is None or self._is_true(each.when, raw) else each.values[0]
            for each in self.parameters
        }

    def _is_true(self, expression: Expression, configuration: Configuration) -> bool:
        try:
            return bool(expression.value(self.names_of(configuration)))
        except ExpressionError as error:
            raise SearchError(f"{error} (with {configuration_text(configuration)})") from error

    def _check(self) -> None:
        names = [each.name for each in self.parameters]
        for name in names:
            if names.count(name) > 1:
                raise SearchError(f"two choices are called {name}; name one of them: {{other:1,2,4}}")
            if name in self.fixed:
                raise SearchError(f"{name} is both a choice and fixed to {self.fixed[name]}; rename the choice")
        for constraint in self.where:
            self.check_names(constraint.names, f"--where {constraint.text!r}")
        for each in self.parameters:
            if each.when is not None:
                self.check_names(each.when.names, f"condition of {each.name}")
        if not self.names:
            raise SearchError(
                "nothing to choose: no parameter has several values. Write them in braces and quotes: "
                "'--tp={1,2,4}' (without quotes, the shell expands the braces)"
            )
        combinations = math.prod(len(each.values) for each in self.parameters)
        if combinations > MOST_COMBINATIONS:
            raise SearchError(
                f"the space has {combinations:,} combinations; at most {MOST_COMBINATIONS:,} are possible: give "
                "some parameters fewer values"
            )

    def _blame(self, counts: Sequence[int]) -> str:
        most = max(counts)
        texts = [repr(each.text) for each, count in zip(self.where, counts, strict=True) if count == most]
        return f"{texts[0]} refuses most" if len(texts) == 1 else f"{' and '.join(texts)} refuse most"


def configuration_text(configuration: Configuration, names: Iterable[str] | None = None) -> str:
    """tp=2 pp=4; a text that is empty as ''."""
    chosen = configuration if names is None else {name: configuration[name] for name in names}
    return " ".join(f"{name}={value_text(value)}" for name, value in chosen.items())


def value_text(value: Value) -> str:
    """As tables show it."""
    text = str(value)
    return text if text and not any(letter.isspace() for letter in text) else repr(text)


def _constraint(text: str) -> Expression:
    try:
        return Expression(text)
    except ExpressionError as error:
        raise SearchError(f"--where: {error}; write e.g. 'tp*pp <= nproc' or 'heads % tp == 0'") from error
