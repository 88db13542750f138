"""Where a report is kept: hang.json or no_progress.json.

In: a report, and the run's folder. Out: the file, written atomically (temporary file, then rename). If the folder
cannot be written, because its disk is full, the report goes to the system's temporary folder.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_report(folder: Path, name: str, report: dict[str, Any]) -> Path:
    """The file; OSError only if there is room nowhere."""
    text = json.dumps(report, indent=1) + "\n"
    try:
        return _write(folder / name, text)
    except OSError:
        return _write(Path(tempfile.gettempdir()) / f"maya-{os.getpid()}-{name}", text)


def _write(file: Path, text: str) -> Path:
    temporary = file.with_suffix(".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        return temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
