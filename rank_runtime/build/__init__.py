"""Builds the fake NVIDIA libraries for the installed torch once and finds them again later.

In: the torch of this interpreter, our C and C++ sources, a compiler. Out: a `Build`: a folder of shared objects named
by SONAME, to be loaded with LD_PRELOAD. A finished build is found in a few milliseconds, and torch is never imported.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rank_runtime.build import cache
from rank_runtime.build.commands import write_commands
from rank_runtime.build.errors import BuildError
from rank_runtime.build.objects import ObjectStore
from rank_runtime.build.sources import Sources
from rank_runtime.build.toolchain import CommandLog, find_toolchain
from rank_runtime.build.torch_install import TorchInstall, find_torch

if TYPE_CHECKING:
    from rank_runtime.build.compile import Compilation

__all__ = ["Build", "BuildError", "ensure_built"]


@dataclass(frozen=True)
class Build:
    """The fake libraries for one torch."""

    folder: Path
    libraries: tuple[Path, ...]  # in the order of LD_PRELOAD, libmaya_device.so first
    observer: Path | None  # the op observer, to be loaded after torch
    observer_problem: str | None  # why there is none
    torch_version: str
    cuda_version: str


def ensure_built(
    progress: Callable[[str], None] | None = None,
    *,
    force: bool = False,
    torch: TorchInstall | None = None,
    sources: Sources | None = None,
) -> Build:
    """The build for the installed torch; made now if it is not there or `force` is set.

    `torch` and `sources` stand for the installed ones in tests. Raises BuildError, whose text is for the user.
    """
    torch, sources = torch or find_torch(), sources or Sources()
    report = progress or _ignore
    toolchain = find_toolchain()
    folder, family = cache.cache_folder(), _family(torch, sources)
    cache.check_cache_folder(folder)
    if toolchain is None:
        return _built_earlier(folder, family)
    key = f"{family}-{_digest(toolchain.version)}"

    build = None if force else _read(folder / key)
    if build is None:
        cache.make_cache_folder(folder)
        with cache.locked(folder, key, waiting=lambda: report("waiting for another process that makes the same build")):
            build = None if force else _read(folder / key)  # another process may have made it while we waited
            if build is None:
                from rank_runtime.build.compile import Compilation  # not needed to find a build, and slow to import

                store = ObjectStore(folder / "maya-objects", reuse=not force)
                with cache.partial_folder(folder, key) as partial:
                    log = CommandLog(folder / f"{key}.log", partial)
                    _make(Compilation(torch, sources, toolchain, log, store, report))
                build = _read(folder / key)
                assert build is not None
                cache.prune(folder, keep=key)
                store.prune(cache.UNUSED_SECONDS)
    cache.touch(build.folder)
    write_commands(build.folder)
    return build


def _ignore(_: str) -> None:
    pass


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:10]


def _family(torch: TorchInstall, sources: Sources) -> str:
    """The part of a build's name that does not depend on the compiler.

    Nothing of it depends on Python: the observer uses torch's C++ interface alone.
    """
    sizes = [(path.name, path.stat().st_size) for path in torch.shared_objects]
    digest = _digest(sources.digest(), torch.git_version, sorted(torch.definitions.items()), sizes)
    return f"torch{torch.version}-cuda{torch.cuda_version}-{digest}"


def _make(compilation: Compilation) -> None:
    """Compile, and describe the result for `_read`."""
    torch, report = compilation.torch, compilation.progress
    report(f"building the CUDA libraries for torch {torch.version} (once)")
    started = time.monotonic()
    products = compilation.run()
    description = {
        "libraries": products.libraries,
        "observer": products.observer,
        "observer_problem": products.observer_problem,
        "torch_version": torch.version,
        "cuda_version": torch.cuda_version,
    }
    (compilation.log.folder / cache.DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
    report(f"built {len(products.libraries)} libraries in {time.monotonic() - started:.1f} s")


def _read(folder: Path) -> Build | None:
    """The finished build in `folder`, if there is one."""
    try:
        description = json.loads((folder / cache.DESCRIPTION).read_text())
    except (OSError, json.JSONDecodeError):
        return None
    libraries = tuple(folder / name for name in description["libraries"])
    observer = folder / description["observer"] if description["observer"] else None
    if not all(path.is_file() for path in (*libraries, *([observer] if observer else []))):
        return None  # some of its files were deleted
    return Build(
        folder,
        libraries,
        observer,
        description["observer_problem"],
        description["torch_version"],
        description["cuda_version"],
    )


def _built_earlier(folder: Path, family: str) -> Build:
    """Without a compiler: a build made earlier, e.g. into a container image."""
    for path in sorted(folder.glob(f"{family}-*/{cache.DESCRIPTION}")):
        build = _read(path.parent)
        if build is not None:
            cache.touch(build.folder)
            write_commands(build.folder)
            return build
    raise BuildError(
        "No C compiler found, and Maya must compile its CUDA libraries once. Install gcc or clang (Debian, Ubuntu: "
        "`apt install gcc g++`), or name a compiler with $CC."
    )
