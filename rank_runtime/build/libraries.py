"""Which NVIDIA libraries an installed torch needs, and which symbols each of them must have.

In: the import tables of torch's shared objects (elf.py). Out: one `Requirement` per library to build: SONAME, symbol
version and the symbols torch imports from it.

The table KNOWN_LIBRARIES holds facts that cannot be read from torch: which of our sources emulate a library, how its
functions are named, and what they return for "not supported". A library that torch needs and the table does not know (a
new release of torch links another one) is still built: all of its functions are then stubs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rank_runtime.build.elf import Imports
from rank_runtime.build.functions import functions_of_release, public_functions
from rank_runtime.build.torch_install import NVIDIA_SONAME

# Wheels that bundle libraries rename them: libcudart-d0da41ae.so.11.0 is still libcudart.
SONAME_STEM = re.compile(r"(lib[\w-]+?)(?:-[0-9a-f]{8})?\.so")
NEWEST_CUDA = 13  # the release whose SONAME numbers the table gives


@dataclass(frozen=True)
class StubResult:
    """What a function that is not emulated returns, as C text."""

    c_type: str
    value: str  # a C expression; "" for void


GENERIC_FAILURE = StubResult("int", "1")
# By the kinds of functions.py. The old interface of cuBLAS returns numbers.
RESULTS_BY_KIND: Mapping[str, StubResult] = MappingProxyType(
    {
        "void": StubResult("void", ""),
        "pointer": StubResult("void *", "0"),
        "text": StubResult("const char *", '"not emulated by Maya"'),
        "size": StubResult("size_t", "0"),
        "number": StubResult("long", "0"),
        "negative": StubResult("long", "-1"),
        "float": StubResult("float", '__builtin_nanf("")'),
        "double": StubResult("double", '__builtin_nan("")'),
        "complex": StubResult("float _Complex", '__builtin_nanf("")'),
        "doublecomplex": StubResult("double _Complex", '__builtin_nan("")'),
    }
)


@dataclass(frozen=True)
class Library:
    """One NVIDIA library that Maya replaces."""

    stem: str  # its sources are shim/<stem>.c and shim/<stem>_*.c
    soname_stem: str
    number: int  # of the SONAME in CUDA 13
    prefixes: tuple[str, ...]  # of its functions; an upper-case letter or an underscore follows
    unsupported: StubResult
    other_results: Mapping[str, StubResult] = field(default_factory=lambda: MappingProxyType({}))
    number_follows_cuda: bool = False  # the number grows by one with each major release of CUDA
    has_versions: bool = True  # NVIDIA's own gives its symbols a version, named like its SONAME
    is_opened_by_name: bool = False  # by dlopen, hence needed although nothing links it
    # NVIDIA's own consists of these as well. Here all functions are in the library itself, and its parts are empty.
    parts: tuple[str, ...] = ()

    def soname(self, cuda_major: int) -> str:
        """SONAME in a CUDA release, for a library whose name torch does not tell."""
        number = self.number + (cuda_major - NEWEST_CUDA if self.number_follows_cuda else 0)
        return f"{self.soname_stem}.so.{number}"

    def result_of(self, function: str) -> StubResult:
        """What the stub of `function` returns."""
        if function in self.other_results:
            return self.other_results[function]
        public = public_functions(self.stem).get(function)
        return RESULTS_BY_KIND[public.kind] if public is not None and public.kind else self.unsupported

    def public_names(self, cuda_release: tuple[int, int]) -> frozenset[str]:
        """The public functions that the library exports in a CUDA release."""
        return functions_of_release(self.stem, cuda_release, of_major=not self.is_opened_by_name)

    def prefix_length(self, symbol: str) -> int:
        """Length of the longest prefix that makes `symbol` one of this library's; 0 if it is not."""
        name = symbol.removeprefix("__")
        return max((len(prefix) for prefix in self.prefixes if _begins_with_word(name, prefix)), default=0)


def _begins_with_word(name: str, prefix: str) -> bool:
    following = name[len(prefix) : len(prefix) + 1]
    return name.startswith(prefix) and (following.isupper() or following == "_")


def _status(value: int) -> StubResult:
    """NVIDIA's status enumerations all have the size of an int."""
    return StubResult("int", str(value))


# "Not supported" of each library, in the order of LD_PRELOAD. Where a library has no such code, the nearest: cuRAND
# "the GPU does not support the requested feature", NVRTC "internal error", NCCL "invalid usage".
# cuFile returns a pair (its own error, the driver's), and from reads and writes the negative of the first.
KNOWN_LIBRARIES: tuple[Library, ...] = (
    Library(
        "cuda",
        "libcuda",
        1,
        ("cu",),
        _status(801),
        has_versions=False,
        is_opened_by_name=True,
    ),
    Library(
        "nvml",
        "libnvidia-ml",
        1,
        ("nvml",),
        _status(3),
        has_versions=False,
        is_opened_by_name=True,
    ),
    Library(
        "cudart",
        "libcudart",
        13,
        ("cuda",),
        _status(801),
        number_follows_cuda=True,
    ),
    Library("nvrtc", "libnvrtc", 13, ("nvrtc",), _status(11), number_follows_cuda=True),
    Library("cupti", "libcupti", 13, ("cupti",), _status(27), number_follows_cuda=True),
    Library(
        "cublas",
        "libcublas",
        13,
        ("cublas",),
        _status(15),
        number_follows_cuda=True,
    ),
    Library(
        "cublaslt",
        "libcublasLt",
        13,
        ("cublasLt",),
        _status(15),
        number_follows_cuda=True,
    ),
    Library(
        "cudnn",
        "libcudnn",
        9,
        ("cudnn",),
        _status(3000),
        parts=(
            "libcudnn_graph",
            "libcudnn_ops",
            "libcudnn_cnn",
            "libcudnn_adv",
            "libcudnn_heuristic",
            "libcudnn_engines_precompiled",
            "libcudnn_engines_runtime_compiled",
        ),
    ),
    Library("cufft", "libcufft", 12, ("cufft", "cufftXt"), _status(16), number_follows_cuda=True),
    Library("curand", "libcurand", 10, ("curand",), _status(204)),
    Library(
        "cusparse",
        "libcusparse",
        12,
        ("cusparse",),
        _status(10),
    ),
    Library(
        "cusparselt",
        "libcusparseLt",
        0,
        ("cusparseLt",),
        _status(10),
        has_versions=False,
    ),
    Library("cusolver", "libcusolver", 12, ("cusolver",), _status(9), number_follows_cuda=True),
    Library(
        "cufile",
        "libcufile",
        0,
        ("cuFile",),
        StubResult("error_pair", "(error_pair){5007, 801}"),
        {"cuFileRead": StubResult("ssize_t", "-5007"), "cuFileWrite": StubResult("ssize_t", "-5007")},
        has_versions=False,
    ),
    Library(
        "nccl",
        "libnccl",
        2,
        ("nccl", "pnccl"),
        _status(5),
        has_versions=False,
    ),
    Library(
        "nvshmem",
        "libnvshmem_host",
        3,
        ("nvshmem", "nvshmemx", "nvshmemi", "nvshmemid"),
        _status(3),
    ),
)


@dataclass(frozen=True)
class Requirement:
    """One library to build for one torch."""

    library: Library
    soname: str
    version: str | None  # symbol version of everything it exports
    functions: frozenset[str]  # imported by torch
    objects: frozenset[str]  # imported by torch, and data
    is_known: bool = True

    @property
    def part_sonames(self) -> list[str]:
        """SONAMEs of the library's parts, which have the library's number."""
        number = self.soname.rpartition(".so")[2]
        return [f"{part}.so{number}" for part in self.library.parts]


def soname_stem(soname: str) -> str:
    """`libcudart` of `libcudart.so.13`."""
    match = SONAME_STEM.match(soname)
    return match[1] if match else soname


def _unknown_library(soname: str) -> Library:
    stem = soname_stem(soname)
    word = stem.removeprefix("lib")
    return Library(word.lower(), stem, 0, (word,), GENERIC_FAILURE, has_versions=False)


def _needed_sonames(torch_objects: Iterable[Imports]) -> dict[str, Library]:
    """SONAME -> library, for every library of NVIDIA's that torch links."""
    by_soname_stem = {library.soname_stem: library for library in KNOWN_LIBRARIES}
    needed: dict[str, Library] = {}
    for imports in torch_objects:
        for soname in imports.needed:
            if NVIDIA_SONAME.match(soname) and soname not in needed:
                needed[soname] = by_soname_stem.get(soname_stem(soname)) or _unknown_library(soname)
    return needed


def required_libraries(
    torch_objects: Collection[Imports], cuda_major: int, stems_with_sources: Collection[str]
) -> list[Requirement]:
    """What to build, in the order of LD_PRELOAD.

    To what torch links come the libraries that are opened by name, and those that we have sources for: an extension of
    torch may link what torch itself does not.
    """
    torch_objects = [imports for imports in torch_objects if not NVIDIA_SONAME.match(imports.path.name)]
    sonames = _needed_sonames(torch_objects)
    linked = {library.stem for library in sonames.values()}
    for library in KNOWN_LIBRARIES:
        if library.stem not in linked and (library.is_opened_by_name or library.stem in stems_with_sources):
            sonames[library.soname(cuda_major)] = library

    versions: dict[str, str] = {}
    functions: dict[str, set[str]] = {soname: set() for soname in sonames}
    objects: dict[str, set[str]] = {soname: set() for soname in sonames}
    for imports in torch_objects:
        for symbol in imports.symbols:
            soname = symbol.library or _owner(symbol.name, sonames)
            # A weak import may stay undefined, and does with NVIDIA's libraries, or they would have versioned it.
            if soname is None or soname not in sonames or (symbol.is_weak and symbol.version is None):
                continue
            (objects if symbol.is_object else functions)[soname].add(symbol.name)
            if symbol.version is not None:
                versions[soname] = symbol.version

    known_order = {library.stem: position for position, library in enumerate(KNOWN_LIBRARIES)}
    requirements = [
        Requirement(
            library,
            soname,
            versions.get(soname, soname if library.has_versions else None),
            frozenset(functions[soname] - objects[soname]),
            frozenset(objects[soname]),
            library.stem in known_order,
        )
        for soname, library in sonames.items()
    ]
    return sorted(requirements, key=lambda item: (known_order.get(item.library.stem, len(known_order)), item.soname))


def _owner(symbol: str, sonames: Mapping[str, Library]) -> str | None:
    """The library that an unversioned import belongs to, by its name."""
    best = max(sonames, key=lambda soname: sonames[soname].prefix_length(symbol), default=None)
    return best if best is not None and sonames[best].prefix_length(symbol) > 0 else None
