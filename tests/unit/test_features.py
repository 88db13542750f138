"""From kernel names, as they appear in traces and profiles, to kernels with sizes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from maya.devices import load_device
from maya.estimators.estimator import Estimator
from maya.estimators.features import KernelLaunch, Tensor, kernel_of
from maya.estimators.features.inductor import parse
from maya.estimators.features.kineto_trace import ProfileError, read_profile
from maya.estimators.features.launch import function_name
from maya.estimators.kernel import KernelClass, Origin


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_", None),
        ("void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>, std::array<char*, 1ul> >(int)", None),
        ("void (anonymous namespace)::softmax_warp_forward<float, 10, true>(float*)", "softmax_warp_forward"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int>(int)", "kernel"),
        ("std::enable_if<(((8)>(0)))&&a::b<c>::exists, void>::type vllm::add_norm<int, 8>(int*)", "add_norm"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT"),
    ],
)
def test_the_function_of_a_kernel_is_found_in_its_name(name: str, function: str | None) -> None:
    assert function_name(name) == (function or "vectorized_elementwise_kernel")


def test_a_dropout_whose_grid_fills_the_device_only_goes_through_its_whole_tensor() -> None:
    x = Tensor((64, 1024, 1024), "fp16", (1024 * 1024, 1024, 1))
    name = (
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::Half, float, unsigned int, 1, 4, bool>()"
    )
    launch = KernelLaunch("kernel", name, (864, 1, 1), (256, 1, 1), op="aten::native_dropout", inputs=(x, 0.1, True))
    kernel = kernel_of(launch)

    assert kernel.kernel_class is KernelClass.RANDOM
    assert kernel.bytes_read == x.bytes
    assert kernel.bytes_written == x.bytes + x.elements  # and a mask


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("softmax_warp_forward<float, float, float, 10, false, false>", "softmax_forward"),
        ("cunn_SoftMaxForwardReg<float, float, float, SoftMaxForwardEpilogue, long, 8>", "softmax_forward"),
        ("cunn_SoftMaxForwardSmem<4, float, float, float, SoftMaxForwardEpilogue, long>", "softmax_forward"),
        ("cunn_SoftMaxForward<4, float, float, float, SoftMaxForwardEpilogue>", "softmax_forward_in_passes"),
        ("cunn_SoftMaxBackwardSmem<4, float, float, float, SoftMaxBackwardEpilogue>", "softmax_backward"),
        ("cunn_SoftMaxBackward<4, float, float, float, SoftMaxBackwardEpilogue>", "softmax_backward_in_passes"),
    ],
)
def test_softmax_that_keeps_its_rows_and_softmax_that_reads_them_in_passes(name: str, variant: str) -> None:
    x = Tensor((64, 65536), "fp32", (65536, 1))
    op = "aten::_softmax_backward_data" if "Backward" in name else "aten::_softmax"
    kernel = kernel_of(
        KernelLaunch(
            "kernel", f"void at::native::{name}(float*)", (64, 1, 1), (1024, 1, 1), op=op, inputs=(x, -1, False)
        )
    )
    assert (kernel.kernel_class, kernel.variant) == (KernelClass.SOFTMAX, variant)


def test_flash_attention_aligns_its_causal_mask_at_the_bottom_right() -> None:
    def flops(queries: int, keys: int, *offsets: Tensor) -> float:
        shapes = [(queries, 8, 64), (keys, 8, 64), (keys, 8, 64)]
        tensors = [Tensor(shape if offsets else (1, *shape), "bf16") for shape in shapes]
        lengths = offsets or (None, None)
        inputs = (*tensors, *lengths, queries, keys, 0.0, True, False)
        name = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>()"
        return kernel_of(
            KernelLaunch("kernel", name, (1, 1, 1), op="aten::_flash_attention_forward", inputs=inputs)
        ).flops

    square, last_queries, packed = (128 * 129 / 2, 128 * 896 + 128 * 129 / 2, 2 * (128 * 896 + 128 * 129 / 2))
    assert flops(128, 128) == 4 * 64 * 8 * square
    assert flops(128, 1024) == 4 * 64 * 8 * last_queries
    assert flops(256, 2048, Tensor((3,), "int32"), Tensor((3,), "int32")) == 4 * 64 * 8 * packed


def test_operands_that_are_broadcast_are_read_once() -> None:
    row, table = Tensor((1, 4096), "bf16", (4096, 1)), Tensor((8192, 4096), "bf16", (4096, 1))
    add = KernelLaunch(
        "kernel",
        "void elementwise_kernel<128, 4>(int)",
        (65536, 1, 1),
        (128, 1, 1),
        op="aten::add",
        inputs=(table, row),
    )
    kernel = kernel_of(add)
    assert (kernel.kernel_class, kernel.variant) == (KernelClass.ELEMENTWISE, "strided")
    assert kernel.bytes_read == 2 * (8192 * 4096 + 4096)
    assert kernel.bytes_written == 2 * 8192 * 4096


def test_a_list_that_takes_several_launches_is_shared_exactly() -> None:
    tensors = [Tensor((70_000,), "fp32", (1,)), Tensor((65_536,), "fp32", (1,))]
    name = "void multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float, 1, 1, 0>>(int)"
    kernels = [
        kernel_of(
            KernelLaunch(
                "kernel", name, (blocks, 1, 1), op="aten::_foreach_mul_", inputs=([*tensors], 2.0), before=before
            )
        )
        for blocks, before in ((2, 0), (1, 2))
    ]
    assert [kernel.shape["elements"] for kernel in kernels] == [70_000, 65_536]
    assert all(kernel.bytes_read == kernel.bytes_written == 4 * kernel.shape["elements"] for kernel in kernels)


def test_unknown_kernels_have_the_bytes_of_their_op_or_of_their_grid() -> None:
    x = Tensor((1000, 1000), "fp32", (1000, 1))
    of_op = kernel_of(KernelLaunch("kernel", "mystery", (8, 1, 1), (128, 1, 1), op="mine::op", inputs=(x,)))
    of_grid = kernel_of(KernelLaunch("kernel", "mystery", (80, 1, 1), (128, 1, 1)))
    assert of_op.kernel_class is of_grid.kernel_class is KernelClass.UNKNOWN
    assert of_op.bytes_read == 4e6
    assert of_grid.bytes_read > 0
    estimator = Estimator(load_device("a100-80"))
    first, second = estimator.estimate([of_op, of_grid])

    assert first.origin is Origin.ROOFLINE
    assert second.origin is Origin.DEFAULT
    assert min(first.ns, second.ns) > 1000


GENERATED = """
@triton_heuristics.persistent_reduction(
    size_hints={'x': 8192, 'r0_': 1024},
    triton_meta={'signature': {'in_ptr0': '*bf16', 'in_ptr1': '*fp32', 'out_ptr0': '*bf16', 'xnumel': 'i32'}},
    inductor_meta={'kernel_name': 'triton_per_fused_0'},
)
def triton_per_fused_0(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 8000
    r0_numel = 768
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 768*x0), xmask, other=0.0).to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (r0_1), xmask, eviction_policy='evict_last', other=0.0)
    tl.store(out_ptr0 + (r0_1 + 768*x0), tmp0, xmask)
"""


def test_sizes_of_generated_kernels_come_from_their_source() -> None:
    metadata = parse(GENERATED)
    assert metadata.sizes == {"x": 8000, "r0_": 768}
    assert metadata.traffic() == (2 * 8000 * 768 + 4 * 768, 2 * 8000 * 768)


def test_a_profile_of_a_real_run_is_read(tmp_path: Path) -> None:
    op = {
        "External id": 7,
        "Input Dims": [[64, 1024], [64, 1024], []],
        "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"],
        "Concrete Inputs": ["", "", "1"],
    }
    kernel = {"External id": 7, "grid": [64, 1, 1], "block": [128, 1, 1], "stream": 7}
    name = "void vectorized_elementwise_kernel<4, CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int)"
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 5, "args": op},
        {"ph": "X", "cat": "kernel", "name": name, "ts": 9, "dur": 2.5, "args": kernel},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 12, "dur": 4, "args": {}},
    ]
    path = tmp_path / "profile.json.gz"
    content = {"deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}], "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    profile = read_profile(path)
    assert profile.communication_seconds == pytest.approx(4e-6)
    (measured,) = profile.launches
    assert measured.seconds == pytest.approx(2.5e-6)
    assert kernel_of(measured.launch).bytes_read == 2 * 2 * 64 * 1024
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ProfileError, match=r"other\.json: not a trace of torch\.profiler"):
        read_profile(tmp_path / "other.json")
