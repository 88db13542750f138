"""Compiles and links the fake libraries and the op observer into one folder.

In: an installed torch, our sources, compilers, an empty folder. Out: shared objects in that folder, named by SONAME.

    sources --compile--> objects --what do they define?--> stubs for the rest --link with a version script--> libraries

The sources include headers that are generated from Python declarations (headers.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rank_runtime.build.elf import Imports, read_exports, read_imports
from rank_runtime.build.errors import BuildError
from rank_runtime.build.headers import write_headers
from rank_runtime.build.libraries import Requirement, required_libraries
from rank_runtime.build.objects import ObjectStore
from rank_runtime.build.sources import Sources, header_digest
from rank_runtime.build.stubs import stub_source, version_script
from rank_runtime.build.toolchain import CommandLog, Compiler, Toolchain
from rank_runtime.build.torch_install import TorchInstall

T = TypeVar("T")

DEVICE_SONAME = "libmaya_device.so"
OBSERVER_SONAME = "libmaya_observer.so"
OBJECTS = "objects"
GENERATED_HEADERS = f"{OBJECTS}/include"
MAXIMUM_JOBS = 8

C_FLAGS = ("-std=gnu11", "-O2", "-g1", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-pthread")
# Thread-local variables get their place when the library is loaded, which saves a call at every access.
DEVICE_FLAGS = ("-ftls-model=initial-exec",)
# There are four thousand stubs, and optimizing them takes three times as long as compiling them.
STUB_FLAGS = ("-g0", "-O0")
# NDEBUG: without it, torch's headers check at every op which inputs the observer may read.
CXX_FLAGS = ("-O2", "-g1", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-pthread")
# Symbolic: calls of a library's own functions bypass the table through which others could replace them.
LINK_FLAGS = ("-shared", "-pthread", "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN", "-Wl,-Bsymbolic-functions")
# An undefined symbol would otherwise show only in the middle of a run.
COMPLETE = "-Wl,-z,defs"
SYSTEM_LIBRARIES = ("-Wl,--as-needed", "-lm", "-ldl", "-lrt")
# A library of stubs alone also links the device: dlopen by its full path must find everything.
DEVICE_LIBRARY = ("-L.", "-Wl,--no-as-needed", f"-l:{DEVICE_SONAME}")


@dataclass(frozen=True)
class Products:
    """File names of the built libraries."""

    libraries: tuple[str, ...]  # in the order of LD_PRELOAD
    observer: str | None
    observer_problem: str | None


@dataclass(frozen=True)
class Compilation:
    """One build of everything, for one torch, into one folder."""

    torch: TorchInstall
    sources: Sources
    toolchain: Toolchain
    log: CommandLog
    store: ObjectStore
    progress: Callable[[str], None]

    def run(self) -> Products:
        """Build everything in the folder of the log; temporary files go into OBJECTS and are removed."""
        write_headers(self.log.folder / GENERATED_HEADERS, self.sources)
        torch_objects = [read_imports(path) for path in self.torch.shared_objects]
        requirements = self._requirements(torch_objects)
        files = self.sources.library_files()
        with ThreadPoolExecutor(min(MAXIMUM_JOBS, os.cpu_count() or 1)) as pool:
            try:
                observer_problem = self._observer_problem()
                observer_files = [] if observer_problem else self.sources.observer_files()
                observer = pool.submit(self._compile_observer, observer_files) if observer_files else None
                device = [pool.submit(self._compile_c, path, DEVICE_FLAGS) for path in self.sources.device_files()]
                compiled = [
                    [pool.submit(self._compile_c, path) for path in files.get(requirement.library.stem, [])]
                    for requirement in requirements
                ]
                self._link_device(_results(device), torch_objects)
                linked = [
                    pool.submit(self._link_library, requirement, _results(objects))
                    for requirement, objects in zip(requirements, compiled, strict=True)
                ]
                _results(linked)
                _results(pool.submit(self._link_parts, requirement) for requirement in requirements)
                if observer:
                    self._link_observer(observer.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)  # the first failure is the one to show
                raise
        shutil.rmtree(self.log.folder / OBJECTS)
        parts = (part for requirement in requirements for part in requirement.part_sonames)
        sonames = (DEVICE_SONAME, *(requirement.soname for requirement in requirements), *parts)
        return Products(sonames, None if observer_problem else OBSERVER_SONAME, observer_problem)

    def _requirements(self, torch_objects: Sequence[Imports]) -> list[Requirement]:
        files = self.sources.library_files()
        requirements = required_libraries(torch_objects, self.torch.cuda_major, files)
        if not any(requirement.library.stem == "cudart" and requirement.functions for requirement in requirements):
            raise BuildError(
                f"torch {self.torch.version} in {self.torch.folder} does not load the CUDA runtime as a shared "
                "library, so Maya cannot take its place. Install one of the wheels that the PyTorch project publishes."
            )
        for stem in sorted(files.keys() - {requirement.library.stem for requirement in requirements}):
            self._notice(f"shim/{stem}*.c is left out: no library of that name in the table of build/libraries.py")
        for requirement in requirements:
            if not requirement.is_known:
                self._notice(f"torch links {requirement.soname}, which Maya does not know: all of it is stubs")
        return requirements

    def _notice(self, text: str) -> None:
        self.log.note(f"note: {text}")
        self.progress(text)

    def _compile_c(self, source: Path, more_flags: Sequence[str] = ()) -> str:
        flags = [*C_FLAGS, *more_flags, *self._definitions(), f"-I{self.sources.shim}", f"-I{GENERATED_HEADERS}"]
        return self._compile(self.toolchain.c, source, flags, [self.sources.shim, self.log.folder / GENERATED_HEADERS])

    def _compile_observer(self, files: Sequence[Path]) -> str:
        """Compile all files as one translation unit: nearly all of the time goes into torch's headers."""
        assert self.toolchain.cxx is not None
        unit = Path(OBJECTS, "observer.cpp")
        lines = [f'#include "{path}"  // {hashlib.sha256(path.read_bytes()).hexdigest()}' for path in files]
        (self.log.folder / unit).write_text("\n".join([*lines, ""]))
        flags = [*CXX_FLAGS, *self._definitions(), *self._observer_flags()]
        headers = [self.sources.observer, self.sources.shim / "device", self.log.folder / GENERATED_HEADERS]
        return self._compile(self.toolchain.cxx, unit, flags, headers)

    def _compile(self, compiler: Compiler, source: Path, flags: Sequence[str], header_folders: Sequence[Path]) -> str:
        """Compile `source` and the headers in or below `header_folders`, unless the store has the object."""
        target = f"{OBJECTS}/{source.parent.name}.{source.stem}.o"  # two folders may have files of one name
        command = [*compiler.command, *flags, "-c", str(source), "-o", target]

        def digest() -> str:
            texts = [compiler.version, *command, self.torch.version, self.torch.git_version]
            content = (self.log.folder / source).read_bytes()
            headers = header_digest(header_folders)
            return hashlib.sha256("\0".join([*texts, headers, ""]).encode() + content).hexdigest()

        before = digest()
        if not self.store.fetch(before, self.log.folder / target):
            self.log.run(command, f"Compiling {source.name}")
            if digest() == before:  # otherwise a file changed meanwhile, and the object may mix two versions
                self.store.keep(before, self.log.folder / target)
        return target

    def _definitions(self) -> list[str]:
        return [f"-D{name}={value}" for name, value in self.torch.definitions.items()]

    def _link(self, compiler: Compiler, soname: str, arguments: Iterable[str]) -> None:
        command = [*compiler.command, *LINK_FLAGS, f"-Wl,-soname,{soname}", "-o", soname, *arguments]
        self.log.run(command, f"Linking {soname}")

    def _link_device(self, objects: Sequence[str], torch_objects: Iterable[Imports]) -> None:
        # The device is written in C, so its exports with C++ names replace functions of torch. A release without
        # incref_pyobject and decref_pyobject does not change Python's reference counts when it boxes arguments.
        defined = frozenset[str]().union(*(read_exports(self.log.folder / name) for name in objects))
        replaced = {name for name in defined if name.startswith("_Z") and not name.endswith("cref_pyobjectEv")}
        missing = replaced.difference(*(imports.exported for imports in torch_objects))
        if missing:
            self._notice(
                f"torch {self.torch.version} does not define {', '.join(sorted(missing))}, which Maya would replace: "
                "recording costs more, or misses the blocks of torch's allocator"
            )
        self._link(self.toolchain.c, DEVICE_SONAME, [*objects, COMPLETE, *SYSTEM_LIBRARIES])

    def _link_library(self, requirement: Requirement, objects: Sequence[str]) -> None:
        """Add stubs for what torch imports or NVIDIA documents and `objects` lack, and link."""
        library, soname = requirement.library, requirement.soname
        defined = frozenset[str]().union(*(read_exports(self.log.folder / name) for name in objects))
        foreign = sorted(name for name in defined if library.prefix_length(name) == 0)
        if foreign:
            self._notice(f"{soname} does not export {', '.join(foreign)}: not a name of that library")
        public = library.public_names(self.torch.cuda_release) - requirement.objects
        missing = requirement.functions.union(public) - defined, requirement.objects - defined
        self.log.note(f"note: {soname}: {len(defined)} symbols emulated, {sum(map(len, missing))} stubs")

        stubs, script = Path(OBJECTS, f"{soname}.stubs.c"), Path(OBJECTS, f"{soname}.version")
        (self.log.folder / stubs).write_text(stub_source(library, soname, *missing))
        exported = defined.union(*missing).difference(foreign)
        (self.log.folder / script).write_text(version_script(requirement.version, exported))
        parts = [*objects, self._compile_c(stubs, STUB_FLAGS), f"-Wl,--version-script={script}", COMPLETE]
        self._link(self.toolchain.c, soname, [*parts, *DEVICE_LIBRARY, *SYSTEM_LIBRARIES])

    def _link_parts(self, requirement: Requirement) -> None:
        for soname in requirement.part_sonames:
            self._link(self.toolchain.c, soname, ("-L.", "-Wl,--no-as-needed", f"-l:{requirement.soname}"))

    def _observer_problem(self) -> str | None:
        """Why the op observer cannot be built; None: it can."""
        if not self.sources.observer_files():
            return f"no sources in {self.sources.observer}"
        if self.toolchain.cxx is None:
            return "no C++ compiler found: install g++ or clang++, or set $CXX"
        if not (self.torch.folder / "include" / "ATen").is_dir():
            return f"torch in {self.torch.folder} was installed without its C++ headers (torch/include)"
        return None

    def _observer_flags(self) -> list[str]:
        # libstdc++ has two layouts of std::string; the symbols of torch's libraries tell which one they use.
        names = read_imports(self.torch.library_folder / "libc10.so").exported
        has_new_strings = any("__cxx11" in name for name in names)
        includes = (self.sources.observer, self.sources.shim, GENERATED_HEADERS)
        torch_includes = (self.torch.folder / "include", self.torch.folder / "include/torch/csrc/api/include")
        return [
            f"-std={self.torch.cxx_standard()}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(has_new_strings)}",
            "-Wall",
            *(f"-I{folder}" for folder in includes),
            *(f"-isystem{folder}" for folder in torch_includes),  # no warnings about torch's own headers
        ]

    def _link_observer(self, unit: str) -> None:
        """Link without paths of torch's libraries: the process loads them before the observer."""
        assert self.toolchain.cxx is not None
        torch_libraries = (f"-L{self.torch.library_folder}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10")
        self._link(self.toolchain.cxx, OBSERVER_SONAME, [unit, *DEVICE_LIBRARY, *torch_libraries])


def _results(futures: Iterable[Future[T]]) -> list[T]:
    return [future.result() for future in futures]
