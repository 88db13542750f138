"""`maya completion`: shell completion for `maya` and `maya-torchrun`.

In: click's commands and maya-torchrun's parser. Out: a script for bash, zsh or fish. To complete `maya`, it starts
`maya` again, as click does; the options of maya-torchrun and the names in the catalogues are in the script itself.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import get_completion_class

from maya.cli.parameter_types import catalogue_names

_LONGEST_HELP = 80
_FOLDERS = ("--out", "--log-dir")
_FILES = ("--pack", "--inject")
_CATALOGUES = {"--gpu": "gpu", "--cluster": "cluster", "--host": "host"}


@dataclass(frozen=True)
class _Option:
    """An option of maya-torchrun, and how its value is completed."""

    names: Sequence[str]  # "-m", "--module"
    help: str
    takes_value: bool
    words: Sequence[str] = ()  # that the value may be
    files: bool = False
    folders: bool = False


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, for maya and maya-torchrun.

    \b
    bash:  eval "$(maya completion bash)"     in ~/.bashrc
    zsh:   eval "$(maya completion zsh)"      in ~/.zshrc, after compinit
    fish:  maya completion fish | source      in ~/.config/fish/config.fish
    """
    options = _options()
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    click.echo(_click_script(context.find_root().command, shell))
    click.echo(write(options))


def _click_script(command: click.Command, shell: str) -> str:
    found: Any = get_completion_class(shell)
    return str(found(command, {}, "maya", "_MAYA_COMPLETE").source()).strip()


def _options() -> list[_Option]:
    from maya.launcher.hang import ACTIONS
    from maya.launcher.option_parser import make_parser

    found = []
    for action in make_parser({})._actions:
        names = [name for name in action.option_strings if "_" not in name]
        if not names:
            continue
        long = names[-1]
        words: Sequence[str] = [str(choice) for choice in action.choices or ()]
        if long in _CATALOGUES:
            words = catalogue_names(_CATALOGUES[long])
        elif long == "--on-hang":
            words = ACTIONS
        found.append(
            _Option(
                names=names,
                help=_short_help(action),
                takes_value=action.nargs != 0,
                words=words,
                files=long in _CATALOGUES or long in _FILES,
                folders=long in _FOLDERS,
            )
        )
    return found


def _short_help(action: argparse.Action) -> str:
    text = re.sub(r" \(default: .*\)$", "", (action.help or "").replace("%%", "%"))
    return text if len(text) <= _LONGEST_HELP else text[: _LONGEST_HELP - 1].rstrip() + "…"


def _bash(options: Sequence[_Option]) -> str:
    cases = []
    for option in options:
        if not option.takes_value:
            continue
        found = [f"-W {shlex.quote(' '.join(option.words))}"] if option.words else []
        found += ["-f"] if option.files else []
        found += ["-d"] if option.folders else []
        reply = f'COMPREPLY=($(compgen {" ".join(found)} -- "$current")); ' if found else ""
        cases.append(f"        {'|'.join(option.names)}) {reply}return ;;")
    names = " ".join(name for option in options for name in option.names)
    return "\n".join(
        [
            "_maya_torchrun_completion() {",
            "    local word current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}",
            "    COMPREPLY=()",
            '    for word in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do',
            "        [[ $word == *.py ]] && return  # what follows is the script's",
            "    done",
            "    case $previous in",
            *cases,
            "    esac",
            "    if [[ $current == -* ]]; then",
            f'        COMPREPLY=($(compgen -W {shlex.quote(names)} -- "$current"))',
            "    fi",
            "}",
            "complete -o bashdefault -o default -o filenames -F _maya_torchrun_completion maya-torchrun",
        ]
    )


def _zsh(options: Sequence[_Option]) -> str:
    lines = []
    for option in options:
        help_text = re.sub(r"([\[\]:\\])", r"\\\1", option.help)
        value = f":{option.names[-1].lstrip('-')}:{_zsh_value(option)}" if option.takes_value else ""
        for name in option.names:
            equals = "=" if option.takes_value and name.startswith("--") else ""
            lines.append("        " + shlex.quote(f"*{name}{equals}[{help_text}]{value}"))
    return "\n".join(
        [
            "_maya_torchrun_completion() {",
            "    _arguments -S \\",
            *(f"{line} \\" for line in lines),
            "        '1:script:_files' '*:argument:_files'",
            "}",
            "compdef _maya_torchrun_completion maya-torchrun",
        ]
    )


def _zsh_value(option: _Option) -> str:
    words = f"({' '.join(option.words)})" if option.words else ""
    if option.words and option.files:
        return rf' _alternative "names\:name\:{words}" "files\:file\:_files"'  # with a space: called as it is
    if option.folders:
        return "_files -/"
    return "_files" if option.files else words


def _fish(options: Sequence[_Option]) -> str:
    lines = []
    for option in options:
        parts = ["complete -c maya-torchrun"]
        parts += [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
        if option.takes_value:
            parts.append("-r -F" if option.files or option.folders else "-x")
        if option.words:
            parts.append(f"-a {_fish_quoted(' '.join(option.words))}")
        lines.append(" ".join([*parts, f"-d {_fish_quoted(option.help)}"]))
    return "\n".join(lines)


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
