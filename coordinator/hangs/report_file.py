"""Writes a report to disk: hang.json or no_progress.json.

In: a report, and the run's folder. Out: an entry for the launcher: the file's path, or the report itself if no folder
can be written. If the run's folder cannot be written (a full disk), the report goes to the system's temporary folder.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from maya.util.files import write_atomically


def write_report(folder: Path, name: str, report: dict[str, Any]) -> dict[str, Any]:
    """Write the report; return {"file": …}, or {"file": None, "report": …} if no folder can be written."""
    text = json.dumps(report, indent=1) + "\n"
    for file in (folder / name, Path(tempfile.gettempdir()) / f"maya-{os.getpid()}-{name}"):
        with suppress(OSError):
            return {"file": str(write_atomically(file, text))}
    return {"file": None, "report": report}
