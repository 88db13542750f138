"""A recorded run of two ranks, made once for all tests that replay it."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result
from helpers.parallel_launch import EXAMPLES, maya_torchrun

from maya.cli.main import main


def record_once(session: Path) -> Path:
    """Four steps of DDP on two ranks, not to be changed; `session` is the folder of all tests of a session."""
    folder = session / "recorded"
    if not folder.exists():
        folder.mkdir()
        launched = maya_torchrun(folder, 2, EXAMPLES / "ddp.py", "--steps", "4", options=("--cluster", "dgx-h100"))
        assert launched.exit_code == 0, launched.output
    return folder / "out"


def maya(*words: object) -> Result:
    """The `maya` command, in this process."""
    return CliRunner().invoke(main, [str(word) for word in words])
