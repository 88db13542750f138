"""Words of a command line with choices and expressions in braces: "--tp={1,2,4}", "{nproc//tp}", "{--recompute,}".

In: words. Out: `WordTemplate`s, which make the words of a configuration, and the parameters that the words declare.

A pair of braces with commas or a range declares a parameter. Its name is that of the option before it, or is given
with a colon ({tp:1,2,4}). Other braces hold an expression on parameters, and {{ and }} stand for braces. A word that is
one pair of braces and whose value is a text may become several words, or none: flags are chosen like this.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from maya.config_search.errors import SearchError
from maya.config_search.parameter import Parameter, make_parameter, parse_values
from maya.util.expressions import Expression, ExpressionError, Value

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_CHOICE = re.compile(r"(?:([A-Za-z_]\w*):)?(.*(?:,|\.\.).*)", re.DOTALL)
_FUNCTION = re.compile(r"\b(?:min|max)\(")


@dataclass(frozen=True)
class WordTemplate:
    """A word: texts and expressions in turn."""

    source: str  # as the user wrote it
    parts: tuple[str | Expression, ...]

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it depends on."""
        return frozenset(name for part in self.parts if isinstance(part, Expression) for name in part.names)

    def words(self, configuration: Mapping[str, Value]) -> list[str]:
        """The words of a configuration."""
        try:
            values = [part if isinstance(part, str) else part.value(configuration) for part in self.parts]
        except ExpressionError as error:
            raise SearchError(f"{self.source!r}: {error}") from error
        if len(self.parts) == 1 and isinstance(self.parts[0], Expression) and isinstance(values[0], str):
            return shlex.split(values[0])
        return ["".join(map(str, values))]


def read_words(words: Sequence[str]) -> tuple[list[WordTemplate], list[Parameter]]:
    """The templates of words, and the parameters that they declare."""
    parameters: list[Parameter] = []
    templates = []
    before = ""
    for word in words:
        template, declared = _read(word, before)
        templates.append(template)
        parameters += declared
        before = word
    return templates, parameters


def _read(word: str, before: str) -> tuple[WordTemplate, list[Parameter]]:
    parts: list[str | Expression] = []
    parameters: list[Parameter] = []
    end = 0
    for found in _PIECE.finditer(word):
        parts.append(word[end : found.start()])
        end = found.end()
        if found[0] in ("{{", "}}"):
            parts.append(found[0][0])
        elif found[1] is None:
            raise SearchError(f"{word!r}: a single {found[0]}; write {found[0] * 2} for a brace")
        elif (choice := _CHOICE.fullmatch(found[1])) and not _FUNCTION.search(found[1]):
            name = choice[1] or _name(word, word[: found.start()], before, choice[2])
            parameters.append(make_parameter(name, parse_values(name, choice[2])))
            parts.append(Expression(name))
        else:
            try:
                parts.append(Expression(found[1]))
            except ExpressionError as error:
                raise SearchError(
                    f"{word!r}: {{{found[1]}}} is neither a choice ({{1,2,4}}, {{1..16*2}}) nor an expression "
                    "({nproc//tp}); write {{ and }} for braces"
                ) from error
    parts.append(word[end:])
    kept = tuple(part for part in parts if not isinstance(part, str) or part)
    return WordTemplate(word, kept or ("",)), parameters


def _name(word: str, start: str, before: str, values: str) -> str:
    """The name of a choice that has none: that of its option, or of its first flag."""
    text = start.rstrip("=:")
    if not text and re.match(r"--?[A-Za-z]", before) and "=" not in before and "{" not in before:
        text = before
    if not text:
        text = next((item.strip().split()[0] for item in values.split(",") if item.strip().startswith("-")), "")
    name = re.sub(r"\W", "_", text.strip("-+"))
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise SearchError(f"{word!r}: the choice needs a name; write e.g. {{size:{values}}}")
    return name
