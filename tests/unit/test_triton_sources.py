"""Sizes of Triton kernels, read from the source that Inductor generates."""

from __future__ import annotations

import dataclasses

import pytest

from maya.devices import load_device
from maya.estimators.estimator import Estimator
from maya.estimators.features.extract import kernel_of
from maya.estimators.features.inductor import parse
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.mask import visible
from maya.estimators.features.templates import template_kernel
from maya.estimators.features.tensors import Tensor
from maya.estimators.kernel import Kernel, KernelClass, Origin

H100_FLOPS = float(load_device("h100").bf16_flops or 0)


# ---- templates ----

HEAD = """
@triton_heuristics.template(
num_stages=3,
num_warps=4,
triton_meta={{'signature': {{{signature}}}, 'device': 0}},
inductor_meta={{'kernel_name': 'triton_tem_fused_0'}},
)
@triton.jit
def triton_tem_fused_0(arguments):
"""
PRODUCT_SIZES = """
    BLOCK_M : tl.constexpr = {tile}
    BLOCK_N : tl.constexpr = {tile}
    M = {m}
    N = 14336
    K = 4096
    stride_am = 4096
    stride_ak = 1
    stride_bk = 1
    stride_bn = 4096
"""


def gemm(m: str = "8192", tile: int = 128) -> str:
    signature = "'arg_A': '*bf16', 'arg_B': '*bf16', 'ks0': 'i64', 'out_ptr0': '*bf16'"
    return HEAD.format(signature=signature) + PRODUCT_SIZES.format(m=m, tile=tile)


def launched(source: str, grid: tuple[int, int, int], pointers: tuple[int, ...] = ()) -> Kernel:
    template = parse(source).template
    assert template is not None
    found = template_kernel(template, KernelLaunch("kernel", "triton_tem_fused_0", grid=grid, pointers=pointers))
    assert found is not None
    return found


def h100_ns(kernel: Kernel) -> int:
    return Estimator(load_device("h100")).estimate([kernel])[0].ns


def test_a_gemm_template_has_its_sizes() -> None:
    kernel = launched(gemm(), (7168, 1, 1))
    assert kernel.kernel_class is KernelClass.GEMM
    assert kernel.variant == "TN_triton"
    assert kernel.flops == 2 * 8192 * 14336 * 4096
    estimate = Estimator(load_device("h100")).estimate([kernel])[0]
    assert estimate.origin is Origin.ROOFLINE
    assert estimate.ns > kernel.flops / H100_FLOPS * 1e9


def test_a_size_that_is_an_argument_follows_from_the_pointers() -> None:
    fixed = launched(gemm(), (7168, 1, 1))
    pointers = (2 * 8192 * 4096, 2 * 4096 * 14336, 0, 2 * 8192 * 14336)
    assert launched(gemm("ks0"), (7168, 1, 1), pointers) == fixed


def test_autotuning_prefers_tiles_that_fit_the_gemm() -> None:
    large = {tile: h100_ns(launched(gemm(tile=tile), (1, 1, 1))) for tile in (16, 32, 64, 128)}
    assert large[16] > large[32] > large[64] > large[128]


GROUPED = HEAD.format(signature="'arg_a_ptr': '*bf16', 'arg_b_ptr': '*bf16', 'out_ptr0': '*bf16'") + (
    """
    A_IS_2D : tl.constexpr = True
    B_IS_2D : tl.constexpr = False
    G: tl.constexpr = 8
    M: tl.constexpr = 16384
    N: tl.constexpr = 2048
    K: tl.constexpr = 1024
"""
)


def test_a_grouped_gemm_divides_its_rows() -> None:
    kernel = launched(GROUPED, (132, 1, 1))
    assert kernel.kernel_class is KernelClass.GEMM
    assert kernel.flops == 2 * 16384 * 2048 * 1024
    assert (kernel.shape["m"], kernel.shape["batch"]) == (2048, 8)


CONVOLUTION = HEAD.format(signature="'arg_X': '*fp16', 'arg_W': '*fp16', 'out_ptr0': '*fp16'") + (
    """
    KERNEL_H : tl.constexpr = 3
    KERNEL_W : tl.constexpr = 3
    STRIDE_H : tl.constexpr = 2
    STRIDE_W : tl.constexpr = 2
    GROUPS : tl.constexpr = 1
    BATCH = 32
    IN_C = 64
    IN_H = 56
    IN_W = 56
    OUT_C = 128
    OUT_H = 28
    OUT_W = 28
"""
)


def test_a_convolution_template_has_its_sizes() -> None:
    kernel = launched(CONVOLUTION, (1, 1, 1))
    assert kernel.kernel_class is KernelClass.CONVOLUTION
    assert kernel.flops == 2 * 32 * 28 * 28 * 128 * 64 * 9


# ---- FlexAttention and its masks ----

CAUSAL = "tmp1 = (m)\n        tmp2 = (n)\n        tmp3 = tmp1 >= tmp2\n"
MASK = """
    if not IS_FULL_BLOCKS:
        {assignments}
        mask_mod_output = {result}

        if CHECK_BLOCK_BOUNDARY:
            mask_mod_output = tl.where(offs_n < KV_LEN, mask_mod_output, False)
"""
WINDOW = (
    CAUSAL
    + "        tmp4 = tmp1 - tmp2\n        tmp5 = tl.full([1], 1024, tl.int32)\n"
    + "        tmp6 = tmp4 < tmp5\n        tmp7 = tmp3 & tmp6\n"
)
DOCUMENTS = (
    CAUSAL
    + "        tmp4 = tl.load(in_ptr9 + tmp1)\n        tmp5 = tl.load(in_ptr9 + tmp2)\n"
    + "        tmp6 = tmp4 == tmp5\n        tmp7 = tmp3 & tmp6\n"
)
PREFIX = (
    CAUSAL + "        tmp4 = tl.full([1], 4096, tl.int64)\n        tmp5 = tmp2 < tmp4\n        tmp6 = tmp3 | tmp5\n"
)
BLOCKS = 65536 // 128


@pytest.mark.parametrize(
    ("assignments", "result", "share", "exact"),
    [
        ("tmp1 = tl.full([1], True, tl.int1)\n", "tmp1", 1.0, True),
        (CAUSAL, "tmp3", (BLOCKS + 1) / 2 / BLOCKS, True),
        # 9 blocks for a query of a window of 8, but for those at the beginning
        (WINDOW, "tmp7", (9 * BLOCKS - 8 * 9 / 2) / BLOCKS**2, True),
        # what documents hide depends on where they begin, which is in memory; what causality hides does not
        (DOCUMENTS, "tmp7", (BLOCKS + 1) / 2 / BLOCKS, False),
        (PREFIX, "tmp6", ((BLOCKS + 1) / 2 * BLOCKS + 32 * 31 / 2) / BLOCKS**2, True),
        ("tmp1 = somebody.knows(m)\n", "tmp1", 1.0, False),
    ],
)
def test_a_mask_leaves_its_share_of_the_pairs(assignments: str, result: str, share: float, exact: bool) -> None:
    found = visible(MASK.format(assignments=assignments.rstrip(), result=result), 65536, 65536, 128, 128)
    assert found.share == pytest.approx(share, rel=0.01)
    assert found.exact is exact


FLEX_SIGNATURE = "'arg_Q': '*bf16', 'arg_K': '*bf16', 'arg_V': '*bf16', {more}'out_ptr0': '*bf16'"
FLEX_SIZES = """
    GQA_SHARED_HEADS : tl.constexpr = 4
    QK_HEAD_DIM : tl.constexpr = 128
    V_HEAD_DIM : tl.constexpr = 128
    SPARSE_Q_BLOCK_SIZE : tl.constexpr = 128
    SPARSE_KV_BLOCK_SIZE : tl.constexpr = 128
    ZQ = 1
    HQ = 32
    Q_LEN = {queries}
    KV_LEN = {keys}
"""


def flex(*, more: str = "", queries: str = "65536", keys: str = "65536", assignments: str = "tmp3 = True") -> str:
    source = HEAD.format(signature=FLEX_SIGNATURE.format(more=more)) + FLEX_SIZES.format(queries=queries, keys=keys)
    return source + MASK.format(assignments=assignments.rstrip(), result="tmp3")


def test_flex_attention_over_long_sequences_is_not_nearly_free() -> None:
    full = launched(flex(), (512, 1, 32))
    assert full.kernel_class is KernelClass.ATTENTION
    assert full.variant == "flex_forward"
    assert full.flops == 4 * 32 * 65536 * 65536 * 128
    assert (full.shape["heads"], full.shape["kv_heads"]) == (32, 8)
    causal = launched(flex(assignments=CAUSAL), (512, 1, 32))
    assert causal.flops == pytest.approx(full.flops / 2, rel=0.01)
    backward = launched(flex(more="'arg_DQ': '*bf16', ", assignments=CAUSAL), (2560, 1, 8))
    assert backward.variant == "flex_backward"
    for kernel in (full, causal, backward):
        assert h100_ns(kernel) > kernel.flops / H100_FLOPS * 1e9
    assert h100_ns(full) == pytest.approx(2 * h100_ns(causal), rel=0.1)


def test_flex_attention_of_dynamic_shapes_has_its_sizes() -> None:
    sizes = (2 * 32 * 65536 * 128, 2 * 8 * 65536 * 128, 2 * 8 * 65536 * 128, 2 * 32 * 65536 * 128)
    dynamic = launched(flex(queries="ks0", keys="ks1"), (512, 1, 32), sizes)
    assert dynamic == launched(flex(), (512, 1, 32))


def test_a_mask_that_depends_on_values_says_so() -> None:
    documents = launched(flex(assignments=DOCUMENTS.replace("tmp3 =", "tmp0 =").replace("tmp7", "tmp3")), (512, 1, 32))
    assert documents.variant == "flex_dense_forward"
    (estimate,) = Estimator(load_device("h100")).estimate([documents])
    assert "depends on values" in estimate.note
    assert estimate.spread >= 0.5


# ---- what nothing is known about ----


def test_a_kernel_without_a_model_takes_what_its_pointers_say() -> None:
    kernel = kernel_of(
        KernelLaunch("kernel", "mystery", grid=(132, 1, 1), block=(128, 1, 1), pointers=(1 << 30, 1 << 20, 0))
    )
    assert not kernel.has_model
    assert kernel.bytes_read + kernel.bytes_written == (1 << 30) + (1 << 20)
    (estimate,) = Estimator(load_device("h100")).estimate([kernel])
    assert estimate.origin is Origin.ROOFLINE
    assert estimate.spread >= 0.5
    assert estimate.ns > (1 << 30) / load_device("h100").memory_bandwidth * 1e9


# ---- kernels of compiled packages ----

TABLE, RESULT = 100 << 20, 1 << 20
LOOK_UP = KernelLaunch(
    "kernel",
    "_Z27split_embedding_look_kernelPfPKfPKlS2_",
    grid=(132, 1, 1),
    block=(128, 1, 1),
    op="package::look_up",
    inputs=(Tensor((TABLE // 4,), "fp32"), Tensor((20_480,), "int64"), Tensor((2049,), "int64")),
    pointers=(RESULT, TABLE, 20_480 * 8, 2049 * 8),
)


def moved(launch: KernelLaunch) -> float:
    kernel = kernel_of(launch)
    assert not kernel.has_model
    return kernel.bytes_read + kernel.bytes_written


def test_a_look_up_of_a_package_touches_the_rows_that_its_indices_name() -> None:
    rest = 20_480 * 8 + 2049 * 8
    assert moved(LOOK_UP) == 10 * RESULT + RESULT + rest  # ten indices for each row of the result
    state = dataclasses.replace(LOOK_UP, pointers=(*LOOK_UP.pointers, TABLE))
    assert moved(state) == 2 * 10 * RESULT + RESULT + rest
    without_lists = dataclasses.replace(LOOK_UP, inputs=())
    assert moved(without_lists) == TABLE + RESULT + rest


def test_a_kernel_of_a_package_is_not_taken_for_one_of_torchs_by_its_name() -> None:
    name = "_Z22my_softmax_warp_kernelPfPKf"
    own = dataclasses.replace(LOOK_UP, name=name, pointers=(RESULT, RESULT))
    assert moved(own) == 2 * RESULT
