"""Where a report is kept: hang.json or no_progress.json.

In: a report, and the run's folder. Out: what to tell the launcher: the file, or the report itself if there is room for
it nowhere. If the run's folder cannot be written, because its disk is full, it goes to the system's temporary folder.
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
    """{"file": …}, or {"file": None, "report": …}."""
    text = json.dumps(report, indent=1) + "\n"
    for file in (folder / name, Path(tempfile.gettempdir()) / f"maya-{os.getpid()}-{name}"):
        with suppress(OSError):
            return {"file": str(write_atomically(file, text))}
    return {"file": None, "report": report}
