"""Where finished builds are kept, so that each is made once.

In: the key of a build. Out: its folder, complete or absent: a build is made in a folder of another name and renamed
when done, so a killed builder leaves no incomplete build.

    <cache>/<key>/             a finished build; its build.json is touched at every use
    <cache>/<key>.lock         held while <key> is built
    <cache>/<key>.log          output of the compilers
    <cache>/<key>.partial-*    being built, by the process of that number; abandoned if the lock is free
    <cache>/maya-objects/      compiled objects, for the next build (objects.py)
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rank_runtime.build.errors import BuildError

UNUSED_SECONDS = 30 * 24 * 3600
DESCRIPTION = "build.json"


def cache_folder() -> Path:
    """$MAYA_CACHE, or `maya` in the user's cache folder."""
    chosen = os.environ.get("MAYA_CACHE")
    if chosen:
        folder = Path(chosen).expanduser().absolute()
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "maya"
    # The dynamic loader splits LD_PRELOAD at these characters and has no way to quote them.
    if any(character.isspace() or character == ":" for character in str(folder)):
        raise BuildError(
            f"The cache folder {str(folder)!r} contains a space or a colon, and LD_PRELOAD cannot name files there. "
            "Set MAYA_CACHE to a folder without them."
        )
    return folder


def check_cache_folder(folder: Path) -> None:
    """Check that no other user can put libraries into the folder, which our ranks would load."""
    try:
        status = folder.stat()
    except OSError:
        return  # it does not exist yet, or cannot be used, which others report
    if status.st_uid not in (os.geteuid(), 0):
        problem = f"belongs to {_user(status.st_uid)}, who could put libraries there that this user would run"
    elif status.st_mode & stat.S_IWOTH:
        problem = f"can be written by every user (mode {stat.S_IMODE(status.st_mode):o}), who could put libraries there"
    else:
        return
    raise BuildError(
        f"The cache folder {folder} {problem}. Set MAYA_CACHE to a folder of your own, or make this one yours "
        "(chown, chmod o-w) after removing what is in it."
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def make_cache_folder(folder: Path) -> None:
    """Create the cache folder and check that it can be written."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise BuildError(f"The cache folder {folder} cannot be written. Set MAYA_CACHE to a writable folder.")


@contextmanager
def locked(folder: Path, key: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of `key`; call `waiting` if another process has it. The kernel releases the lock of a dead one."""
    path = folder / f"{key}.lock"
    descriptor = _acquire(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if descriptor is None:
        waiting()
        descriptor = _acquire(path, fcntl.LOCK_EX)
    assert descriptor is not None
    try:
        yield
    finally:
        os.close(descriptor)


def _acquire(path: Path, operation: int) -> int | None:
    """An open file that holds the lock, or None if another process has it and `operation` does not wait."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_file(descriptor, path):
            return descriptor
        os.close(descriptor)  # the file was pruned while we waited, so its lock protects nothing


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def partial_folder(folder: Path, key: str) -> Iterator[Path]:
    """An empty folder that becomes the build of `key` if the block succeeds. The lock of `key` must be held."""
    _remove_partial(folder, key)
    finished = folder / key
    # A name of its own: compilers of a killed builder may still run and write into their folder.
    partial = folder / f"{key}.partial-{os.getpid()}"
    partial.mkdir()
    try:
        yield partial
        if finished.exists():
            finished.rename(folder / f"{key}.partial-{os.getpid()}-replaced")
        partial.rename(finished)
    finally:
        _remove_partial(folder, key)


def _remove_partial(folder: Path, key: str) -> None:
    for path in folder.glob(f"{key}.partial-*"):
        shutil.rmtree(path, ignore_errors=True)


def touch(build_folder: Path) -> None:
    """Note that the build was used. A read-only cache works as well."""
    with suppress(OSError):
        os.utime(build_folder / DESCRIPTION)


def prune(folder: Path, keep: str) -> None:
    """Remove the builds that were not used for UNUSED_SECONDS, with their logs and locks."""
    oldest = time.time() - UNUSED_SECONDS
    for lock in folder.glob("torch*-cuda*.lock"):  # other programs may use the folder as well
        key = lock.name.removesuffix(".lock")
        if key == keep or _last_use(folder, key) > oldest:
            continue
        descriptor = _acquire(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if descriptor is not None:
            if _last_use(folder, key) <= oldest:
                _remove_partial(folder, key)
                shutil.rmtree(folder / key, ignore_errors=True)
                (folder / f"{key}.log").unlink(missing_ok=True)
                lock.unlink()
            os.close(descriptor)


def _last_use(folder: Path, key: str) -> float:
    times = [0.0]
    for path in (folder / key / DESCRIPTION, folder / f"{key}.lock"):
        try:
            times.append(path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times)
