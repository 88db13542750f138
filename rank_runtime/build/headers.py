"""All headers that the build generates, in one folder.

In: the declarations in `rank_runtime`. Out: `messages.h` (message_header.py), the headers of declared_headers.py, and
the versions of the driver's functions (functions.py).
"""

from __future__ import annotations

from pathlib import Path

from rank_runtime.build.declared_headers import DECLARED_HEADERS
from rank_runtime.build.functions import driver_versions_header
from rank_runtime.build.message_header import message_header
from rank_runtime.build.sources import Sources


def write_headers(folder: Path, sources: Sources) -> None:
    """Write the headers into `folder`, which is created if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, header in DECLARED_HEADERS.items():
        (folder / name).write_text(header(), encoding="utf-8")
    (folder / "driver_versions.h").write_text(driver_versions_header(), encoding="utf-8")
    if sources.messages.exists():
        text = sources.messages.read_text(encoding="utf-8")
        (folder / "messages.h").write_text(message_header(text), encoding="utf-8")
