"""The help of both commands, docs/cli.md, and shell completion."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from maya.cli.main import main
from maya.launcher.option_parser import make_parser, option_actions

ROOT = Path(__file__).parents[2]


def commands(found: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), found
    if isinstance(found, click.Group):
        for name, child in found.commands.items():
            yield from commands(child, (*path, name))


COMMANDS = dict(commands())


def completion(shell: str) -> str:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0, result.output
    return result.output


def completed(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last word of a command line of maya-torchrun."""
    (tmp_path / "completion.bash").write_text(completion("bash"), encoding="utf-8")
    code = (
        'source completion.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _maya_torchrun_completion; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "-c", code, "bash", "maya-torchrun", *words]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30)
    return sorted(filter(None, ended.stdout.splitlines()))


# ---- maya-torchrun ----


def test_help_opens_with_the_purpose_and_ten_common_options() -> None:
    lines = make_parser({}).format_help().splitlines()
    assert lines[0] == "usage: maya-torchrun [OPTION ...] SCRIPT [ARGUMENT OF THE SCRIPT ...]"
    assert lines[2].startswith("Run a PyTorch training script on virtual GPUs")
    first = lines.index("common options:")
    assert first < 7
    group = lines[first : lines.index("", first)]
    assert len([line for line in group if line.startswith("  -")]) == 10


def test_every_option_of_the_launcher_has_help() -> None:
    assert [name for name, action in option_actions(make_parser({})).items() if not action.help] == []


def test_help_shows_one_spelling_of_an_option() -> None:
    text = make_parser({}).format_help()
    assert "--nproc-per-node N" in text
    assert "--nproc_per_node" not in text


# ---- maya ----


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_of_a_command_has_help(path: str) -> None:
    options = [parameter for parameter in COMMANDS[path].params if isinstance(parameter, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("path", COMMANDS)
def test_help_of_a_command(path: str) -> None:
    result = CliRunner().invoke(main, [*path.split(), "--help"])
    assert result.exit_code == 0
    assert "INTEGER RANGE" not in result.output


# ---- docs/cli.md ----


def test_documentation_of_the_command_line_is_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_cli_docs"), "--check"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


# ---- completion ----


def test_bash_completes_options(tmp_path: Path) -> None:
    assert completed(tmp_path, "--npr") == ["--nproc", "--nproc-per-node"]


def test_bash_completes_names_in_the_catalogue(tmp_path: Path) -> None:
    assert completed(tmp_path, "--gpu", "h10") == ["h100", "h100-96-500w", "h100-pcie"]


def test_bash_completes_choices(tmp_path: Path) -> None:
    assert completed(tmp_path, "--nproc", "8", "--host-time", "m") == ["measured", "model"]


def test_bash_leaves_the_arguments_of_the_script_alone(tmp_path: Path) -> None:
    assert completed(tmp_path, "train.py", "--npr") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_covers_both_commands(shell: str) -> None:
    text = completion(shell)
    assert "_MAYA_COMPLETE" in text
    assert "gb200-nvl72" in text
    for name in option_actions(make_parser({})):
        assert name.replace("_", "-") in text


def test_completion_of_maya_knows_the_catalogue() -> None:
    """As click completes: the script starts the command again, with the words in variables."""
    variables = {"_MAYA_COMPLETE": "bash_complete", "COMP_WORDS": "maya whatif run --gpu h2", "COMP_CWORD": "4"}
    result = CliRunner().invoke(main, [], env=variables, prog_name="maya")
    assert result.output == "plain,h200\n"
