/* cuBLAS: GEMMs, single and batched.
 *
 * In: cublas<T>gemm and its Ex, Batched and StridedBatched relatives. Out: one record with everything that decides how
 * long the GEMM takes, including the effective precision (the handle's math mode may turn fp32 into tf32)
 * and whether C is read ("accumulate": beta is not zero).
 */
#include "cublas_handle.h"

#include <stdio.h>

typedef enum { ONE_GEMM, STRIDED_BATCH, POINTER_BATCH } batching;

typedef struct {
    const char *call;
    batching batching;
    int batch;
    int transa, transb;
    int m, n, k;
    int a_type, b_type, c_type;
    int lda, ldb, ldc;
    long long stridea, strideb, stridec;
    int compute;
} gemm;

/* The effective compute type: for single precision, the handle's math mode chooses it. */
static int effective_compute(const cublas_handle *handle, const gemm *p) {
    bool single = p->a_type == TYPE_FP32 || p->a_type == TYPE_COMPLEX64;
    if (p->compute != COMPUTE_FP32 || !single) return p->compute;
    switch (handle->math_mode & MATH_MODE_BITS) {
        case MATH_TENSOR_OP: return COMPUTE_FP32_FAST_FP16;
        case MATH_PEDANTIC: return COMPUTE_FP32_PEDANTIC;
        case MATH_TF32: return COMPUTE_FP32_FAST_TF32;
        case MATH_BF16X9: return COMPUTE_FP32_EMULATED_BF16X9;
        default: return COMPUTE_FP32;
    }
}

/* alpha and beta have the precision of the computation, and are complex when the matrices are. */
static size_t scalar_bytes(const gemm *p) {
    size_t real = 4;
    if (p->compute == COMPUTE_FP16 || p->compute == COMPUTE_FP16_PEDANTIC) real = 2;
    if (p->compute == COMPUTE_FP64 || p->compute == COMPUTE_FP64_PEDANTIC || p->compute == COMPUTE_FP64_EMULATED) real = 8;
    return data_type_is_complex(p->c_type) ? 2 * real : real;
}

/* The value of a beta in device memory is unknown at the call, so C counts as read. */
static bool reads_c(const cublas_handle *handle, const gemm *p, const void *beta) {
    static const char zero[16];
    return handle->pointer_mode == POINTER_DEVICE || memcmp(beta, zero, scalar_bytes(p)) != 0;
}

static int record_gemm(cublas_handle *handle, const gemm *p, const void *beta) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    const char *transa = operation_name(p->transa), *transb = operation_name(p->transb);
    if (transa == NULL || transb == NULL || p->m < 0 || p->n < 0 || p->k < 0 || p->batch < 0 || beta == NULL ||
        !leading_dimension_holds(p->lda, p->transa == OPERATION_NONE ? p->m : p->k) ||
        !leading_dimension_holds(p->ldb, p->transb == OPERATION_NONE ? p->k : p->n) || !leading_dimension_holds(p->ldc, p->m))
        return CUBLAS_INVALID_VALUE;
    const char *a_type = data_type_name(p->a_type), *b_type = data_type_name(p->b_type);
    const char *c_type = data_type_name(p->c_type), *compute = compute_type_name(effective_compute(handle, p));
    if (a_type == NULL || b_type == NULL || c_type == NULL || compute == NULL) return CUBLAS_NOT_SUPPORTED;
    if (p->m == 0 || p->n == 0 || p->batch == 0) return CUBLAS_SUCCESS;

    char strides[96] = "";
    if (p->batching == STRIDED_BATCH)
        snprintf(strides, sizeof strides, ",\"stridea\":%lld,\"strideb\":%lld,\"stridec\":%lld", p->stridea, p->strideb,
                 p->stridec);
    char sm_count[32] = "";
    if (handle->sm_count_target != 0) snprintf(sm_count, sizeof sm_count, ",\"sm_count\":%d", handle->sm_count_target);
    return cublas_status(maya_library_call(
        handle->stream,
        "{\"call\":\"%s\",\"m\":%d,\"n\":%d,\"k\":%d,\"batch\":%d,\"transa\":\"%s\",\"transb\":\"%s\",\"lda\":%d,"
        "\"ldb\":%d,\"ldc\":%d%s,\"a_type\":\"%s\",\"b_type\":\"%s\",\"c_type\":\"%s\",\"compute\":\"%s\","
        "\"accumulate\":%s%s}",
        p->call, p->m, p->n, p->k, p->batch, transa, transb, p->lda, p->ldb, p->ldc, strides, a_type, b_type, c_type, compute,
        reads_c(handle, p, beta) ? "true" : "false", sm_count));
}

/* The data type of a typed function, and the compute type that goes with it. */
enum {
    TYPE_OF_S = TYPE_FP32,
    TYPE_OF_D = TYPE_FP64,
    TYPE_OF_C = TYPE_COMPLEX64,
    TYPE_OF_Z = TYPE_COMPLEX128,
    TYPE_OF_H = TYPE_FP16
};
enum {
    COMPUTE_OF_S = COMPUTE_FP32,
    COMPUTE_OF_D = COMPUTE_FP64,
    COMPUTE_OF_C = COMPUTE_FP32,
    COMPUTE_OF_Z = COMPUTE_FP64,
    COMPUTE_OF_H = COMPUTE_FP16
};

#define TYPED(letter) \
    .a_type = TYPE_OF_##letter, .b_type = TYPE_OF_##letter, .c_type = TYPE_OF_##letter, .compute = COMPUTE_OF_##letter
#define SHAPE .transa = transa, .transb = transb, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, .ldc = ldc

#define GEMM(letter, symbol) \
    MAYA_API int symbol(cublas_handle *handle, int transa, int transb, int m, int n, int k, const void *alpha, const void *a, \
                        int lda, const void *b, int ldb, const void *beta, void *c, int ldc) { \
        return record_gemm(handle, &(gemm){.call = "cublas" #letter "gemm", .batch = 1, TYPED(letter), SHAPE}, beta); \
    }

#define GEMM_STRIDED_BATCHED(letter) \
    MAYA_API int cublas##letter##gemmStridedBatched(cublas_handle *handle, int transa, int transb, int m, int n, int k, \
                                                    const void *alpha, const void *a, int lda, long long stridea, \
                                                    const void *b, int ldb, long long strideb, const void *beta, void *c, \
                                                    int ldc, long long stridec, int batch) { \
        return record_gemm(handle, \
                           &(gemm){.call = "cublas" #letter "gemmStridedBatched", \
                                   .batching = STRIDED_BATCH, \
                                   .batch = batch, \
                                   .stridea = stridea, \
                                   .strideb = strideb, \
                                   .stridec = stridec, \
                                   TYPED(letter), \
                                   SHAPE}, \
                           beta); \
    }

#define GEMM_BATCHED(letter) \
    MAYA_API int cublas##letter##gemmBatched(cublas_handle *handle, int transa, int transb, int m, int n, int k, \
                                             const void *alpha, const void *const *a, int lda, const void *const *b, int ldb, \
                                             const void *beta, void *const *c, int ldc, int batch) { \
        return record_gemm( \
            handle, \
            &(gemm){.call = "cublas" #letter "gemmBatched", .batching = POINTER_BATCH, .batch = batch, TYPED(letter), SHAPE}, \
            beta); \
    }

GEMM(S, cublasSgemm_v2)
GEMM(D, cublasDgemm_v2)
GEMM(C, cublasCgemm_v2)
GEMM(Z, cublasZgemm_v2)
GEMM(H, cublasHgemm)
GEMM_STRIDED_BATCHED(S)
GEMM_STRIDED_BATCHED(D)
GEMM_STRIDED_BATCHED(C)
GEMM_STRIDED_BATCHED(Z)
GEMM_STRIDED_BATCHED(H)
GEMM_BATCHED(S)
GEMM_BATCHED(D)
GEMM_BATCHED(C)
GEMM_BATCHED(Z)
GEMM_BATCHED(H)

/* ---- matrices of any type ---- */

#define ANY_TYPES .a_type = a_type, .b_type = b_type, .c_type = c_type

MAYA_API int cublasSgemmEx(cublas_handle *handle, int transa, int transb, int m, int n, int k, const float *alpha,
                           const void *a, int a_type, int lda, const void *b, int b_type, int ldb, const float *beta, void *c,
                           int c_type, int ldc) {
    return record_gemm(handle, &(gemm){.call = "cublasSgemmEx", .batch = 1, ANY_TYPES, SHAPE, .compute = COMPUTE_FP32}, beta);
}

MAYA_API int cublasGemmEx(cublas_handle *handle, int transa, int transb, int m, int n, int k, const void *alpha, const void *a,
                          int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type,
                          int ldc, int compute, int algorithm) {
    return record_gemm(handle, &(gemm){.call = "cublasGemmEx", .batch = 1, ANY_TYPES, SHAPE, .compute = compute}, beta);
}

MAYA_API int cublasGemmStridedBatchedEx(cublas_handle *handle, int transa, int transb, int m, int n, int k, const void *alpha,
                                        const void *a, int a_type, int lda, long long stridea, const void *b, int b_type,
                                        int ldb, long long strideb, const void *beta, void *c, int c_type, int ldc,
                                        long long stridec, int batch, int compute, int algorithm) {
    return record_gemm(handle,
                       &(gemm){.call = "cublasGemmStridedBatchedEx",
                               .batching = STRIDED_BATCH,
                               .batch = batch,
                               .stridea = stridea,
                               .strideb = strideb,
                               .stridec = stridec,
                               ANY_TYPES,
                               SHAPE,
                               .compute = compute},
                       beta);
}

MAYA_API int cublasGemmBatchedEx(cublas_handle *handle, int transa, int transb, int m, int n, int k, const void *alpha,
                                 const void *const *a, int a_type, int lda, const void *const *b, int b_type, int ldb,
                                 const void *beta, void *const *c, int c_type, int ldc, int batch, int compute, int algorithm) {
    return record_gemm(
        handle,
        &(gemm){.call = "cublasGemmBatchedEx", .batching = POINTER_BATCH, .batch = batch, ANY_TYPES, SHAPE, .compute = compute},
        beta);
}
