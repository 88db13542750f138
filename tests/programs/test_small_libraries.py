"""NVML, NVRTC, CUPTI, cuFile and NVSHMEM: as torch and pynvml use them, on a virtual GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun, ScriptRun

from maya.trace import RecordKind, read


def _kernel_names(run: ScriptRun) -> set[str]:
    trace = read(run.trace)
    return {trace.signature(int(record["signature"]))["kernel"] for record in trace.kernels()}


def _library_calls(run: ScriptRun) -> list[str]:
    trace = read(run.trace)
    return [trace.signature(int(record["signature"]))["call"] for record in trace.select(RecordKind.LIBRARY)]


# ---- NVML ----


NVML = Checks(
    """
    import os
    import pynvml
    import torch

    pynvml.nvmlInit()
    busy, idle = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    data = torch.ones(2**28, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()

    def _devices():
        for index in (0, 5):
            yield index, pynvml.nvmlDeviceGetHandleByIndex(index), torch.cuda.get_device_properties(index)

    def _refused(error, function, *arguments):
        try:
            answer = function(*arguments)
        except pynvml.NVMLError as raised:
            assert type(raised).__name__ == error, raised
        else:
            raise AssertionError(answer)

    def nvml_and_cuda_count_the_same_devices():
        assert pynvml.nvmlDeviceGetCount() == torch.cuda.device_count() == torch.cuda._device_count_nvml() == 8

    def nvml_and_cuda_describe_a_device_alike():
        for _, device, cuda in _devices():
            assert pynvml.nvmlDeviceGetName(device) == cuda.name
            assert pynvml.nvmlDeviceGetUUID(device) == f"GPU-{cuda.uuid}"
            assert pynvml.nvmlDeviceGetCudaComputeCapability(device) == (cuda.major, cuda.minor)
            assert pynvml.nvmlDeviceGetMemoryInfo(device).total == cuda.total_memory
            assert int(pynvml.nvmlDeviceGetPciInfo(device).busId.split(":")[1], 16) == cuda.pci_bus_id

    def a_device_is_found_by_its_uuid_bus_and_serial_number():
        for index, device, _ in _devices():
            for same in (
                pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(device)),
                pynvml.nvmlDeviceGetHandleByPciBusId(pynvml.nvmlDeviceGetPciInfo(device).busId.encode()),
                pynvml.nvmlDeviceGetHandleBySerial(pynvml.nvmlDeviceGetSerial(device)),
            ):
                assert pynvml.nvmlDeviceGetIndex(same) == index

    def nvml_and_cuda_agree_on_used_memory():
        memory = pynvml.nvmlDeviceGetMemoryInfo(busy, version=pynvml.nvmlMemory_v2)
        assert (memory.free, memory.total, memory.used) == (free, total, total - free)
        assert torch.cuda.memory_usage() == 0 and torch.cuda.device_memory_used() == total - free

    def processes_are_listed_on_the_device_they_use():
        assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(busy)] == [os.getpid()]
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(idle) == []
        assert str(os.getpid()) in torch.cuda.list_gpu_processes()

    def a_used_device_is_busy():
        rates = [pynvml.nvmlDeviceGetUtilizationRates(device).gpu for device in (busy, idle)]
        assert (rates, torch.cuda.utilization()) == ([100, 0], 100)

    def a_used_device_is_warm():
        assert (torch.cuda.temperature(), pynvml.nvmlDeviceGetTemperatureV(idle, 0)) == (65, 32)

    def a_used_device_draws_its_power_limit():
        assert (torch.cuda.power_draw(), pynvml.nvmlDeviceGetEnforcedPowerLimit(busy)) == (700000, 700000)

    def clocks_are_those_of_the_device():
        assert torch.cuda.clock_rate() == 1980
        assert pynvml.nvmlDeviceGetMaxClockInfo(busy, pynvml.NVML_CLOCK_MEM) == 2619

    def energy_only_grows():
        energy = [pynvml.nvmlDeviceGetTotalEnergyConsumption(busy) for _ in range(2)]
        assert 0 <= energy[0] <= energy[1]

    def torch_names_the_process_when_memory_runs_out():
        try:
            torch.empty(2**40, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            assert "this process has" in str(error).lower(), error
        else:
            raise AssertionError("more than there is")

    def an_index_out_of_range_is_refused():
        _refused("NVMLError_InvalidArgument", pynvml.nvmlDeviceGetHandleByIndex, 8)

    def an_unknown_uuid_is_refused():
        _refused("NVMLError_NotFound", pynvml.nvmlDeviceGetHandleByUUID, b"GPU-0")

    def a_device_without_a_fan_says_so():
        _refused("NVMLError_NotSupported", pynvml.nvmlDeviceGetFanSpeed, busy)

    def an_unknown_version_of_a_structure_is_refused():
        _refused("NVMLError_ArgumentVersionMismatch", pynvml.nvmlDeviceGetMemoryInfo, busy, 7)

    def a_function_that_is_not_emulated_is_refused():
        _refused("NVMLError_NotSupported", pynvml.nvmlDeviceGetVbiosVersion, busy)
    """
)


@pytest.fixture(scope="module")
def nvml(maya_run_once: MayaRun) -> Outcomes:
    return NVML.run(maya_run_once)


@pytest.mark.parametrize("check", NVML.names)
def test_nvml(nvml: Outcomes, check: str) -> None:
    nvml.require(check)


def test_nvml_calls_after_the_shutdown_are_refused(maya_run: MayaRun) -> None:
    run = maya_run("""
        import pynvml  # without torch, which initialises NVML itself

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlShutdown()
        try:
            pynvml.nvmlDeviceGetName(device)
        except pynvml.NVMLError as error:
            print(type(error).__name__)
        """)
    assert (run.exit_code, run.stdout) == (0, "NVMLError_Uninitialized\n"), run.stderr


LINKS_AND_MODES = """
    from ctypes import byref
    import pynvml

    pynvml.nvmlInit()
    device, other = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 7))
    print(pynvml.nvmlDeviceGetArchitecture(device), pynvml.nvmlDeviceGetNumGpuCores(device))
    try:
        links = [pynvml.nvmlDeviceGetNvLinkState(device, link) for link in range(18)]
        remote = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(device, 0)
        print(sum(links), pynvml.nvmlDeviceGetNvLinkVersion(device, 0), remote)
    except pynvml.NVMLError as error:
        print(error)
    print(pynvml.nvmlDeviceGetP2PStatus(device, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK))
    print(pynvml.nvmlDeviceGetTopologyCommonAncestor(device, other))
    print(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(device), pynvml.nvmlDeviceGetCurrPcieLinkWidth(device))
    print([(value.nvmlReturn, value.value.uiVal) for value in pynvml.nvmlDeviceGetFieldValues(device, [91, 1])])
    fabric = pynvml.c_nvmlGpuFabricInfo_v3_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(device, byref(fabric))
    print(fabric.state, pynvml.nvmlDeviceGetEccMode(device), pynvml.nvmlDeviceGetComputeMode(device))
    try:
        print(pynvml.nvmlDeviceGetMigMode(device))
    except pynvml.NVMLError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("h100", ["9 16896", "18 6 2", "0", "50", "5 16", "[(0, 18), (3, 0)]", "0 [1, 1] 0", "[0, 0]"]),
        ("l40s", ["8 18176", "Not Supported", "5", "50", "4 16", "[(0, 0), (3, 0)]", "0 [1, 1] 0", "Not Supported"]),
    ],
)
def test_nvml_describes_links_and_modes(maya_run: MayaRun, gpu: str, expected: list[str]) -> None:
    run = maya_run(LINKS_AND_MODES, "--gpu", gpu)
    assert run.exit_code == 0, run.stderr
    assert run.stdout.splitlines() == expected


# ---- NVRTC ----


def test_kernels_compiled_at_run_time_are_recorded_by_name(maya_run: MayaRun, tmp_path: Path) -> None:
    run = maya_run(
        """
        import torch

        source = "template <typename T> T twice_minus(T x, T y) { return T(2) * x - y; }"
        function = torch.cuda.jiterator._create_jit_fn(source)
        print(function(torch.ones(5, device="cuda"), torch.ones(5, device="cuda")).shape)
        print(torch.special.bessel_j0(torch.ones(7, device="cuda")).shape)

        try:
            kernel = torch.cuda._compile_kernel("__global__ void __launch_bounds__(32) mine(float* x) {}", "mine")
            kernel((2, 1, 1), (32, 1, 1), (torch.ones(5, device="cuda"),))
        except OSError:  # torch 2.8 loads the CUDA toolkit's libnvrtc.so, without a version
            print("toolkit wanted")
        """,
        environment={"PYTORCH_KERNEL_CACHE_PATH": str(tmp_path)},
    )
    assert run.exit_code == 0, run.stderr
    assert run.stdout.startswith("torch.Size([5])\ntorch.Size([7])\n")
    names = _kernel_names(run)
    assert any("mine" in name for name in names) or "toolkit wanted" in run.stdout, names
    assert any("twice_minus" in name for name in names), names
    assert any("bessel_j0" in name for name in names), names


NVRTC = Checks(
    """
    import ctypes
    import torch

    nvrtc = ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.split('.')[0]}")
    EXPRESSIONS = b"second<4>", b"second<4 >", b"&plain"

    def _program():
        program = ctypes.c_void_p()
        source = b"__global__ void\\n__launch_bounds__(64, 2) first(int n) {}"
        source += b"template <int N> __global__ void second() {}"
        assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"a.cu", 0, None, None) == 0
        for expression in EXPRESSIONS:
            assert nvrtc.nvrtcAddNameExpression(program, expression) == 0
        return program

    def _compiled():
        program = _program()
        assert nvrtc.nvrtcCompileProgram(program, 0, None) == 0
        return program

    def _lowered(program, expression):
        name = ctypes.c_char_p()
        return nvrtc.nvrtcGetLoweredName(program, expression, ctypes.byref(name)), name.value

    def the_version_is_that_of_torch():
        major, minor = ctypes.c_int(), ctypes.c_int()
        assert nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
        assert torch.version.cuda.startswith(f"{major.value}.{minor.value}")

    def a_name_before_the_compilation_is_refused():
        assert _lowered(_program(), EXPRESSIONS[0])[0] == 9

    def an_expression_after_the_compilation_is_refused():
        assert nvrtc.nvrtcAddNameExpression(_compiled(), b"x") == 8

    def an_expression_that_was_not_added_is_refused():
        assert _lowered(_compiled(), b"x")[0] == 10

    def names_are_mangled_and_differ():
        program = _compiled()
        results, names = zip(*(_lowered(program, expression) for expression in EXPRESSIONS))
        assert results == (0, 0, 0) and len(set(names)) == 3
        assert names[0].startswith(b"_Z") and names[2] == b"_Z5plainv"

    def the_image_holds_the_kernels_of_the_source_and_of_the_expressions():
        program, size = _compiled(), ctypes.c_size_t()
        assert nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
        image = ctypes.create_string_buffer(size.value)
        assert nvrtc.nvrtcGetPTX(program, image) == 0
        kernels = [line.split()[1] for line in image.value.splitlines()[1:]]
        assert kernels == [b"first", b"second", *(_lowered(program, each)[1] for each in EXPRESSIONS)], kernels

    def a_program_is_destroyed():
        assert nvrtc.nvrtcDestroyProgram(ctypes.byref(_compiled())) == 0
    """
)


@pytest.fixture(scope="module")
def nvrtc(maya_run_once: MayaRun) -> Outcomes:
    return NVRTC.run(maya_run_once)


@pytest.mark.parametrize("check", NVRTC.names)
def test_nvrtc(nvrtc: Outcomes, check: str) -> None:
    nvrtc.require(check)


# ---- CUPTI ----


def test_the_profiler_records_the_host(maya_run: MayaRun, tmp_path: Path) -> None:
    run = maya_run(
        """
        import sys
        import torch
        from torch.profiler import ProfilerActivity, profile, record_function, schedule

        model, x = torch.nn.Linear(64, 64).cuda(), torch.ones(8, 64).cuda()
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, record_shapes=True, profile_memory=True, with_stack=True) as profiler:
            with record_function("my step"):
                model(x).sum().backward()
            torch.cuda.synchronize()
        profiler.export_chrome_trace(sys.argv[1])
        averages = profiler.key_averages()
        print("aten::linear" in {average.key for average in averages})
        print("my step" in averages.table(sort_by="self_cuda_time_total"))

        ready = []
        with profile(
            activities=activities,
            schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
            on_trace_ready=lambda one: ready.append(len(one.events()) > 0),
        ) as profiler:
            for _ in range(8):
                model(x)
                profiler.step()
        print(ready)
        with torch.autograd.profiler.emit_nvtx():
            model(x)
        """,
        script_arguments=[str(tmp_path / "trace.json")],
    )
    assert run.exit_code == 0, run.stderr
    assert run.stdout == "True\nTrue\n[True, True]\n"
    assert run.stderr.count("the profiler records host events only") == 1
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["deviceProperties"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert {"cpu_op", "user_annotation"} <= {event.get("cat") for event in trace["traceEvents"]}


# ---- cuFile ----


def test_files_are_read_into_device_memory_and_written_from_it(maya_run: MayaRun, tmp_path: Path) -> None:
    path = tmp_path / "data"
    run = maya_run(
        """
        import os
        import sys
        import torch

        values = torch.arange(1024).cuda()
        torch.cuda.gds.gds_register_buffer(values.untyped_storage())
        file = torch.cuda.gds.GdsFile(sys.argv[1], os.O_CREAT | os.O_RDWR)
        file.save_storage(values.untyped_storage(), 0)
        torch.cuda.gds.gds_deregister_buffer(values.untyped_storage())
        back = torch.zeros(1024, dtype=torch.int64).cuda()
        file.load_storage(back.untyped_storage(), 0)
        print(torch.equal(back.cpu(), torch.arange(1024)))
        """,
        script_arguments=[str(path)],
    )
    assert (run.exit_code, run.stdout) == (0, "True\n"), run.stderr
    assert path.stat().st_size == 8 * 1024
    assert [call for call in _library_calls(run) if call.startswith("cuFile")] == ["cuFileWrite", "cuFileRead"]


# ---- NVSHMEM ----


NVSHMEM = Checks(
    """
    import ctypes
    import torch

    class Version(ctypes.Structure):
        _fields_ = [("numbers", ctypes.c_int * 3)]

    try:
        shmem = ctypes.CDLL("libnvshmem_host.so.3")
    except OSError:
        shmem = None  # torch before 2.9
    else:
        for function in ("nvshmem_malloc", "nvshmem_ptr"):
            getattr(shmem, function).restype = ctypes.c_void_p
        torch.zeros(1, device="cuda")
        identifier, attributes = ctypes.create_string_buffer(128), ctypes.create_string_buffer(144)
        assert shmem.nvshmemx_get_uniqueid(identifier) == 0
        assert shmem.nvshmemx_set_attr_uniqueid_args(0, 1, identifier, attributes) == 0
        assert shmem.nvshmemid_hostlib_init_attr(0, None, 8, attributes, Version(), None) == 0

    def there_is_one_processing_element():
        assert shmem is None or shmem.nvshmem_team_n_pes(0) == 1

    def the_own_memory_is_at_its_own_address():
        if shmem is not None:
            memory = shmem.nvshmem_malloc(ctypes.c_size_t(8))
            assert shmem.nvshmem_ptr(ctypes.c_void_p(memory), 0) == memory

    def bytes_that_were_put_can_be_got_and_their_signal_is_set():
        if shmem is None:
            return
        source = torch.arange(16).cuda()
        size = ctypes.c_size_t(source.nbytes)
        memory, signal = ctypes.c_void_p(shmem.nvshmem_malloc(size)), ctypes.c_void_p(shmem.nvshmem_malloc(8))
        shmem.nvshmemx_putmem_signal_on_stream(
            memory, ctypes.c_void_p(source.data_ptr()), size, signal, ctypes.c_uint64(5), 9, 0, None
        )
        back = torch.zeros_like(source)
        shmem.nvshmemx_getmem_on_stream(ctypes.c_void_p(back.data_ptr()), memory, size, 0, None)
        assert back.tolist() == list(range(16))
        assert ctypes.c_uint64.from_address(signal.value).value == 5

    def a_second_processing_element_is_refused():
        if shmem is not None:
            shmem.nvshmemx_set_attr_uniqueid_args(0, 2, identifier, attributes)
            assert shmem.nvshmemid_hostlib_init_attr(0, None, 8, attributes, Version(), None) != 0
    """
)


@pytest.fixture(scope="module")
def nvshmem(maya_run_once: MayaRun) -> Outcomes:
    return NVSHMEM.run(maya_run_once)


@pytest.mark.parametrize("check", NVSHMEM.names)
def test_nvshmem_with_one_processing_element(nvshmem: Outcomes, check: str) -> None:
    nvshmem.require(check)
