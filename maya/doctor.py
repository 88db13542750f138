"""`maya doctor`: checks whether this machine can run Maya, and gives advice if it cannot.

`examine` inspects the machine; each `check_` function takes such a value and returns a verdict with advice, so that
every verdict can be tested on any machine.
"""

from __future__ import annotations

import enum
import platform
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from maya.util.control_groups import memory_limits
from maya.util.text import bytes_text
from rank_runtime.build.errors import BuildError
from rank_runtime.build.plain_torch import import_problem
from rank_runtime.build.toolchain import Compiler, find_c_compiler, find_cxx_compiler
from rank_runtime.build.torch_install import TorchInstall, find_torch

T = TypeVar("T")

_GIB = 2**30
_TESTED_TORCH = ((2, 8), (2, 12), (2, 15))


class Verdict(enum.Enum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """The outcome of one check: the value found, the verdict, and advice unless the verdict is OK."""

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""


def examine() -> Iterator[Check]:
    """Check everything that Maya depends on, the most important first."""
    yield check_python(sys.version_info[:2])
    yield check_platform(platform.system(), platform.machine(), platform.libc_ver()[0])
    torch = _or_problem(find_torch)
    yield check_torch(torch)
    if not isinstance(torch, BuildError):
        yield check_plain_torch(import_problem())
    yield check_compiler("C", "gcc", _or_problem(find_c_compiler))
    yield check_compiler("C++", "g++", _or_problem(find_cxx_compiler))
    yield check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield check_processes(*resource.getrlimit(resource.RLIMIT_NPROC))
    yield check_address_space(resource.getrlimit(resource.RLIMIT_AS)[0])
    yield check_overcommit(_kernel_setting("vm/overcommit_memory"))
    yield check_maps(_kernel_setting("vm/max_map_count"))
    yield check_memory(available_memory(), _limit_of_group())
    yield check_shared_memory(_free_space(Path("/dev/shm")))


def check_python(version: tuple[int, ...]) -> Check:
    found = ".".join(map(str, version))
    if version < (3, 10):
        return Check("Python", Verdict.FAIL, found, "use Python 3.10 or later (scripts/setup looks for one)")
    return Check("Python", Verdict.OK, found)


def check_platform(system: str, machine: str, libc: str) -> Check:
    found = f"{system} {machine}, {libc or 'another C library'}"
    if system != "Linux" or libc != "glibc":
        return Check("platform", Verdict.FAIL, found, "use Linux with glibc: torch's CUDA builds need it")
    return Check("platform", Verdict.OK, found)


def check_torch(torch: TorchInstall | BuildError) -> Check:
    """`torch`: the installed one, or the reason why it is unusable."""
    if isinstance(torch, BuildError):
        return Check("torch", Verdict.FAIL, "no usable installation", f"{torch} Or let scripts/setup do it.")
    found = f"{torch.version}, CUDA {torch.cuda_version}"
    numbers = tuple(map(int, re.findall(r"\d+", torch.version)[:2]))
    if numbers < _TESTED_TORCH[0]:
        return Check(
            "torch", Verdict.FAIL, found, "install torch 2.8 or later: MAYA_TORCH_VERSION=2.12.1 scripts/setup"
        )
    if numbers not in _TESTED_TORCH:
        tested = ", ".join(f"{major}.{minor}" for major, minor in _TESTED_TORCH)
        return Check("torch", Verdict.WARN, found, f"likely to work; tested with {tested}")
    return Check("torch", Verdict.OK, found)


def check_plain_torch(problem: str | None) -> Check:
    """`problem`: why plain Python cannot import torch. Ranks of maya-torchrun can import it anyway."""
    if problem is None:
        return Check("plain import torch", Verdict.OK, "works")
    advice = "run `maya setup-torch` to use torch without maya-torchrun (torchrun, notebooks)"
    return Check("plain import torch", Verdict.WARN, problem, advice)


def check_compiler(language: str, package: str, compiler: Compiler | BuildError | None) -> Check:
    """`compiler`: the one found, or the reason why the requested one is unusable, or None."""
    subject = f"{language} compiler"
    if isinstance(compiler, Compiler):
        return Check(subject, Verdict.OK, compiler.version)
    advice = str(compiler) if compiler else f"install {package} (Debian, Ubuntu: apt-get install {package})"
    return Check(subject, Verdict.FAIL, "no working compiler", advice)


def check_open_files(soft: int, hard: int) -> Check:
    if _at_least(soft, 1024):
        return Check("open files", Verdict.OK, _limit(soft))
    advice = f"ulimit -n {_limit(hard)}" if _at_least(hard, 1024) else "raise nofile in /etc/security/limits.conf"
    return Check("open files", Verdict.FAIL if soft < 256 else Verdict.WARN, _limit(soft), f"want 1024: {advice}")


def check_processes(soft: int, hard: int) -> Check:
    """The limit counts the threads of all the user's processes; a rank has about twenty."""
    if _at_least(soft, 4096):
        return Check("processes", Verdict.OK, _limit(soft))
    advice = f"ulimit -u {_limit(hard)}" if _at_least(hard, 4096) else "raise nproc in /etc/security/limits.conf"
    return Check("processes", Verdict.FAIL if soft < 64 else Verdict.WARN, _limit(soft), f"want 4096: {advice}")


def check_address_space(soft: int) -> Check:
    """Virtual device memory is reserved address space; the kernel allocates only pages that are written."""
    if soft == resource.RLIM_INFINITY:
        return Check("address space", Verdict.OK, "unlimited")
    return Check(
        "address space", Verdict.FAIL, bytes_text(soft), "ulimit -v unlimited: the memory of a GPU is reserved in it"
    )


def check_overcommit(value: int | None) -> Check:
    subject, found = "vm.overcommit_memory", "unknown" if value is None else str(value)
    if value == 2:
        return Check(
            subject, Verdict.FAIL, found, "sysctl vm.overcommit_memory=0: with 2, reserved memory counts as used"
        )
    return Check(subject, Verdict.OK, found)


def check_maps(value: int | None) -> Check:
    subject, found = "vm.max_map_count", "unknown" if value is None else str(value)
    if value is not None and value < 65530:
        return Check(subject, Verdict.WARN, found, "sysctl vm.max_map_count=65530, or large jobs fail to map memory")
    return Check(subject, Verdict.OK, found)


def check_memory(available: int, source: str = "") -> Check:
    found = f"{bytes_text(available)} available{source}"
    if available < _GIB:
        return Check(
            "memory", Verdict.FAIL, found, "free some, or raise the container's limit: a rank needs about 1 GiB"
        )
    if available < 4 * _GIB:
        return Check("memory", Verdict.WARN, found, "enough for one small rank; torch.compile wants about 4 GiB")
    return Check("memory", Verdict.OK, found)


def check_shared_memory(free: int | None) -> Check:
    if free is None:
        return Check("/dev/shm", Verdict.WARN, "missing", "mount a tmpfs there: data loaders with workers need it")
    if free < 256 * 2**20:
        return Check(
            "/dev/shm",
            Verdict.WARN,
            f"{bytes_text(free)} free",
            "data loaders with workers may fail; in a container: --shm-size=1g or --ipc=host",
        )
    return Check("/dev/shm", Verdict.OK, f"{bytes_text(free)} free")


def available_memory() -> int:
    """The memory that this process can still use: the least of the machine's and that of its control groups."""
    available: int = psutil.virtual_memory().available
    return min([available, *(each.left for each in memory_limits())])


def _limit_of_group() -> str:
    """The name of the control group whose limit is lower than the machine's memory."""
    lowest = min(memory_limits(), key=lambda each: each.left, default=None)
    if lowest is None or lowest.left >= psutil.virtual_memory().available:
        return ""
    return f" under the limit of {bytes_text(lowest.limit)} of the control group {lowest.folder}"


def _or_problem(find: Callable[[], T]) -> T | BuildError:
    try:
        return find()
    except BuildError as problem:
        return problem


def _kernel_setting(name: str) -> int | None:
    return _whole(Path("/proc/sys", name))


def _free_space(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _whole(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max": there is no limit
        return None


def _at_least(limit: int, wanted: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= wanted


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
