"""Our own sources: which files make up which library, and a digest of them all.

In: the folder `rank_runtime`. Out: a `Sources`.

    shim/<library>.c, shim/<library>_*.c    one fake library
    shim/device/*.c                         libmaya_device.so, the virtual GPU under all of them
    observer/*.cpp                          libmaya_observer.so, the op observer
    messages.py                             messages between ranks and the coordinator; becomes a header
    DECLARATIONS                            what else C and Python share; become headers
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rank_runtime.build.functions import FOLDER

RANK_RUNTIME = Path(__file__).resolve().parent.parent
SUFFIXES = (".c", ".h", ".cpp")
# Modules of rank_runtime that declared_headers.py imports.
DECLARATIONS = ("trace_format", "host_costs", "device_properties", "variables", "stacks_socket")


@dataclass(frozen=True)
class Sources:
    """The sources below one `rank_runtime` folder."""

    root: Path = RANK_RUNTIME

    @property
    def shim(self) -> Path:
        """Folder of the fake libraries."""
        return self.root / "shim"

    @property
    def observer(self) -> Path:
        """Folder of the op observer."""
        return self.root / "observer"

    @property
    def messages(self) -> Path:
        """The declarations that `messages.h` is generated from."""
        return self.root / "messages.py"

    def device_files(self) -> list[Path]:
        """The sources of libmaya_device.so."""
        return sorted((self.shim / "device").glob("*.c"))

    def observer_files(self) -> list[Path]:
        """The sources of libmaya_observer.so."""
        return sorted(self.observer.glob("*.cpp"))

    def library_files(self) -> dict[str, list[Path]]:
        """Library stem -> the sources of that fake library."""
        files: dict[str, list[Path]] = {}
        for path in sorted(self.shim.glob("*.c")):
            files.setdefault(path.stem.split("_")[0], []).append(path)
        return files

    def digest(self) -> str:
        """Changes whenever a source or the build itself does."""
        build_code = [
            *Path(__file__).resolve().parent.glob("*.py"),
            *FOLDER.glob("*.txt"),
            *(RANK_RUNTIME / f"{name}.py" for name in DECLARATIONS),
        ]
        sources = (path for folder in (self.shim, self.observer) for path in folder.rglob("*"))
        messages = [self.messages] if self.messages.exists() else []
        return _digest([*build_code, *messages, *(path for path in sources if path.suffix in SUFFIXES)])


def header_digest(folders: Iterable[Path]) -> str:
    """Changes whenever a header in or below one of `folders` does."""
    return _digest([path for folder in folders for path in folder.rglob("*.h")])


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
