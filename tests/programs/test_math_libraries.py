"""The fake math libraries (cuBLAS, cuBLASLt, cuSOLVER, cuSPARSE, cuSPARSELt, cuFFT): one test per family of functions.

Each runs a small program on a virtual GPU and looks at what was recorded. cuBLAS is column-major: torch asks for
the transposed product, so `m` is the number of columns of torch's result and `n` the number of its rows.
"""

from __future__ import annotations

from typing import Any

from helpers.program_parts import Part, ProgramParts
from helpers.script_run import MayaRun, ScriptRun

from maya.trace import RecordKind, read

Call = dict[str, Any]

PROGRAM = ProgramParts()


def library_calls(run: ScriptRun) -> list[Call]:
    """The signatures of all library calls, in order."""
    assert run.exit_code == 0, run.output
    assert "not emulated" not in run.output
    trace = read(run.trace)
    assert trace.complete, trace.problem
    return [trace.signature(number) for number in trace.select(RecordKind.LIBRARY)["signature"].tolist()]


def having(calls: list[Call], **wanted: object) -> list[Call]:
    """The calls whose signatures have these values."""
    return [call for call in calls if all(call.get(key) == value for key, value in wanted.items())]


@PROGRAM.part("""
    import torch

    for name in ("float64", "float32", "float16", "bfloat16", "complex64", "complex128"):
        dtype = getattr(torch, name)
        torch.empty(64, 32, dtype=dtype, device="cuda") @ torch.empty(32, 48, dtype=dtype, device="cuda")
    """)
def test_matmuls_of_every_type_are_recorded(part: Part) -> None:
    calls = part.library_calls
    assert [(call["m"], call["n"], call["k"], call["batch"]) for call in calls] == [(48, 64, 32, 1)] * 6
    assert [(call["lda"], call["ldb"], call["ldc"]) for call in calls] == [(48, 32, 48)] * 6
    types = ["fp64", "fp32", "fp16", "bf16", "complex64", "complex128"]
    assert [call["a_type"] for call in calls] == [call["b_type"] for call in calls] == types
    assert [call["c_type"] for call in calls] == types
    assert [call["compute"] for call in calls] == ["fp64", "fp32", "fp32", "fp32", "fp32", "fp64"]
    assert not any(call["accumulate"] for call in calls)


@PROGRAM.part("""
    import torch

    a = torch.empty(32, 64, dtype=torch.bfloat16, device="cuda")
    b = torch.empty(32, 48, dtype=torch.bfloat16, device="cuda")
    c = torch.empty(64, 48, dtype=torch.bfloat16, device="cuda")
    a.t() @ b
    torch.addmm(c, a.t(), b, beta=0.5)
    torch.bmm(a.expand(4, 32, 64).contiguous().mT, b.expand(4, 32, 48).contiguous())
    """)
def test_transposed_accumulating_and_batched_matmuls_are_recorded(part: Part) -> None:
    transposed, added, batched = part.library_calls
    assert (transposed["transa"], transposed["transb"], transposed["ldb"]) == ("N", "T", 64)
    assert (transposed["accumulate"], added["accumulate"]) == (False, True)
    assert batched["batch"] == 4
    assert (batched["stridea"], batched["strideb"], batched["stridec"]) == (32 * 48, 32 * 64, 64 * 48)


def test_tf32_is_used_where_the_program_allows_it_and_the_device_has_it(maya_run: MayaRun) -> None:
    script = """
        import torch

        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            torch.empty(64, 32, device="cuda") @ torch.empty(32, 48, device="cuda")
            torch.nn.functional.linear(*(torch.empty(s, device="cuda") for s in ((64, 32), (48, 32), (48,))))
        """
    hopper, volta = (library_calls(maya_run(script, "--gpu", gpu)) for gpu in ("h100", "v100"))
    assert [call["compute"] for call in hopper] == ["fp32", "fp32", "tf32", "tf32"]
    assert [call["compute"] for call in volta] == ["fp32", "fp32", "fp32", "fp32"]


@PROGRAM.part("""
    import torch

    x = torch.empty(64, 32, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    layer = torch.nn.Linear(32, 48, dtype=torch.bfloat16, device="cuda")
    layer(x).float().square().mean().backward()
    with torch.no_grad():
        for gelu in (False, True):
            torch._addmm_activation(layer.bias, x, layer.weight.t(), use_gelu=gelu)
    """)
def test_linear_layers_fuse_bias_and_activation(part: Part) -> None:
    calls = part.library_calls
    forward, relu, gelu = having(calls, call="cublasLtMatmul")
    assert (forward["m"], forward["n"], forward["k"], forward["transa"]) == (48, 64, 32, "T")
    assert (forward["epilogue"], forward["bias_type"], forward["compute"]) == ("bias", "bf16", "fp32")
    assert (relu["epilogue"], gelu["epilogue"]) == ("relu_bias", "gelu_bias")
    assert len(having(calls, m=32, n=64, k=48)) == 1  # gradient of the input
    assert len(having(calls, m=32, n=48, k=64)) == 1  # gradient of the weight


@PROGRAM.part("""
    import torch

    ones = torch.ones(128, 128, dtype=torch.int8, device="cuda")
    torch._int_mm(ones, ones.t())
    a = torch.empty(64, 32, dtype=torch.float8_e4m3fn, device="cuda")
    b = torch.empty(48, 32, dtype=torch.float8_e4m3fn, device="cuda").t()
    scale = torch.ones((), device="cuda")
    bias = torch.empty(48, dtype=torch.bfloat16, device="cuda")
    torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True)
    rows, columns = torch.ones(64, 1, device="cuda"), torch.ones(1, 48, device="cuda")
    if torch.version.cuda >= "12.9":  # before, torch has a kernel of its own for this
        torch._scaled_mm(a, b, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16)
    else:
        torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    """)
def test_fp8_and_int8_matmuls_are_recorded(part: Part) -> None:
    integers, tensorwise, rowwise = part.library_calls
    assert (integers["a_type"], integers["d_type"], integers["compute"]) == ("int8", "int32", "int32")
    assert (tensorwise["a_type"], tensorwise["d_type"], tensorwise["epilogue"]) == ("fp8_e4m3", "bf16", "bias")
    assert (tensorwise["a_scale"], tensorwise["b_scale"], tensorwise["fast_accumulation"]) == ("tensor", "tensor", True)
    assert (rowwise["m"], rowwise["n"], rowwise["k"], rowwise["fast_accumulation"]) == (48, 64, 32, False)
    assert rowwise["a_scale"] in ("outer_vec", "tensor")


BLOCK_SCALES = """
    import torch

    a = torch.empty(128, 128, dtype=torch.float8_e4m3fn, device="cuda")
    scale = torch.empty(512, dtype=torch.float8_e8m0fnu, device="cuda")
    try:
        torch._scaled_mm(a, a.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
    """


def test_block_scales_are_recorded_where_the_device_has_them(maya_run: MayaRun) -> None:
    (call,) = library_calls(maya_run(BLOCK_SCALES, "--gpu", "b200"))
    assert (call["a_scale"], call["b_scale"]) == ("vec32_ue8m0", "vec32_ue8m0")


def test_block_scales_are_refused_where_the_device_lacks_them(maya_run: MayaRun) -> None:
    run = maya_run(BLOCK_SCALES, "--gpu", "h100")
    assert library_calls(run) == []
    assert "CUBLAS_STATUS_NOT_SUPPORTED" in run.stdout


@PROGRAM.part("""
    import torch

    x = torch.empty(64, dtype=torch.float64, device="cuda")
    torch.dot(x, x)
    torch.dot(x.half(), x.half())
    torch.mv(torch.empty(32, 64, dtype=torch.float64, device="cuda"), x)
    """)
def test_dot_products_and_matrix_vector_products_are_recorded(part: Part) -> None:
    dot, half_dot, product = part.library_calls
    assert dot == {"call": "cublasDdot", "n": 64, "incx": 1, "incy": 1, "type": "fp64"}
    assert half_dot == {"call": "cublasDotEx", "n": 64, "incx": 1, "incy": 1, "type": "fp16"}
    assert product == {"call": "cublasDgemv", "m": 64, "n": 32, "lda": 64, "trans": "T", "type": "fp64"}


def test_invalid_arguments_and_missing_functions_are_reported(maya_run: MayaRun) -> None:
    run = maya_run("""
        import ctypes, os, torch

        path = next(path for path in os.environ["LD_PRELOAD"].split(":") if "libcublas.so" in path)
        cublas = ctypes.CDLL(path)
        handle, scalar = ctypes.c_void_p(), ctypes.byref(ctypes.c_float())
        torch.cuda.init()
        assert cublas.cublasCreate_v2(ctypes.byref(handle)) == 0

        def sgemm(handle, transa=0, m=8, lda=8):
            return cublas.cublasSgemm_v2(handle, transa, 0, m, 8, 8, scalar, None, lda, None, 8, scalar, None, 8)

        print(sgemm(handle), sgemm(None), sgemm(handle, transa=9), sgemm(handle, m=-1), sgemm(handle, lda=7))
        print(cublas.cublasSrotg_v2(handle, scalar, scalar, scalar, scalar))
        """)
    assert run.exit_code == 0, run.output
    assert run.stdout.splitlines() == ["0 1 7 7 7", "15"]  # success, not initialised, invalid values; not supported
    assert "cublasSrotg_v2" in run.stderr


def test_a_handle_takes_device_memory_of_its_own(maya_run: MayaRun) -> None:
    run = maya_run("""
        import torch

        def outside_the_allocator():
            free, total = torch.cuda.mem_get_info()
            return total - free - torch.cuda.memory_reserved()

        x = torch.empty(16, 16, device="cuda")
        before = outside_the_allocator()
        x @ x
        print(outside_the_allocator() - before)
        """)
    assert run.exit_code == 0, run.output
    assert int(run.stdout) == 32 * 2**20


MATRICES = """
    import torch
    from torch import linalg

    dtypes = (torch.float32, torch.complex128)

    def matrix(dtype, *shape):
        return torch.empty(*shape, dtype=dtype, device="cuda")
    """
# Of functions for the two dtypes: the letter and, for orthogonal or unitary matrices, the word in their names.
NAMES_OF_TYPES = {"fp32": ("S", "or"), "complex128": ("Z", "un")}


@PROGRAM.part(
    MATRICES
    + """
    for dtype in dtypes:
        tall = matrix(dtype, 300, 200)
        linalg.qr(tall)
        linalg.householder_product(tall, matrix(dtype, 200))
        torch.ormqr(tall, matrix(dtype, 200), matrix(dtype, 300, 5))
    """
)
def test_qr_factorisations_are_recorded(part: Part) -> None:
    for type_name, (letter, orthogonal) in NAMES_OF_TYPES.items():
        calls = having(part.library_calls, type=type_name)
        assert having(calls, call="cusolverDnXgeqrf", m=300, n=200, batch=1)
        assert having(calls, call=f"cusolverDn{letter}{orthogonal}gqr", m=300, n=200, k=200)
        assert having(calls, call=f"cusolverDn{letter}{orthogonal}mqr", m=300, n=5, k=200, side="L")


@PROGRAM.part(
    MATRICES
    + """
    for dtype in dtypes:
        square = matrix(dtype, 200, 200)
        linalg.cholesky(square), linalg.cholesky(matrix(dtype, 3, 200, 200))
        torch.cholesky_solve(matrix(dtype, 200, 40), square), torch.cholesky_inverse(square)
    """
)
def test_cholesky_factorisations_are_recorded(part: Part) -> None:
    for type_name, (letter, _) in NAMES_OF_TYPES.items():
        calls = having(part.library_calls, type=type_name)
        assert having(calls, call="cusolverDnXpotrf", n=200, uplo="L")
        assert having(calls, call="cusolverDnXpotrs", n=200, nrhs=40)
        assert having(calls, call=f"cusolverDn{letter}potrfBatched", n=200, batch=3)


@PROGRAM.part(
    MATRICES
    + """
    for dtype in dtypes:
        linalg.lu_solve(*linalg.lu_factor(matrix(dtype, 200, 200)), matrix(dtype, 200, 40))
    """
)
def test_lu_factorisations_are_recorded(part: Part) -> None:
    for type_name, (letter, _) in NAMES_OF_TYPES.items():
        calls = having(part.library_calls, type=type_name)
        assert having(calls, call=f"cusolverDn{letter}getrf", m=200, n=200)
        assert having(calls, call=f"cublas{letter}trsm", m=200, n=40, uplo="L", diag="U")


@PROGRAM.part(
    MATRICES
    + """
    for dtype in dtypes:
        linalg.solve(matrix(dtype, 16, 16), matrix(dtype, 16, 4))
        linalg.solve(matrix(dtype, 3, 16, 16), matrix(dtype, 3, 16, 4))
    """
)
def test_linear_solves_are_recorded(part: Part) -> None:
    for type_name, (letter, _) in NAMES_OF_TYPES.items():
        calls = having(part.library_calls, type=type_name)
        assert having(calls, call=f"cusolverDn{letter}getrs", n=16, nrhs=4, trans="N")
        assert having(calls, call=f"cublas{letter}getrfBatched", n=16, batch=3)
        assert having(calls, call=f"cublas{letter}getrsBatched", n=16, nrhs=4, batch=3, trans="N")


@PROGRAM.part(
    MATRICES
    + """
    for dtype in dtypes:
        square = matrix(dtype, 200, 200)
        linalg.inv(square), linalg.det(square), linalg.slogdet(matrix(dtype, 3, 200, 200))
    """
)
def test_inverses_and_determinants_are_recorded(part: Part) -> None:
    for type_name, (letter, _) in NAMES_OF_TYPES.items():
        calls = having(part.library_calls, type=type_name)
        assert len(having(calls, call=f"cusolverDn{letter}getrf", m=200, n=200)) == 2
        solves = [(call["uplo"], call["diag"]) for call in having(calls, call=f"cublas{letter}trsm", m=200, n=200)]
        assert solves == [("L", "U"), ("U", "N")]


@PROGRAM.part(
    MATRICES
    + """
    for dtype in dtypes:
        linalg.ldl_solve(*linalg.ldl_factor(matrix(dtype, 200, 200)), matrix(dtype, 200, 40))
    """
)
def test_ldl_factorisations_are_recorded(part: Part) -> None:
    for type_name, (letter, _) in NAMES_OF_TYPES.items():
        calls = having(part.library_calls, type=type_name)
        assert having(calls, call=f"cusolverDn{letter}sytrf", n=200, uplo="L")
        assert having(calls, call="cusolverDnXsytrs", n=200, nrhs=40)


@PROGRAM.part(
    MATRICES
    + """
    for dtype in dtypes:
        linalg.solve_triangular(matrix(dtype, 200, 200), matrix(dtype, 200, 40), upper=True)
    """
)
def test_triangular_solves_are_recorded(part: Part) -> None:
    for type_name, (letter, _) in NAMES_OF_TYPES.items():
        (solve,) = having(part.library_calls, call=f"cublas{letter}trsm")
        assert (solve["type"], solve["m"], solve["n"], solve["side"]) == (type_name, 200, 40, "L")
        assert (solve["uplo"], solve["trans"], solve["diag"]) == ("L", "T", "N")  # row-major: an upper one, transposed


@PROGRAM.part(
    MATRICES
    + """
    for dtype in dtypes:
        linalg.lstsq(matrix(dtype, 300, 200), matrix(dtype, 300, 40))
    """
)
def test_least_squares_are_recorded(part: Part) -> None:
    for type_name, (letter, orthogonal) in NAMES_OF_TYPES.items():
        calls = having(part.library_calls, type=type_name)
        assert having(calls, call="cusolverDnXgeqrf", m=300, n=200)
        assert having(calls, call=f"cusolverDn{letter}{orthogonal}mqr", m=300, n=40, k=200, side="L")
        assert having(calls, call=f"cublas{letter}trsm", m=200, n=40, side="L", uplo="U", diag="N")


@PROGRAM.part("""
    import torch
    from torch import linalg

    tall, square = (torch.empty(s, device="cuda") for s in ((300, 200), (200, 200)))
    for driver in ("gesvd", "gesvdj", "gesvda"):
        linalg.svd(tall, full_matrices=False, driver=driver)
    linalg.svdvals(tall)
    linalg.eigh(square), linalg.eigvalsh(square), linalg.eigvals(square)
    """)
def test_singular_values_and_eigenvalues_are_recorded(part: Part) -> None:
    calls = part.library_calls
    assert having(calls, call="cusolverDnSgesvd", m=300, n=200, job="SS", type="fp32")
    assert having(calls, call="cusolverDnSgesvdj", m=300, n=200, job="V")
    assert having(calls, call="cusolverDnSgesvdaStridedBatched", m=300, n=200, job="V")
    symmetric = [call for call in calls if "syev" in call["call"]]
    assert [(call["n"], call["job"], call["uplo"]) for call in symmetric] == [(200, "V", "L"), (200, "N", "L")]


@PROGRAM.part("""
    import torch
    from torch import fft

    spectrum = fft.rfft(torch.empty(4, 100, device="cuda"))
    fft.irfft(spectrum, n=100)
    fft.ifft2(torch.empty(4, 32, 64, dtype=torch.complex128, device="cuda"))
    fft.fftn(torch.empty(2, 8, 16, 32, dtype=torch.complex64, device="cuda"), dim=(1, 2, 3))
    fft.fft(torch.empty(4, 64, dtype=torch.float16, device="cuda"))
    """)
def test_fourier_transforms_are_recorded_with_their_sizes(part: Part) -> None:
    real, back, square, cube, half = part.library_calls
    assert (real["dims"], real["batch"], real["direction"]) == ([100], 4, "forward")
    assert (real["input_type"], real["output_type"]) == ("fp32", "complex64")
    assert (real["input_distance"], real["output_distance"]) == (100, 51)
    assert (back["dims"], back["direction"], back["output_type"]) == ([100], "inverse", "fp32")
    assert (square["dims"], square["batch"], square["direction"]) == ([32, 64], 4, "inverse")
    assert (square["compute"], square["input_distance"]) == ("complex128", 32 * 64)
    assert (cube["dims"], cube["batch"]) == ([8, 16, 32], 2)
    assert (half["input_type"], half["output_type"]) == ("fp16", "complex32")


# A 4 x 4 matrix with 6 values, on the host and on the device.
SPARSE = """
    import torch

    offsets, columns = torch.tensor([0, 2, 3, 5, 6]), torch.tensor([0, 2, 1, 0, 3, 2])
    on_host = torch.sparse_csr_tensor(offsets.int(), columns.int(), torch.arange(1.0, 7.0), size=(4, 4))
    matrix = on_host.cuda()
    """


@PROGRAM.part(
    SPARSE
    + """
    dense = torch.empty(4, 8, device="cuda")
    matrix @ dense
    matrix @ dense[:, 0].contiguous()
    torch.triangular_solve(dense, matrix, upper=False)
    torch.triangular_solve(dense[:, :1].contiguous(), matrix, upper=True, unitriangular=True)
    torch.sparse.sampled_addmm(matrix, dense, dense.t())
    """
)
def test_sparse_matrices_with_dense_ones(part: Part) -> None:
    calls = part.library_calls
    (product,) = having(calls, call="cusparseSpMM")
    assert (product["format"], product["rows"], product["cols"], product["nnz"], product["n"]) == ("csr", 4, 4, 6, 8)
    assert (product["type"], product["index_type"], product["b_order"]) == ("fp32", "int32", "row")
    assert having(calls, call="cusparseSpMV", nnz=6, n=1)
    assert having(calls, call="cusparseSpSM_analysis", n=8, uplo="L", diag="N")
    assert having(calls, call="cusparseSpSM_solve", n=8, uplo="L", diag="N")
    assert having(calls, call="cusparseSpSV_solve", n=1, uplo="U", diag="U")
    assert having(calls, call="cusparseSDDMM", rows=4, cols=4, nnz=6, k=8)


@PROGRAM.part(
    SPARSE
    + """
    def pattern(result):
        return result.crow_indices().tolist(), result.col_indices().tolist()

    print(pattern(matrix @ matrix) == pattern(on_host @ on_host))
    lower = torch.sparse_csr_tensor(torch.arange(5).int(), torch.zeros(4).int(), torch.ones(4), size=(4, 4))
    print(pattern(matrix + lower.cuda()) == ([0, 2, 4, 6, 8], [0, 2, 0, 1, 0, 3, 0, 2]))
    """
)
def test_patterns_of_sparse_sums_and_products_are_real(part: Part) -> None:
    calls = part.library_calls
    assert part.stdout.splitlines() == ["True", "True"]
    assert having(calls, call="cusparseSpGEMM_compute", rows=4, cols=4, k=4, nnz_a=6, nnz_b=6, nnz=8)
    assert having(calls, call="cusparseScsrgeam2", rows=4, cols=4, nnz_a=6, nnz_b=4)


def test_sparse_results_of_unknown_size_are_reported(maya_run: MayaRun) -> None:
    """Values spread evenly: about as many in the product as pairs of values meet, less those in the same place."""
    run = maya_run(
        """
        import torch

        offsets = torch.arange(1001, dtype=torch.int32, device="cuda") * 10
        columns = torch.empty(10000, dtype=torch.int32, device="cuda")
        values = torch.empty(10000, device="cuda")
        a, b = (
            torch.sparse_csr_tensor(offsets, columns, values, size=(1000, 1000), check_invariants=False) for _ in "ab"
        )
        print((a @ b).values().numel(), (a + b).values().numel())
        """,
        "--compute",
        "none",
    )
    assert run.exit_code == 0, run.output
    assert run.stdout.split() == ["90909", "20000"]


@PROGRAM.part("""
    import torch

    offsets, columns = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    matrix = torch.sparse_bsr_tensor(offsets, columns, torch.ones(2, 2, 2), size=(4, 4)).cuda()
    dense = torch.empty(4, 8, device="cuda")
    torch.mv(matrix, dense[:, 0].contiguous())
    torch.triangular_solve(dense, matrix, upper=False)
    """)
def test_block_sparse_matrices(part: Part) -> None:
    calls = part.library_calls
    assert having(calls, call="cusparseSbsrmv", format="bsr", rows=4, cols=4, nnz=8, block=2, n=1)
    assert having(calls, call="cusparseSbsrsm2_analysis", rows=4, nnz=8, n=8, uplo="L")
    assert having(calls, call="cusparseSbsrsm2_solve", rows=4, nnz=8, n=8, uplo="L")


@PROGRAM.part("""
    import torch
    from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured

    SparseSemiStructuredTensor._FORCE_CUTLASS = False
    weight = torch.tensor([0, 0, 1, 1], dtype=torch.float16).tile(128, 64).cuda()
    x = torch.empty(512, 256, dtype=torch.float16, device="cuda")
    bias = torch.empty(128, dtype=torch.float16, device="cuda")
    result = torch.nn.functional.linear(x, to_sparse_semi_structured(weight), bias)
    assert result.shape == (512, 128)
    """)
def test_semi_structured_matrices(part: Part) -> None:
    calls = part.library_calls
    assert having(calls, call="cusparseLtSpMMACompress2", rows=128, cols=256, type="fp16")
    (product,) = having(calls, call="cusparseLtMatmul")
    assert (product["m"], product["n"], product["k"], product["sparse"]) == (128, 512, 256, "a")
    assert (product["a_type"], product["compute"], product["bias"]) == ("fp16", "fp32", True)
