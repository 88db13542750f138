"""NVML, NVRTC, CUPTI, cuFile and NVSHMEM: as torch and pynvml use them, on a virtual GPU."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.script_run import MayaRun, ScriptRun

from maya.trace import RecordKind, read


def _kernel_names(run: ScriptRun) -> set[str]:
    trace = read(run.trace)
    return {trace.signature(int(record["signature"]))["kernel"] for record in trace.kernels()}


def _library_calls(run: ScriptRun) -> list[str]:
    trace = read(run.trace)
    return [trace.signature(int(record["signature"]))["call"] for record in trace.select(RecordKind.LIBRARY)]


# ---- NVML ----


def test_nvml_and_cuda_tell_the_same_of_a_device(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import os
        import pynvml
        import torch

        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == torch.cuda.device_count() == torch.cuda._device_count_nvml() == 8
        for index in (0, 5):
            device, cuda = pynvml.nvmlDeviceGetHandleByIndex(index), torch.cuda.get_device_properties(index)
            assert pynvml.nvmlDeviceGetName(device) == cuda.name
            assert pynvml.nvmlDeviceGetUUID(device) == f"GPU-{cuda.uuid}"
            assert pynvml.nvmlDeviceGetCudaComputeCapability(device) == (cuda.major, cuda.minor)
            assert pynvml.nvmlDeviceGetMemoryInfo(device).total == cuda.total_memory
            address = pynvml.nvmlDeviceGetPciInfo(device).busId
            assert int(address.split(":")[1], 16) == cuda.pci_bus_id
            for same in (
                pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(device)),
                pynvml.nvmlDeviceGetHandleByPciBusId(address.encode()),
                pynvml.nvmlDeviceGetHandleBySerial(pynvml.nvmlDeviceGetSerial(device)),
            ):
                assert pynvml.nvmlDeviceGetIndex(same) == index

        idle = pynvml.nvmlDeviceGetHandleByIndex(1)
        busy = pynvml.nvmlDeviceGetHandleByIndex(0)
        data = torch.ones(2**28, dtype=torch.uint8, device="cuda")
        free, total = torch.cuda.mem_get_info()
        memory = pynvml.nvmlDeviceGetMemoryInfo(busy, version=pynvml.nvmlMemory_v2)
        assert (memory.free, memory.total, memory.used) == (free, total, total - free)
        assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(busy)] == [os.getpid()]
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(idle) == []
        assert str(os.getpid()) in torch.cuda.list_gpu_processes()

        rates = [pynvml.nvmlDeviceGetUtilizationRates(device).gpu for device in (busy, idle)]
        print("utilization", rates, torch.cuda.utilization())
        print("memory", torch.cuda.memory_usage(), torch.cuda.device_memory_used() == total - free)
        print("temperature", torch.cuda.temperature(), pynvml.nvmlDeviceGetTemperatureV(idle, 0))
        print("power", torch.cuda.power_draw(), pynvml.nvmlDeviceGetEnforcedPowerLimit(busy))
        print("clock", torch.cuda.clock_rate(), pynvml.nvmlDeviceGetMaxClockInfo(busy, pynvml.NVML_CLOCK_MEM))
        energy = [pynvml.nvmlDeviceGetTotalEnergyConsumption(busy) for _ in range(2)]
        assert 0 <= energy[0] <= energy[1]

        try:
            torch.empty(2**40, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            print("this process has" in str(error))
        """
    )
    assert run.exit_code == 0, run.stderr
    assert run.stdout.splitlines() == [
        "utilization [100, 0] 100",
        "memory 0 True",
        "temperature 65 32",
        "power 700000 700000",
        "clock 1980 2619",
        "True",
    ]


def test_nvml_describes_links_and_modes(maya_run: MayaRun) -> None:
    script = """
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
    hopper = maya_run(script)
    assert hopper.exit_code == 0, hopper.stderr
    assert hopper.stdout.splitlines() == [
        "9 16896",
        "18 6 2",
        "0",
        "50",
        "5 16",
        "[(0, 18), (3, 0)]",
        "0 [1, 1] 0",
        "[0, 0]",
    ]
    ada = maya_run(script, "--gpu", "l40s")
    assert ada.exit_code == 0, ada.stderr
    assert ada.stdout.splitlines() == [
        "8 18176",
        "Not Supported",
        "5",
        "50",
        "4 16",
        "[(0, 0), (3, 0)]",
        "0 [1, 1] 0",
        "Not Supported",
    ]


def test_nvml_refuses_as_the_library_does(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import pynvml

        def refused(function, *arguments):
            try:
                print(function(*arguments))
            except pynvml.NVMLError as error:
                print(type(error).__name__)

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        refused(pynvml.nvmlDeviceGetHandleByIndex, 8)
        refused(pynvml.nvmlDeviceGetHandleByUUID, b"GPU-0")
        refused(pynvml.nvmlDeviceGetFanSpeed, device)
        refused(pynvml.nvmlDeviceGetMemoryInfo, device, 7)
        refused(pynvml.nvmlDeviceGetVbiosVersion, device)
        pynvml.nvmlShutdown()
        refused(pynvml.nvmlDeviceGetName, device)
        """
    )
    assert run.exit_code == 0, run.stderr
    assert run.stdout.splitlines() == [
        "NVMLError_InvalidArgument",
        "NVMLError_NotFound",
        "NVMLError_NotSupported",
        "NVMLError_ArgumentVersionMismatch",
        "NVMLError_FunctionNotFound",
        "NVMLError_Uninitialized",
    ]


# ---- NVRTC ----


def test_kernels_compiled_at_run_time(maya_run: MayaRun, tmp_path: Path) -> None:
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


def test_nvrtc_programs(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import ctypes
        import torch

        nvrtc = ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.split('.')[0]}")
        major, minor = ctypes.c_int(), ctypes.c_int()
        assert nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
        assert torch.version.cuda.startswith(f"{major.value}.{minor.value}")

        program, name, size = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_size_t()
        source = b"__global__ void\\n__launch_bounds__(64, 2) first(int n) {}"
        source += b"template <int N> __global__ void second() {}"
        assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"a.cu", 0, None, None) == 0
        expressions = b"second<4>", b"second<4 >", b"&plain"
        for expression in expressions:
            assert nvrtc.nvrtcAddNameExpression(program, expression) == 0
        print("too early:", nvrtc.nvrtcGetLoweredName(program, expressions[0], ctypes.byref(name)))
        assert nvrtc.nvrtcCompileProgram(program, 0, None) == 0
        print("too late:", nvrtc.nvrtcAddNameExpression(program, b"x"))
        lowered = []
        for expression in expressions:
            assert nvrtc.nvrtcGetLoweredName(program, expression, ctypes.byref(name)) == 0
            lowered.append(name.value.decode())
        print("unknown:", nvrtc.nvrtcGetLoweredName(program, b"x", ctypes.byref(name)))
        assert nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
        image = ctypes.create_string_buffer(size.value)
        assert nvrtc.nvrtcGetPTX(program, image) == 0
        kernels = [line.split()[1] for line in image.value.decode().splitlines()[1:]]
        assert kernels == ["first", "second", *lowered], (kernels, lowered)
        assert len(set(lowered)) == 3
        print(lowered[0].startswith("_Z"), lowered[2])
        assert nvrtc.nvrtcDestroyProgram(ctypes.byref(program)) == 0
        """
    )
    assert run.exit_code == 0, run.stderr
    assert run.stdout.splitlines() == ["too early: 9", "too late: 8", "unknown: 10", "True _Z5plainv"]


# ---- CUPTI ----


def test_the_profiler_runs_and_has_the_host_side(maya_run: MayaRun, tmp_path: Path) -> None:
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
    assert run.stderr.count("the profiler sees the host only") == 1
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


def test_nvshmem_with_one_processing_element(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import ctypes
        import torch

        try:
            shmem = ctypes.CDLL("libnvshmem_host.so.3")
        except OSError:  # torch before 2.9
            raise SystemExit(print("1 True True True"))
        for function in ("nvshmem_malloc", "nvshmem_ptr"):
            getattr(shmem, function).restype = ctypes.c_void_p

        class Version(ctypes.Structure):
            _fields_ = [("numbers", ctypes.c_int * 3)]

        torch.zeros(1, device="cuda")
        identifier, attributes = ctypes.create_string_buffer(128), ctypes.create_string_buffer(144)
        assert shmem.nvshmemx_get_uniqueid(identifier) == 0
        assert shmem.nvshmemx_set_attr_uniqueid_args(0, 1, identifier, attributes) == 0
        assert shmem.nvshmemid_hostlib_init_attr(0, None, 8, attributes, Version(), None) == 0

        source = torch.arange(16).cuda()
        size = ctypes.c_size_t(source.nbytes)
        memory, signal = ctypes.c_void_p(shmem.nvshmem_malloc(size)), ctypes.c_void_p(shmem.nvshmem_malloc(8))
        shmem.nvshmemx_putmem_signal_on_stream(
            memory, ctypes.c_void_p(source.data_ptr()), size, signal, ctypes.c_uint64(5), 9, 0, None
        )
        back = torch.zeros_like(source)
        shmem.nvshmemx_getmem_on_stream(ctypes.c_void_p(back.data_ptr()), memory, size, 0, None)
        raised = ctypes.c_uint64.from_address(signal.value).value
        print(
            shmem.nvshmem_team_n_pes(0),
            shmem.nvshmem_ptr(memory, 0) == memory.value,
            back.tolist() == list(range(16)),
            raised == 5,
        )
        shmem.nvshmemx_set_attr_uniqueid_args(0, 2, identifier, attributes)
        assert shmem.nvshmemid_hostlib_init_attr(0, None, 8, attributes, Version(), None) != 0
        """
    )
    assert (run.exit_code, run.stdout) == (0, "1 True True True\n"), run.stderr
