"""The commands of trials: maya-torchrun with the options, script and arguments of a configuration.

In: a script, its arguments, options of maya-torchrun and environment variables, all with choices and expressions in
braces. Out: the space they declare, and a `TrialCommand` for each configuration, checked as maya-torchrun would.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from maya.config_search.errors import SearchError
from maya.config_search.parameter import Parameter
from maya.config_search.search_space import Configuration, SearchSpace, configuration_text
from maya.config_search.word_template import WordTemplate, read_words
from maya.devices import Device, load_device
from maya.launcher.arguments import LaunchOptions, UsageError, check
from maya.util.expressions import Value

# What a replay can change without running the script again, as maya.load(...).predict takes it.
_REPLAYED = ("gpu", "cluster", "network", "host", "host_time")
# Options of a trial that say nothing about the job itself.
_OF_TRIALS = ("--represent=", "--stop-after=", "--trace-ranks=")


@dataclass(frozen=True)
class TrialCommand:
    """The run of one configuration."""

    options: tuple[str, ...]  # of maya-torchrun, as --name=value, without --out
    script: str
    args: tuple[str, ...]
    environment: Mapping[str, str]
    launch: LaunchOptions = field(repr=False, compare=False)

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.options, self.script, *self.args)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for trials that are the same job."""
        return (*self.words, tuple(sorted(self.environment.items())))

    @property
    def software(self) -> tuple[object, ...]:
        """Equal for trials that differ in nothing but what a replay can change."""
        options = tuple(word for word in self.options if _name(word) not in _REPLAYED)
        place = (self.launch.nodes, self.launch.ranks_per_node)  # the script sees it in LOCAL_RANK
        return (options, place, self.script, self.args, tuple(sorted(self.environment.items())))

    @property
    def hardware(self) -> dict[str, str]:
        """What a replay has to change: arguments of Run.predict."""
        return {name: word.partition("=")[2] for word in self.options if (name := _name(word)) in _REPLAYED}

    @cached_property
    def device(self) -> Device:
        return load_device(self.launch.gpu, self.launch.timing.of_gpu())

    def text(self, program: str) -> str:
        """The command for a user's terminal: of maya-torchrun, or of torchrun."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        if program == "torchrun":
            launch = self.launch
            options = [f"--nnodes={launch.nodes}", f"--nproc-per-node={launch.ranks_per_node}"]
            options += ["-m"] if launch.module else []
        else:
            options = [word for word in self.options if not word.startswith(_OF_TRIALS)]
        return " ".join([*variables, program, *map(shlex.quote, (*options, self.script, *self.args))])


@dataclass(frozen=True)
class JobTemplate:
    """What the words of all trials are made of."""

    script: str
    args: tuple[WordTemplate, ...]
    options: tuple[WordTemplate, ...]
    variables: Mapping[str, WordTemplate]
    parameters: tuple[Parameter, ...]  # that the words declare

    @staticmethod
    def of(script: str, args: Sequence[str], options: Sequence[str], variables: Mapping[str, str]) -> JobTemplate:
        option_words, of_options = read_words(options)
        arg_words, of_args = read_words(args)
        names = list(variables)
        # A choice in NAME={a,b} is called NAME.
        variable_words, of_variables = read_words([f"{name}={variables[name]}" for name in names])
        return JobTemplate(
            script,
            tuple(arg_words),
            tuple(option_words),
            dict(zip(names, variable_words, strict=True)),
            (*of_options, *of_args, *of_variables),
        )

    def check(self, space: SearchSpace) -> None:
        """Refuse names that are no parameters, parameters that nothing depends on, and a script that does not exist."""
        words = (*self.options, *self.args, *self.variables.values())
        for word in words:
            space.check_names(word.names, repr(word.source))
        used = {name for word in words for name in word.names}
        unused = [each.name for each in space.parameters if each.name not in used and len(each.values) > 1]
        if unused:
            raise SearchError(
                f"nothing depends on {unused[0]}: write {{{unused[0]}}} where an argument, an option or a variable "
                "gets it"
            )

    def command(self, space: SearchSpace, configuration: Configuration, environment: Mapping[str, str]) -> TrialCommand:
        """The command of a configuration; `environment`: that of the search."""
        names: dict[str, Value] = space.names_of(configuration)
        options = tuple(word for each in self.options for word in each.words(names))
        args = tuple(word for each in self.args for word in each.words(names))
        variables = {name: each.words(names)[0].partition("=")[2] for name, each in self.variables.items()}
        try:
            launch = check((*options, self.script, *args), {**environment, **variables})
        except UsageError as error:
            raise SearchError(f"{configuration_text(configuration)}: {error}") from error
        if not launch.module and launch.own_python and not Path(launch.script).is_file():
            found = "is a folder" if Path(launch.script).is_dir() else "does not exist"
            raise SearchError(f"the script {launch.script} {found}")
        return TrialCommand(options, self.script, args, variables, launch)


def _name(option: str) -> str:
    """--host-time=zero -> host_time."""
    return option.partition("=")[0].lstrip("-").replace("-", "_")


def search_environment(variables: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of the search's jobs, before the variables of a configuration."""
    return {**os.environ, **(variables or {})}
