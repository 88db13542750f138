"""The build of the fake libraries, on a torch of a few lines of C: a real compiler and linker, a second for a build."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rank_runtime.build import Build, BuildError, cache, ensure_built
from rank_runtime.build.commands import FOLDER
from rank_runtime.build.elf import ImportedSymbol, read_exports, read_imports
from rank_runtime.build.headers import write_headers
from rank_runtime.build.libraries import KNOWN_LIBRARIES, required_libraries
from rank_runtime.build.sources import Sources
from rank_runtime.build.stubs import version_script
from rank_runtime.build.torch_install import find_torch, read_torch

GCC = shutil.which("gcc") or ""
REPOSITORY = Path(__file__).resolve().parents[2]

CUDART_C = """\
    #include "device/device.h"
    MAYA_API int cudaGetDevice(int *device) { *device = maya_answer(); return 0; }
    MAYA_API int cudaExtra(void) { return MAYA_CUDA_VERSION; }
    int cudaHidden(void) { return 1; }
"""
DEVICE_H = """\
    #pragma once
    #define MAYA_API __attribute__((visibility("default")))
    void maya_unsupported(const char *function);
    int maya_answer(void);
"""
DEVICE_C = """\
    #include "device.h"
    #include <stdio.h>
    MAYA_API void maya_unsupported(const char *function) { fprintf(stderr, "not emulated: %s\\n", function); }
    MAYA_API int maya_answer(void) { return 42; }
"""
TORCH_C = """\
    int cudaGetDevice(int *), cudaMalloc(void **, unsigned long), cuInit(unsigned), ncclGroupStart(void);
    const char *cudaGetErrorString(int);
    long cuFileRead(void *, void *, unsigned long, long, long);
    int nvshmem_init(void) __attribute__((weak));
    int cufrobCreate(void);
    extern int nvshmem_selected_device_transport;
    int torch_device(void) { int device = -1; cudaGetDevice(&device); return device; }
    int torch_malloc(void) { void *address; return cudaMalloc(&address, 8); }
    const char *torch_text(void) { return cudaGetErrorString(1); }
    int torch_driver(void) { return cuInit(0); }
    int torch_collective(void) { return ncclGroupStart(); }
    long torch_file(void) { return cuFileRead(0, 0, 0, 0, 0); }
    int torch_has_weak(void) { return nvshmem_init != 0; }
    int torch_object(void) { return nvshmem_selected_device_transport; }
    int torch_new_library(void) { return cufrobCreate(); }
"""
# SONAME -> (symbol version, functions, objects): what NVIDIA's libraries look like to the linker that made torch.
DONORS: dict[str, tuple[str | None, list[str], list[str]]] = {
    "libcudart.so.13": ("libcudart.so.13", ["cudaGetDevice", "cudaMalloc", "cudaGetErrorString"], []),
    "libnvshmem_host.so.3": ("NVSHMEM", [], ["nvshmem_selected_device_transport"]),
    "libcuda.so.1": (None, ["cuInit"], []),
    "libnccl.so.2": (None, ["ncclGroupStart"], []),
    "libcufile.so.0": (None, ["cuFileRead"], []),
    "libcufrob.so.4": (None, ["cufrobCreate"], []),
    "libcurand.so.10": ("libcurand.so.10", [], []),
}

# What shim/device/record_function.c takes the place of, and its arguments.
RECORD_FUNCTION = {
    "_ZN2at14RecordFunctionC1ENS_11RecordScopeE": "void *function, unsigned char scope",
    (
        "_ZN3c1010Dispatcher17runRecordFunctionERN2at14RecordFunctionESt17reference_wrapperIKNS_14FunctionSchemaEE"
        "NS_11DispatchKeyENS_14DispatchKeySetENS_8ArrayRefIKNS_6IValueEEE"
    ): "void *function, const void *schema, short key, unsigned long keys, const void *inputs, unsigned long count",
    "_ZN2at14RecordFunctionD1Ev": "void *function",
    "_ZN2at24set_record_function_tls_ERKNS_17RecordFunctionTLSE": "const void *observers",
}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def gcc(*arguments: object) -> None:
    subprocess.run([GCC, *map(str, arguments)], check=True)


def shared_object(target: Path, text: str, *options: object) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    source = write(target.with_name(target.name + ".c"), text)
    gcc("-shared", "-fPIC", "-o", target, source, f"-Wl,-soname,{target.name}", *options)
    return target


@pytest.fixture(scope="session")
def torch_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package folder like that of torch 2.12.1+cu130, without its two gigabytes."""
    root = tmp_path_factory.mktemp("site-packages")
    folder, donors = root / "torch", root / "nvidia"
    for soname, (version, functions, objects) in DONORS.items():
        text = "".join(f"int {name}(void) {{ return 0; }}\n" for name in functions)
        text += "".join(f"int {name};\n" for name in objects)
        script = write(donors / f"{soname}.version", version_script(version, functions + objects))
        shared_object(donors / soname, text, f"-Wl,--version-script={script}")
    shared_object(
        folder / "lib" / "libtorch_cuda.so",
        TORCH_C,
        f"-L{donors}",
        "-Wl,--no-as-needed",
        *(f"-l:{soname}" for soname in DONORS),
    )
    for name in ("libtorch_cpu.so", "libc10.so"):
        shared_object(folder / "lib" / name, f"int {name.split('.')[0]}_NSt7__cxx1112basic_string;")
    for source in (folder / "lib").glob("*.c"):
        source.unlink()
    write(
        folder / "version.py",
        """\
        from typing import Optional
        __version__ = '2.12.1+cu130'
        debug = False
        cuda: Optional[str] = '13.0'
        git_version = '7269437d'
        hip: Optional[str] = None
        """,
    )
    write(
        root / "torch-2.12.1.dist-info" / "METADATA",
        """\
        Requires-Dist: nvidia-cublas<=13.1.1.3,>=13.1.0.3; platform_system == "Linux"
        Requires-Dist: nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"
        Requires-Dist: nvidia-nccl-cu13==2.29.7; platform_system == "Linux"
        """,
    )
    write(folder / "include" / "ATen" / "ATen.h", "#error C++17 or later compatible compiler is required\n")
    return folder


def write_sources(folder: Path) -> Path:
    """A `rank_runtime` folder with one library and a device."""
    write(folder / "shim" / "cudart.c", CUDART_C)
    write(folder / "shim" / "device" / "device.h", DEVICE_H)
    write(folder / "shim" / "device" / "report.c", DEVICE_C)
    return folder


@pytest.fixture(scope="session")
def built(torch_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, list[str]]:
    """A build for the small torch, for tests that only look at it, and what was said meanwhile."""
    folder, messages = tmp_path_factory.mktemp("built"), list[str]()
    sources = Sources(write_sources(folder / "rank_runtime"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAYA_CACHE", str(folder / "cache"))
        return ensure_built(messages.append, torch=read_torch(torch_folder), sources=sources), messages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Sources that a test may change."""
    return write_sources(tmp_path / "rank_runtime")


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no compiler chosen in the environment."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MAYA_CACHE", str(folder))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    return folder


Builder = Callable[..., Build]


@pytest.fixture
def make(torch_folder: Path, root: Path, cache_folder: Path) -> Builder:
    """Builds for the small torch from the small sources; messages go to `progress`."""

    def build(progress: Callable[[str], None] | None = None, *, force: bool = False) -> Build:
        return ensure_built(progress, force=force, torch=read_torch(torch_folder), sources=Sources(root))

    return build


def in_rank(build: Build, torch_folder: Path, expression: str) -> subprocess.CompletedProcess[str]:
    """Evaluate `expression` where `torch` is the small torch, loaded on the fake libraries."""
    program = f"import ctypes; torch = ctypes.CDLL({str(torch_folder / 'lib/libtorch_cuda.so')!r}); print({expression})"
    return subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "LD_PRELOAD": ":".join(map(str, build.libraries))},
        capture_output=True,
        text=True,
        check=True,
    )


# ---- elf.py ----


def test_imports_of_a_shared_object_are_found(torch_folder: Path) -> None:
    imports = read_imports(torch_folder / "lib" / "libtorch_cuda.so")
    symbols = {symbol.name: symbol for symbol in imports.symbols}
    assert imports.soname == "libtorch_cuda.so"
    assert set(DONORS) <= set(imports.needed)
    assert "torch_device" in imports.exported
    assert symbols["cudaMalloc"] == ImportedSymbol("cudaMalloc", "libcudart.so.13", "libcudart.so.13", False, False)
    assert symbols["cuInit"] == ImportedSymbol("cuInit", None, None, False, False)
    assert symbols["nvshmem_init"].is_weak
    transport = symbols["nvshmem_selected_device_transport"]
    assert transport.is_object
    assert transport.version == "NVSHMEM"


def test_exports_of_an_object_are_what_is_visible(tmp_path: Path) -> None:
    source = write(
        tmp_path / "part.c",
        """\
        __attribute__((visibility("default"))) int shown(void) { return 0; }
        __attribute__((visibility("default"))) int shown_data;
        int hidden(void) { return 0; }
        static int local(void) { return 0; }
        int elsewhere(void);
        __attribute__((visibility("default"))) int caller(void) { return local() + elsewhere(); }
        """,
    )
    gcc("-c", "-fvisibility=hidden", source, "-o", tmp_path / "part.o")
    assert read_exports(tmp_path / "part.o") == {"shown", "shown_data", "caller"}


# ---- torch_install.py ----


def test_versions_come_from_torchs_own_files(torch_folder: Path) -> None:
    torch = read_torch(torch_folder)
    assert (torch.version, torch.cuda_version, torch.cuda_major) == ("2.12.1+cu130", "13.0", 13)
    assert torch.definitions == {
        "MAYA_CUDA_VERSION": 13000,
        "MAYA_TORCH_VERSION": 21201,
        "MAYA_CUDNN_VERSION": 92000,
        "MAYA_NCCL_VERSION": 22907,
    }
    assert torch.cxx_standard() == "c++17"


# ---- the whole build ----


def test_build_serves_the_small_torch(built: tuple[Build, list[str]], torch_folder: Path) -> None:
    build, messages = built
    assert build.libraries[0].name == "libmaya_device.so"
    assert {path.name for path in build.libraries[1:]} == {*DONORS, "libnvidia-ml.so.1"}
    names = {*(path.name for path in build.libraries), "build.json", FOLDER}
    assert {path.name for path in build.folder.iterdir()} == names
    assert os.access(build.folder / FOLDER / "nvidia-smi", os.X_OK)
    assert (build.torch_version, build.cuda_version) == ("2.12.1+cu130", "13.0")
    assert build.observer is None
    assert build.observer_problem is not None
    assert any("libcufrob.so.4" in message for message in messages)

    run = in_rank(build, torch_folder, "torch.torch_device(), torch.torch_has_weak(), torch.torch_object()")
    assert run.stdout == "42 0 0\n"
    assert run.stderr == ""


def test_a_stub_says_its_name_and_fails_in_the_way_of_its_library(
    built: tuple[Build, list[str]], torch_folder: Path
) -> None:
    calls = {"malloc": ("cudaMalloc", 801), "driver": ("cuInit", 801), "collective": ("ncclGroupStart", 5)}
    calls |= {"file": ("cuFileRead", -5007), "new_library": ("cufrobCreate", 1)}
    build, _ = built
    expression = ", ".join(f"torch.torch_{name}()" for name in calls)
    run = in_rank(build, torch_folder, expression)
    assert run.stdout.split() == [str(result) for _, result in calls.values()]
    assert run.stderr.splitlines() == [f"not emulated: {function}" for function, _ in calls.values()]

    text = "setattr(torch.torch_text, 'restype', ctypes.c_char_p) or torch.torch_text()"
    assert "not emulated" in in_rank(build, torch_folder, text).stdout


def test_the_virtual_device_says_the_name_of_a_stub_once(make: Builder, root: Path, torch_folder: Path) -> None:
    shutil.rmtree(root / "shim" / "device")
    shutil.copytree(Sources().shim / "device", root / "shim" / "device")
    shutil.copy(Sources().messages, root)
    write(root / "shim" / "cudart.c", "int nothing_emulated;\n")
    run = in_rank(make(), torch_folder, "torch.torch_malloc(), torch.torch_malloc(), torch.torch_driver()")
    assert run.stdout == "801 801 801\n"
    assert run.stderr.count("cudaMalloc") == 1
    assert run.stderr.count("cuInit") == 1


def test_a_library_exports_its_functions_and_nothing_else(built: tuple[Build, list[str]]) -> None:
    libraries = {path.name: read_imports(path) for path in built[0].libraries}
    runtime = libraries["libcudart.so.13"]
    version = {"libcudart.so.13"}  # the version itself is a symbol
    public = {library.stem: library.public_names((13, 0)) for library in KNOWN_LIBRARIES}
    own = {"cudaGetDevice", "cudaExtra", "cudaMalloc", "cudaGetErrorString"}
    assert runtime.exported == own | version | public["cudart"]
    assert libraries["libcuda.so.1"].exported == public["cuda"]
    for soname, imports in libraries.items():
        assert imports.soname == soname
        assert soname == "libmaya_device.so" or "libmaya_device.so" in imports.needed


def test_a_library_opened_alone_finds_the_device_beside_it(built: tuple[Build, list[str]]) -> None:
    runtime = next(path for path in built[0].libraries if path.name == "libcudart.so.13")
    program = f"import ctypes; print(ctypes.CDLL({str(runtime)!r}).cudaExtra())"
    assert subprocess.check_output([sys.executable, "-S", "-c", program], text=True) == "13000\n"


def test_all_files_of_a_library_are_linked_into_it(make: Builder, root: Path) -> None:
    write(
        root / "shim" / "cudart_memory.c", '#include "device/device.h"\nMAYA_API int cudaMalloc(void) { return 0; }\n'
    )
    write(root / "shim" / "curand.c", '#include "device/device.h"\nMAYA_API int curandCreate(void) { return 0; }\n')
    exported = {path.name: read_imports(path).exported for path in make().libraries}
    assert {"cudaGetDevice", "cudaMalloc"} <= exported["libcudart.so.13"]
    assert "curandCreate" in exported["libcurand.so.10"]


def test_names_that_do_not_belong_are_left_out_and_reported(make: Builder, root: Path) -> None:
    write(root / "shim" / "cudart_more.c", '#include "device/device.h"\nMAYA_API int helper(void) { return 0; }\n')
    write(root / "shim" / "helper.c", "int unused;\n")
    messages: list[str] = []
    exported = {path.name: read_imports(path).exported for path in make(messages.append).libraries}
    assert "helper" not in exported["libcudart.so.13"]
    assert any("libcudart.so.13 does not export helper" in message for message in messages)
    assert any("shim/helper*.c is left out" in message for message in messages)


def test_a_function_that_torch_lacks_is_reported_when_maya_would_take_its_place(make: Builder, root: Path) -> None:
    text = "".join(f"MAYA_API void {name}(void) {{}}\n" for name in RECORD_FUNCTION)
    write(root / "shim" / "device" / "record_function.c", f'#include "device.h"\n{text}')
    messages: list[str] = []
    assert "libmaya_device.so" in [path.name for path in make(messages.append).libraries]
    (notice,) = (message for message in messages if "which Maya would replace" in message)
    assert all(name in notice for name in RECORD_FUNCTION)


# ---- the op observer ----


OBSERVER_CPP = """\
    #include <string>
    static_assert(__cplusplus == 201703L, "the standard torch asks for");
    static_assert(_GLIBCXX_USE_CXX11_ABI == 1, "the strings torch has");
    extern "C" int maya_answer(void);
    extern "C" __attribute__((visibility("default"))) int observe() { return maya_answer(); }
"""


def test_the_observer_is_built_against_torch(make: Builder, root: Path) -> None:
    write(root / "observer" / "observer.cpp", OBSERVER_CPP)
    build = make()
    assert build.observer == build.folder / "libmaya_observer.so"
    assert build.observer_problem is None
    needed = read_imports(build.observer).needed
    assert {"libmaya_device.so", "libtorch_cpu.so", "libc10.so"} <= set(needed)
    assert build.observer not in build.libraries  # it cannot be loaded before torch


def test_without_a_cxx_compiler_the_rest_is_built(
    make: Builder, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "observer" / "observer.cpp", OBSERVER_CPP)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(only(tmp_path / "bin", "gcc", "as", "ld")))
        build = make()
    assert build.observer is None
    assert "C++ compiler" in (build.observer_problem or "")
    assert make().observer is not None  # once there is one, it is used


# ---- what can go wrong ----


def only(folder: Path, *names: str) -> Path:
    """A search path on which only `names` are found."""
    folder.mkdir()
    for name in names:
        (folder / name).symlink_to(shutil.which(name) or "")
    return folder


def test_a_broken_source_gives_a_readable_error(make: Builder, root: Path, cache_folder: Path) -> None:
    write(root / "shim" / "cudart.c", "int cudaGetDevice(void) { return undeclared_thing; }\n")
    with pytest.raises(BuildError) as failure:
        make()
    text = str(failure.value)
    assert text.startswith("Compiling cudart.c failed")
    assert "undeclared_thing" in text
    assert "Command: " in text
    (log,) = cache_folder.glob("*.log")
    assert f"Full log: {log}" in text
    assert "undeclared_thing" in log.read_text()
    assert [path.name for path in cache_folder.iterdir() if path.is_dir()] == ["maya-objects"]


def test_a_missing_compiler_is_reported(make: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(only(tmp_path / "bin")))
        with pytest.raises(BuildError, match=r"No C compiler found.*\$CC"):
            make()
    build = make()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "bin"))
        assert make() == build, "what was built when there was a compiler is good without one"


def test_a_compiler_that_does_not_run_is_reported(make: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(BuildError, match=r"\$CC is set to 'no-such-compiler -m64', which does not run"):
        make()


def test_compilers_run_without_the_fake_libraries_under_them(make: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/libcuda.so.1")  # the loader would complain into their output
    assert all("nowhere" not in path.read_text() for path in make().folder.parent.glob("*.log"))


@pytest.mark.parametrize("name", ["with space", "with:colon"])
def test_a_cache_folder_with_a_separator_is_refused(make: Builder, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("MAYA_CACHE", f"/nowhere/{name}")
    with pytest.raises(BuildError, match="Set MAYA_CACHE"):
        make()


def test_a_cache_folder_that_cannot_be_made_is_reported(
    make: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MAYA_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(BuildError, match="cannot be written"):
        make()


# ---- the cache ----


def test_a_build_is_made_once(make: Builder, root: Path) -> None:
    messages: list[str] = []
    build = make(messages.append)
    assert messages
    messages.clear()
    assert make(messages.append) == build
    assert not messages
    assert make(messages.append, force=True) == build
    assert messages

    with (root / "shim" / "device" / "device.h").open("a") as header:
        header.write("/* changed */\n")
    assert make().folder != build.folder
    assert build.folder.is_dir()


def test_only_what_changed_is_compiled_again(make: Builder, root: Path, cache_folder: Path) -> None:
    def compiled(build: Build) -> list[str]:
        commands = build.folder.with_name(f"{build.folder.name}.log").read_text().splitlines()
        return [line.split(" -c ")[1].split()[0] for line in commands if " -c " in line]

    assert len(compiled(make())) > 2
    source = write(root / "shim" / "cudart_memory.c", "int cudaHiddenToo;\n")
    assert compiled(make()) == [str(source)]
    long_ago = time.time() - cache.UNUSED_SECONDS - 1
    for path in (cache_folder / "maya-objects").iterdir():
        os.utime(path, (long_ago, long_ago))
    source.write_text("int cudaHiddenAgain;\n")
    assert compiled(make()) == [str(source)]
    write(root / "shim" / "device" / "device.h", DEVICE_H + "/* changed */\n")
    assert len(compiled(make())) > 2


def test_a_damaged_build_is_made_again(make: Builder) -> None:
    build = make()
    build.libraries[3].unlink()
    assert make() == build
    assert build.libraries[3].is_file()
    (build.folder / "build.json").write_text("{")
    assert make() == build


def test_old_builds_are_removed_and_nothing_else(make: Builder, root: Path, cache_folder: Path) -> None:
    old, others = make(), [cache_folder / "important", cache_folder / "important.lock"]
    others[0].mkdir()
    others[1].touch()
    long_ago = time.time() - cache.UNUSED_SECONDS - 1
    for path in (old.folder / "build.json", cache_folder / f"{old.folder.name}.lock", others[1]):
        os.utime(path, (long_ago, long_ago))
    write(root / "shim" / "device" / "more.c", "int more;\n")
    recent = make()
    assert {path.name for path in cache_folder.iterdir()} == {
        "maya-objects",
        *(recent.folder.name + suffix for suffix in ("", ".lock", ".log")),
        *(path.name for path in others),
    }


def test_using_a_build_keeps_it(make: Builder, root: Path) -> None:
    old = make()
    os.utime(old.folder / "build.json", (0, 0))
    os.utime(old.folder.with_name(f"{old.folder.name}.lock"), (0, 0))
    make()
    write(root / "shim" / "device" / "more.c", "int more;\n")
    make()
    assert old.folder.is_dir()


BUILDER = """\
    import sys
    from pathlib import Path
    from rank_runtime.build import ensure_built
    from rank_runtime.build.sources import Sources
    from rank_runtime.build.torch_install import read_torch
    torch, sources = read_torch(Path(sys.argv[1])), Sources(Path(sys.argv[2]))
    print(ensure_built(lambda text: print(text, flush=True), torch=torch, sources=sources).folder)
"""


@pytest.fixture
def start_builder(torch_folder: Path, root: Path, cache_folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts builders in processes of their own, in sessions of their own."""
    started: list[subprocess.Popen[str]] = []

    def start(**environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(BUILDER), str(torch_folder), str(root)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the compilers it started
        process.communicate()


def test_only_one_of_two_builders_builds(
    start_builder: Callable[..., subprocess.Popen[str]], cache_folder: Path
) -> None:
    outputs = [process.communicate(timeout=60)[0] for process in [start_builder(), start_builder(), start_builder()]]
    assert sum("building" in output for output in outputs) == 1
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert not list(cache_folder.glob("*partial*"))


def test_a_killed_builder_does_not_stop_the_next(
    start_builder: Callable[..., subprocess.Popen[str]], make: Builder, tmp_path: Path, cache_folder: Path
) -> None:
    """It is killed while its compiler runs; the compiler lives on and writes its object later."""
    slow = write(tmp_path / "slow-gcc", f'#!/bin/sh\n[ "$1" = --version ] || sleep 1\nexec {GCC} "$@"\n')
    slow.chmod(0o755)
    # Compilers are told apart by what they say of their version, so this is the build that `make` will look for.
    builder = start_builder(CC=str(slow))
    deadline = time.monotonic() + 30
    while not list(cache_folder.glob("*.partial-*/objects")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    builder.kill()
    builder.wait()
    build = make()
    assert len(list(cache_folder.glob("*.lock"))) == 1
    assert all(path.is_file() for path in build.libraries)


# ---- our own sources ----


def test_our_sources_compile_without_a_warning(tmp_path: Path) -> None:
    sources, definitions = Sources(), [f"-D{name}={value}" for name, value in find_torch().definitions.items()]
    files = [*sources.device_files(), *(path for paths in sources.library_files().values() for path in paths)]
    assert files
    write_headers(tmp_path, sources)
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    gcc(*flags, f"-I{sources.shim}", f"-I{tmp_path}", *definitions, "-fsyntax-only", *files)


def test_the_installed_torch_finds_all_it_imports(build: Build) -> None:
    provided = {path.name: read_imports(path).exported for path in build.libraries}
    torch_objects = [read_imports(path) for path in find_torch().shared_objects]
    for requirement in required_libraries(torch_objects, find_torch().cuda_major, Sources().library_files()):
        missing = (requirement.functions | requirement.objects) - provided[requirement.soname]
        assert not missing, requirement.soname
        assert requirement.version is None or requirement.version in provided[requirement.soname]


def test_the_installed_torch_has_what_maya_takes_the_place_of(build: Build) -> None:
    device = next(path for path in build.libraries if path.name == "libmaya_device.so")
    replaced = {name for name in read_imports(device).exported if name.startswith("_Z")}
    assert len(replaced) >= 4
    assert not replaced.difference(*(read_imports(path).exported for path in find_torch().shared_objects))


@pytest.mark.parametrize("missing", [None, *RECORD_FUNCTION])
def test_a_torch_without_one_record_function_callback_is_observed_plainly(
    build: Build, tmp_path: Path, missing: str | None
) -> None:
    """A libtorch_cpu.so that counts its calls; observer callbacks that say "it has been done" and count theirs."""
    present = {name: arguments for name, arguments in RECORD_FUNCTION.items() if name != missing}
    functions = "".join(f"void {name}({arguments}) {{ calls++; }}\n" for name, arguments in present.items())
    calls = "".join(f"  {name}(calls{', 0' * arguments.count(',')});\n" for name, arguments in present.items())
    declarations = "".join(f"void {name}({arguments});\n" for name, arguments in present.items())
    torch = shared_object(tmp_path / "libtorch_cpu.so", f"int calls;\n{functions}")
    program = write(
        tmp_path / "program.c",
        """\
        #include "device/internal.h"
        #include <stdio.h>
        extern int calls;
        static int asked;
        static bool begins(void *function, uint8_t scope) { (void)function, (void)scope; asked++; return true; }
        static bool op_begins(void *function, const void *schema, uint64_t keys, const void *inputs, size_t count) {
          (void)function, (void)schema, (void)keys, (void)inputs, (void)count; asked++; return true;
        }
        static void ends(void *function) { (void)function; asked++; }
        static bool is_set(const void *observers) { (void)observers; asked++; return true; }
        void announce(void *calls);
        int main(void) {
          static const maya_record_function_callbacks observer = {begins, op_begins, ends, is_set};
          maya_set_record_function_callbacks(&observer);
          announce(&calls);
          printf("%d asked, %d calls\\n", asked, calls);
        }
        """,
    )
    announce = write(tmp_path / "announce.c", f"{declarations}void announce(void *calls) {{\n{calls}}}\n")
    device = next(path for path in build.libraries if path.name == "libmaya_device.so")
    write_headers(tmp_path / "include", Sources())
    gcc(
        program,
        announce,
        f"-I{Sources().shim}",
        f"-I{tmp_path / 'include'}",
        device,
        torch,
        f"-Wl,-rpath,{device.parent}:{tmp_path}",
        "-o",
        tmp_path / "program",
    )
    output = subprocess.run([tmp_path / "program"], check=True, capture_output=True, text=True)
    assert output.stderr == ""
    assert output.stdout == ("4 asked, 1 calls\n" if missing is None else "0 asked, 3 calls\n")


def test_the_command_prints_the_folder(build: Build) -> None:
    command = [sys.executable, "-m", "rank_runtime.build"]
    assert subprocess.check_output(command, cwd=REPOSITORY, text=True) == f"{build.folder}\n"


def test_every_library_can_be_loaded_completely(build: Build) -> None:
    """With every symbol bound at once: what one of our files calls, another defines."""
    program = "import ctypes, os, sys; [ctypes.CDLL(path, mode=os.RTLD_NOW) for path in sys.argv[1:]]"
    subprocess.run([sys.executable, "-S", "-c", program, *map(str, build.libraries)], check=True)
