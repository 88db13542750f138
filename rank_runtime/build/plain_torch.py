"""Lets plain Python import torch's CUDA build where NVIDIA's packages are not installed (torchrun, notebooks, tools).

In: the installed torch and the fake libraries built for it. Out: stub libraries in `torch/lib`, one for each NVIDIA
library that torch links and no package provides. A stub library has the functions of the fake library of that name, and
each returns an error, except for queries of a library's version: the CUDA runtime reports that there is no device, and
torch runs on the CPU.

Why `torch/lib`: torch's libraries look for NVIDIA's in the folders of NVIDIA's packages first and in their own folder
last. Packages that are installed later therefore win, and no file of torch or of a package is changed. Ranks never load
the stubs: the fake libraries are in the process already, under the same names, when torch asks for them.

The stubs are copies that depend on nothing, neither on the cache of the build nor on this package. Each exports a
symbol that begins with MARK, which tells it from a library of NVIDIA's and ends in a digest of its source.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from rank_runtime.build import Build, cache, ensure_built
from rank_runtime.build.elf import ElfError, read_imports
from rank_runtime.build.errors import BuildError
from rank_runtime.build.libraries import Library, Requirement, StubResult, required_libraries
from rank_runtime.build.stubs import stub_source, version_script
from rank_runtime.build.toolchain import CommandLog, Compiler, find_c_compiler
from rank_runtime.build.torch_install import TorchInstall, find_torch

MARK = "maya_stub_"
FLAGS = ("-O1", "-w", "-shared", "-fPIC", "-nostdlib", "-Wl,-s", "-Wl,-z,defs")
NO_DEVICE = StubResult("int", "100")  # cudaErrorNoDevice; torch takes it for a count of zero, without a warning
NO_DEVICE_TEXTS = {
    "cudaGetErrorName": StubResult("const char *", '"cudaErrorNoDevice"'),
    "cudaGetErrorString": StubResult("const char *", '"no CUDA-capable device is detected"'),
}
# Programs print these versions on machines without a GPU. They are facts about torch's build. By library: functions, C.
VERSION_QUERIES: dict[str, tuple[frozenset[str], str]] = {
    "cudnn": (
        frozenset({"cudnnGetVersion", "cudnnGetProperty"}),
        """\
size_t cudnnGetVersion(void) {{ return {MAYA_CUDNN_VERSION}; }}
int cudnnGetProperty(int property, int *value) {{
    const int parts[] = {{{MAYA_CUDNN_VERSION} / 10000, {MAYA_CUDNN_VERSION} / 100 % 100, {MAYA_CUDNN_VERSION} % 100}};
    if (property < 0 || property > 2) return 2000; /* CUDNN_STATUS_BAD_PARAM */
    *value = parts[property];
    return 0;
}}
""",
    ),
    "nccl": (
        frozenset({"ncclGetVersion"}),
        "int ncclGetVersion(int *version) {{ *version = {MAYA_NCCL_VERSION}; return 0; }}\n",
    ),
}
# The stubs in a fake library report their call. Here a call is nothing unusual, and its result says enough.
SILENT = "void maya_unsupported(const char *function) { (void)function; }\n"
IMPORT_SECONDS = 300


@dataclass(frozen=True)
class StubLibrary:
    """One stub library, as text."""

    soname: str
    source: str
    script: str  # for the linker
    mark: str


def import_problem() -> str | None:
    """Why plain Python cannot import torch; None if it can."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        ended = subprocess.run(
            [sys.executable, "-c", "import torch"],
            cwd="/",  # a module of the user's in the current folder must not be found
            env=environment,
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"`import torch` did not end within {IMPORT_SECONDS} seconds"
    if ended.returncode == 0:
        return None
    lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
    return lines[-1]


def add_stubs(progress: Callable[[str], None] | None = None, *, torch: TorchInstall | None = None) -> list[Path]:
    """Place the stub libraries that torch needs, remove those that it does not need any more, and return the paths of
    both.

    Nothing is done if torch can be imported without them. Raises BuildError, whose text is for the user.
    """
    torch, report = torch or find_torch(), progress or (lambda text: None)
    stubs = stub_libraries(torch, ensure_built(progress, torch=torch))
    present = installed_stubs(torch)
    wanted = [stub for stub in stubs if not _is_provided(stub.soname, torch, present)]
    missing = [stub for stub in wanted if present.get(stub.soname) != stub.mark]
    outdated = present.keys() - {stub.soname for stub in wanted}
    if not missing and not outdated:
        return []
    if not present and import_problem() is None:
        return []  # NVIDIA's libraries come from somewhere else, and may drive a real GPU
    if outdated:
        report(f"removing stub libraries that torch no longer needs: {', '.join(sorted(outdated))}")
    removed = _remove(torch, outdated)
    if not missing:
        return removed
    report(f"adding {len(missing)} stub libraries to {torch.library_folder}")
    return removed + _place(missing, torch)


def remove_stubs(torch: TorchInstall | None = None) -> list[Path]:
    """Remove the stub libraries of every version; return their paths."""
    torch = torch or find_torch()
    return _remove(torch, installed_stubs(torch))


def installed_stubs(torch: TorchInstall) -> dict[str, str]:
    """SONAME -> mark of the stub libraries in torch's folder."""
    found: dict[str, str] = {}
    for path in sorted(torch.library_folder.glob("lib*.so.*")):
        try:
            exported = read_imports(path).exported
        except ElfError:
            continue
        mark = next((name for name in exported if name.startswith(MARK)), None)
        if mark is not None:
            found[path.name] = mark
    return found


def stub_libraries(torch: TorchInstall, build: Build) -> list[StubLibrary]:
    """The stub libraries for `torch`, whether or not a package provides the library.

    The driver's libraries (libcuda, libnvidia-ml) are left out: no machine without a driver has them, and importing
    torch does not load them.
    """
    torch_objects = [read_imports(path) for path in torch.shared_objects]
    requirements = required_libraries(torch_objects, torch.cuda_major, ())
    return [_stub(item, torch, build) for item in requirements if not item.library.is_opened_by_name]


def _stub(requirement: Requirement, torch: TorchInstall, build: Build) -> StubLibrary:
    library = _without_device(requirement.library)
    # An extension of torch may import functions that torch does not.
    exported = read_imports(build.folder / requirement.soname).exported - requirement.objects
    functions = requirement.functions.union(name for name in exported if library.prefix_length(name) > 0)
    answered, answers = _version_queries(library, torch)
    source = stub_source(library, requirement.soname, functions - answered, requirement.objects) + answers + SILENT
    digest = hashlib.sha256(f"{source}\n{requirement.version}\n{FLAGS}".encode()).hexdigest()[:16]
    mark = f"{MARK}{digest}"
    script = version_script(requirement.version, [*functions, *requirement.objects, mark])
    return StubLibrary(requirement.soname, f"{source}char {mark};\n", script, mark)


def _without_device(library: Library) -> Library:
    """The table's entry for a library, with the results that a machine without a device gives."""
    if library.stem != "cudart":
        return library
    return dataclasses.replace(
        library, unsupported=NO_DEVICE, other_results={**library.other_results, **NO_DEVICE_TEXTS}
    )


def _version_queries(library: Library, torch: TorchInstall) -> tuple[frozenset[str], str]:
    """The functions that answer a query of the library's version, and their C text."""
    functions, text = VERSION_QUERIES.get(library.stem, (frozenset(), ""))
    try:
        return functions, text.format_map(torch.definitions)
    except KeyError:  # torch's metadata does not name the version
        return frozenset(), ""


def _is_provided(soname: str, torch: TorchInstall, stubs: Container[str]) -> bool:
    """Whether a package of NVIDIA's has the library, or torch's own wheel does."""
    places = {torch.folder.parent, *(Path(entry) for entry in sys.path if entry)}
    if any(any(place.glob(f"nvidia/*/lib/{soname}")) for place in places):
        return True
    return (torch.library_folder / soname).exists() and soname not in stubs


def _place(stubs: Iterable[StubLibrary], torch: TorchInstall) -> list[Path]:
    compiler = find_c_compiler()
    if compiler is None:
        raise BuildError("No C compiler found: stub libraries are compiled here. Install gcc, or name one with $CC.")
    folder = cache.cache_folder()
    cache.check_cache_folder(folder)
    cache.make_cache_folder(folder)
    placed: list[Path] = []
    try:
        # Within torch's folder, so that a library appears under its name at once and complete.
        with tempfile.TemporaryDirectory(prefix=".maya-stubs-", dir=torch.library_folder) as name:
            log = CommandLog(folder / "stub-libraries.log", Path(name))
            for stub in stubs:
                _compile(stub, compiler, log)
                placed.append((Path(name) / stub.soname).replace(torch.library_folder / stub.soname))
    except OSError as problem:
        raise BuildError(f"Cannot add stub libraries to {torch.library_folder}: {problem.strerror}.") from problem
    return placed


def _compile(stub: StubLibrary, compiler: Compiler, log: CommandLog) -> None:
    (log.folder / "stub.c").write_text(stub.source)
    (log.folder / "stub.version").write_text(stub.script)
    names = (f"-Wl,-soname,{stub.soname}", "-Wl,--version-script=stub.version", "-o", stub.soname)
    log.run([*compiler.command, *FLAGS, *names, "stub.c"], f"Compiling the stub library {stub.soname}")


def _remove(torch: TorchInstall, sonames: Iterable[str]) -> list[Path]:
    paths = [torch.library_folder / soname for soname in sorted(sonames)]
    try:
        for path in paths:
            path.unlink(missing_ok=True)
    except OSError as problem:
        raise BuildError(f"Cannot remove {problem.filename}: {problem.strerror}.") from problem
    return paths
