"""Which fake libraries a torch needs, and the errors for a torch that has no CUDA: nothing is compiled."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rank_runtime.build import BuildError
from rank_runtime.build.elf import ElfError, ImportedSymbol, Imports, read_exports, read_imports
from rank_runtime.build.functions import FOLDER, parse_line, public_functions
from rank_runtime.build.libraries import KNOWN_LIBRARIES, required_libraries
from rank_runtime.build.sources import Sources
from rank_runtime.build.torch_install import find_torch, read_torch


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"not an object at all", b"\x7fELF\x02\x01" + b"\xff" * 100])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libbroken.so"
    path.write_bytes(content)
    for read in (read_imports, read_exports):
        with pytest.raises(ElfError, match=r"libbroken\.so"):
            read(path)


# ---- libraries.py ----


def torch_object(needed: list[str], *symbols: ImportedSymbol) -> Imports:
    return Imports(Path("libtorch_cuda.so"), "libtorch_cuda.so", tuple(needed), symbols, frozenset())


@pytest.mark.parametrize(
    ("symbol", "stem"),
    [
        ("cuInit", "cuda"),
        ("cuFileRead", "cufile"),
        ("cudaMalloc", "cudart"),
        ("__cudaRegisterFunction", "cudart"),
        ("cublasCreate_v2", "cublas"),
        ("cublasLtMatmul", "cublaslt"),
        ("cusparseLtInit", "cusparselt"),
        ("cusparseSpMM", "cusparse"),
        ("cufftXtExec", "cufft"),
        ("ncclAllReduce", "nccl"),
        ("nvshmemx_mc_ptr", "nvshmem"),
        ("nvmlInit_v2", "nvml"),
        ("curl_easy_init", None),
        ("cudagraph", None),
        ("pthread_create", None),
    ],
)
def test_a_symbol_belongs_to_the_library_of_its_longest_prefix(symbol: str, stem: str | None) -> None:
    sonames = [library.soname(13) for library in KNOWN_LIBRARIES]
    imports = torch_object(sonames, ImportedSymbol(symbol, None, None, False, False))
    owners = [item.library.stem for item in required_libraries([imports], 13, []) if symbol in item.functions]
    assert owners == ([stem] if stem else [])


def test_libraries_with_sources_are_built_even_if_torch_does_not_link_them() -> None:
    imports = torch_object(["libcudart.so.12", "libc.so.6", "libcurl.so.4"])
    assert [item.soname for item in required_libraries([imports], 12, [])] == [
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libcudart.so.12",
    ]
    with_sources = required_libraries([imports], 12, ["cufft", "curand", "cusparse"])
    assert [(item.soname, item.version) for item in with_sources][3:] == [
        ("libcufft.so.11", "libcufft.so.11"),
        ("libcurand.so.10", "libcurand.so.10"),
        ("libcusparse.so.12", "libcusparse.so.12"),
    ]


def test_bundled_libraries_are_renamed_but_known() -> None:
    bundled = Imports(Path("libcudart-d0da41ae.so.12"), None, ("libcublas.so.12",), (), frozenset())
    imports = torch_object(["libcudart-d0da41ae.so.12"])
    found = {item.soname: item.library.stem for item in required_libraries([imports, bundled], 12, [])}
    assert found["libcudart-d0da41ae.so.12"] == "cudart"
    assert "libcublas.so.12" not in found  # only one of NVIDIA's own libraries asks for it


def test_the_parts_of_a_library_have_its_number() -> None:
    (cudnn,) = (item for item in required_libraries([], 13, ["cudnn"]) if item.library.stem == "cudnn")
    assert "libcudnn_graph.so.9" in cudnn.part_sonames


def test_the_table_of_libraries_is_consistent() -> None:
    for values in zip(*((item.stem, item.soname_stem) for item in KNOWN_LIBRARIES), strict=True):
        assert len(set(values)) == len(values)
    for library in KNOWN_LIBRARIES:
        assert "_" not in library.stem, "shim/<stem>_*.c would be ambiguous"
        assert library.unsupported.value != "0"
        assert all(library.prefix_length(name) for name in library.other_results)


def test_every_list_of_functions_belongs_to_a_library_and_is_sorted() -> None:
    libraries = {library.stem: library for library in KNOWN_LIBRARIES}
    for path in FOLDER.glob("*.txt"):
        names = list(public_functions(path.stem))
        assert names == sorted(names)
        assert all(libraries[path.stem].prefix_length(name) for name in names)


def test_a_library_has_the_functions_of_its_cuda_release() -> None:
    runtime = next(library for library in KNOWN_LIBRARIES if library.stem == "cudart")
    driver = next(library for library in KNOWN_LIBRARIES if library.stem == "cuda")
    prefetches = {"cudaMemPrefetchAsync", "cudaMemPrefetchAsync_v2"}
    assert runtime.public_names((12, 8)) & prefetches == prefetches
    assert runtime.public_names((13, 0)) & prefetches == {"cudaMemPrefetchAsync"}
    newer = {"cudaDeviceGetHostAtomicCapabilities", "cudaFuncGetParamCount"}  # 13.0 and 13.2: packages may link both
    assert newer <= runtime.public_names((13, 0))
    assert newer.isdisjoint(runtime.public_names((12, 9)))
    assert "cuCtxGetDevice_v2" in driver.public_names((13, 0))
    assert "cuLaunchHostFunc_v2" not in driver.public_names((13, 0)), "a program that looks for it must not find it"
    assert "cuCtxCreate_v2" in driver.public_names((13, 0)), "drivers keep all functions"


@pytest.mark.parametrize("line", ["cudaFoo status", "cudaFoo 12", "cudaFoo 12.2-13.0-"])
def test_a_wrong_line_in_a_list_of_functions_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="after cudaFoo"):
        parse_line(line)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("__version__ = '2.12.1+cpu'\ncuda: Optional[str] = None\n", "CPU-only"),
        ("__version__ = '2.12.1+rocm7'\ncuda = None\nhip: Optional[str] = '7.0'\n", "ROCm"),
        ("__version__ = '2.12.1'\ncuda: Optional[str] = '13.0'\n", "CPU-only"),
    ],
)
def test_a_torch_without_cuda_is_refused_with_the_remedy(tmp_path: Path, text: str, kind: str) -> None:
    write(tmp_path / "version.py", text)
    with pytest.raises(BuildError) as refusal:
        read_torch(tmp_path)
    assert "2.12.1" in str(refusal.value)
    assert kind in str(refusal.value)
    assert "pip install" in str(refusal.value)


def test_a_missing_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rank_runtime.build.torch_install.find_spec", lambda name: None)
    with pytest.raises(BuildError, match="torch is not installed"):
        find_torch()


def test_every_source_belongs_to_a_library() -> None:
    assert set(Sources().library_files()) <= {library.stem for library in KNOWN_LIBRARIES}
