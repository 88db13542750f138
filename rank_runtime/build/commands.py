"""Commands of the virtual GPUs, for the PATH of ranks. In: the folder of a build. Out: `bin-.../nvidia-smi` in it.

The script names the interpreter and the sources that use the build. Several installations may share a build, so each
has a folder of its own.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

_PROGRAM = Path(__file__).resolve().parents[1] / "nvidia_smi" / "__main__.py"
# -I, -S: neither the job's PYTHONPATH nor site-packages, which would take longer than the answer.
_COMMAND = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(_PROGRAM))}"
FOLDER = f"bin-{hashlib.sha256(_COMMAND.encode()).hexdigest()[:10]}"


def write_commands(build_folder: Path) -> None:
    """Write the script if it is missing. In a cache that cannot be written it stays as it is."""
    target = build_folder / FOLDER / "nvidia-smi"
    text = f'#!/bin/sh\nexec {_COMMAND} "${{0%/*}}/../libnvidia-ml.so.1" "$@"\n'
    with suppress(OSError):
        if target.is_file() and target.read_text() == text:
            return
        target.parent.mkdir(exist_ok=True)
        draft = target.with_name(f"{target.name}.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(target)
