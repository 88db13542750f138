"""What compiled packages do: link functions that torch does not, look functions up, and launch kernels of their own.

The package is a library of a few lines of C, compiled here without any file of CUDA's.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun

from maya.estimators.features.from_trace import kernels_of
from maya.estimators.kernel import KernelClass
from maya.trace import count_records, read

PACKAGE = """
#include <dlfcn.h>
#include <stddef.h>

/* Found by the loader, as a package that is linked with -lcudart -lcublas finds them. */
int cudaGraphAddEventRecordNode(void), cublasXtSgemm(void), cusolverSpXcsrqrAnalysis(void), cufftXtSetGPUs(void);
int curandGeneratePoisson(void), cusparseSpVV(void);
float cublasSnrm2(void);
int (*linked[])(void) = {cudaGraphAddEventRecordNode, cublasXtSgemm, cusolverSpXcsrqrAnalysis, cufftXtSetGPUs,
                         curandGeneratePoisson, cusparseSpVV};
int call_linked(int number) { return linked[number](); }
float call_old_interface(void) { return cublasSnrm2(); }

int call_by_name(const char *library, const char *function) {
    void *handle = dlopen(library, RTLD_LAZY);
    int (*found)(void) = handle ? (int (*)(void))dlsym(handle, function) : NULL;
    return found ? found() : -1;
}

/* What a compiler makes of `__global__ void scale(float *out, const float *in, int n)` and its launch. */
typedef struct { unsigned x, y, z; } dim3;
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
static void scale(void) {}
static void plain(void) {}

__attribute__((constructor)) static void register_kernels(void) {
    void **handle = __cudaRegisterFatBinary(NULL);
    __cudaRegisterFunction(handle, (char *)scale, "scale", "_Z5scalePfPKfi", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handle, (char *)plain, "plain", "plain", -1, 0, 0, 0, 0, 0);
}

int launch_scale(float *out, const float *in, int n) {
    void *arguments[] = {&out, &in, &n};
    return cudaLaunchKernel((void *)scale, (dim3){n / 256, 1, 1}, (dim3){256, 1, 1}, arguments, 0, 0);
}

int launch_plain(float *out) {
    void *arguments[] = {&out};
    return cudaLaunchKernel((void *)plain, (dim3){4, 1, 1}, (dim3){256, 1, 1}, arguments, 0, 0);
}
"""

PROGRAM = Checks(
    """
    import ctypes
    import sys
    import torch

    torch.zeros(1, device="cuda")
    package = ctypes.CDLL(sys.argv[1])
    package.call_old_interface.restype = ctypes.c_float
    major = torch.version.cuda.split(".")[0]
    runtime, driver = ctypes.CDLL(f"libcudart.so.{major}"), ctypes.CDLL("libcuda.so.1")
    SUCCESS, INVALID_VALUE, NOT_FOUND = 0, 1, 500

    def after_each():
        runtime.cudaGetLastError()  # torch would raise what a refused call has left behind

    def a_linked_function_that_is_not_emulated_fails_as_its_library_does():
        results = [package.call_linked(number) for number in (0, 0, 1, 2, 3, 4, 5)]
        assert results == [801, 801, 15, 9, 16, 204, 10], results

    def a_function_that_returns_a_number_returns_none():
        result = package.call_old_interface()
        assert result != result

    def functions_are_found_by_name():
        assert package.call_by_name(b"libcuda.so.1", b"cuArrayCreate_v2") == 801
        assert package.call_by_name(b"libnvidia-ml.so.1", b"nvmlDeviceGetVbiosVersion") == 3
        assert package.call_by_name(b"libcuda.so.1", b"cuDoesNotExist") == -1

    def _address(name, version):
        found, status = ctypes.c_void_p(), ctypes.c_int(-1)
        results = ctypes.byref(found), version, ctypes.c_uint64(0), ctypes.byref(status)
        return driver.cuGetProcAddress_v2(name, *results), status.value, found.value

    def _exported(name):
        return ctypes.cast(getattr(driver, name), ctypes.c_void_p).value

    def the_driver_gives_the_interface_of_the_version_asked_for():
        assert _address(b"cuMemPrefetchAsync", 12000) == (SUCCESS, 0, _exported("cuMemPrefetchAsync"))
        assert _address(b"cuMemPrefetchAsync", 12020) == (SUCCESS, 0, _exported("cuMemPrefetchAsync_v2"))
        assert _address(b"cuMemAlloc", 12000) == (SUCCESS, 0, _exported("cuMemAlloc_v2"))

    def the_driver_does_not_find_what_is_unknown_or_too_new():
        assert _address(b"cuDoesNotExist", 12000) == (NOT_FOUND, 1, None)
        assert _address(b"cuGreenCtxCreate", 12000) == (NOT_FOUND, 2, None)

    class Location(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("number", ctypes.c_int)]

    def _prefetch(address, bytes, device):
        where = (Location(1, device), 0) if int(major) >= 13 else (device,)
        return runtime.cudaMemPrefetchAsync(ctypes.c_void_p(address), ctypes.c_size_t(bytes), *where, ctypes.c_void_p())

    def hints_about_managed_memory_are_checked_and_accepted():
        managed, tensor = ctypes.c_void_p(), torch.zeros(1024, device="cuda")
        assert runtime.cudaMallocManaged(ctypes.byref(managed), ctypes.c_size_t(4096), 1) == SUCCESS
        assert _prefetch(managed.value, 4096, 0) == SUCCESS
        assert _prefetch(managed.value, 8192, 0) == INVALID_VALUE
        assert _prefetch(managed.value, 4096, 99) == 101
        assert _prefetch(tensor.data_ptr(), 4096, 0) == INVALID_VALUE

    def a_device_is_found_by_its_bus():
        text, device = ctypes.create_string_buffer(32), ctypes.c_int(-1)
        assert runtime.cudaDeviceGetPCIBusId(text, 32, 3) == SUCCESS
        assert runtime.cudaDeviceGetByPCIBusId(ctypes.byref(device), text) == SUCCESS and device.value == 3
        assert runtime.cudaDeviceGetByPCIBusId(ctypes.byref(device), b"nonsense") == INVALID_VALUE

    def what_a_kernel_of_a_package_may_write_is_a_placeholder():
        source, result = torch.arange(1024.0, device="cuda"), torch.ones(1024, device="cuda")
        addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (result, source)]
        assert package.launch_scale(*addresses, 1024) == SUCCESS
        torch.cuda.synchronize()
        print("input", source.sum().item())
        print("output", result.sum().item())

    def results_of_an_op_keep_their_places_where_one_is_absent():
        def on_gpu(x):
            result = torch.empty_like(x)
            assert package.launch_plain(ctypes.c_void_p(result.data_ptr())) == SUCCESS
            return None, result

        with torch.library._scoped_library("package", "DEF") as library:
            library.define("both(Tensor x) -> (Tensor?, Tensor)")
            library.impl("both", on_gpu, "CUDA")
            library.impl("both", lambda x: (x + 5, x * 2), "CPU")
            absent, doubled = torch.ops.package.both(torch.ones(256).cuda())
            assert absent is None and doubled.tolist() == [2.0] * 256

    def a_kernel_with_a_name_of_c_is_launched():
        assert package.launch_plain(ctypes.c_void_p(torch.ones(1024, device="cuda").data_ptr())) == SUCCESS
        torch.cuda.synchronize()
    """
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, whose functions are left to the loader, which finds those of the fake libraries."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "package.c").write_text(PACKAGE)
    command = ["cc", "-shared", "-fPIC", "-w", "-o", "libpackage.so", "package.c", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "libpackage.so"


@pytest.fixture(scope="module")
def outcomes(maya_run_once: MayaRun, package: Path) -> Outcomes:
    return PROGRAM.run(maya_run_once, script_arguments=[str(package)])


@pytest.mark.parametrize("check", PROGRAM.names)
def test_a_compiled_package(outcomes: Outcomes, check: str) -> None:
    outcomes.require(check)


def test_a_function_that_is_not_emulated_is_named_once(outcomes: Outcomes) -> None:
    for name in ("cudaGraphAddEventRecordNode", "cublasXtSgemm", "cublasSnrm2", "nvmlDeviceGetVbiosVersion"):
        assert outcomes.run.stderr.count(f"[rank 0] {name} is not emulated") == 1


def test_the_input_of_a_kernel_stays_known_and_its_output_does_not(outcomes: Outcomes) -> None:
    lines = outcomes.run.stdout.splitlines()
    assert f"input {sum(range(1024)):.1f}" in lines
    lines_read = [int(each.at.rsplit(":", 1)[1]) for each in count_records(read(outcomes.run.trace)).placeholder_reads]
    assert lines_read == [_line_of("output")]


def _line_of(word: str) -> int:
    lines = PROGRAM.program.splitlines()
    return 1 + next(number for number, line in enumerate(lines) if f'print("{word}"' in line)


def test_a_kernel_outside_ops_is_priced_by_the_bytes_behind_its_pointers(outcomes: Outcomes) -> None:
    kernels = [item for item in kernels_of(read(outcomes.run.trace)).kernels if item.launch.name.startswith("_Z5scale")]
    assert [item.launch.pointers for item in kernels] == [(4096, 4096)]
    assert [item.kernel.kernel_class for item in kernels] == [KernelClass.UNKNOWN]
    assert [item.kernel.bytes_read + item.kernel.bytes_written for item in kernels] == [8192]
