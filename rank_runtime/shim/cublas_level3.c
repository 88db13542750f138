/* cuBLAS level 3 without gemm: symmetric, rank-k and triangular matrices. In: shapes, triangle, side. Out: a record. */
#include "cublas_handle.h"

/* ---- C = A B with A symmetric or Hermitian ---- */

static int symmetric_call(cublas_handle *handle, const char *call, const char *type, int side, int uplo, int m, int n, int lda,
                          int ldb, int ldc) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    const char *side_letter = side_name(side), *uplo_letter = fill_name(uplo);
    if (side_letter == NULL || uplo_letter == NULL || m < 0 || n < 0 || !leading_dimension_holds(lda, side == 0 ? m : n) ||
        !leading_dimension_holds(ldb, m) || !leading_dimension_holds(ldc, m))
        return CUBLAS_INVALID_VALUE;
    if (m == 0 || n == 0) return CUBLAS_SUCCESS;
    return cublas_status(maya_library_call(handle->stream,
                                           "{\"call\":\"%s\",\"m\":%d,\"n\":%d,\"side\":\"%s\",\"uplo\":\"%s\","
                                           "\"lda\":%d,\"ldb\":%d,\"ldc\":%d,\"type\":\"%s\"}",
                                           call, m, n, side_letter, uplo_letter, lda, ldb, ldc, type));
}

#define SYMMETRIC(function, type) \
    MAYA_API int function##_v2(cublas_handle *handle, int side, int uplo, int m, int n, const void *alpha, const void *a, \
                               int lda, const void *b, int ldb, const void *beta, void *c, int ldc) { \
        return symmetric_call(handle, #function, type, side, uplo, m, n, lda, ldb, ldc); \
    }
SYMMETRIC(cublasSsymm, "fp32")
SYMMETRIC(cublasDsymm, "fp64")
SYMMETRIC(cublasCsymm, "complex64")
SYMMETRIC(cublasZsymm, "complex128")
SYMMETRIC(cublasChemm, "complex64")
SYMMETRIC(cublasZhemm, "complex128")

/* ---- C = A A' and C = A B' + B A' ---- */

static int rank_k_call(cublas_handle *handle, const char *call, const char *type, int uplo, int trans, int n, int k, int lda,
                       int ldc) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    const char *uplo_letter = fill_name(uplo), *trans_letter = operation_name(trans);
    if (uplo_letter == NULL || trans_letter == NULL || n < 0 || k < 0 ||
        !leading_dimension_holds(lda, trans == OPERATION_NONE ? n : k) || !leading_dimension_holds(ldc, n))
        return CUBLAS_INVALID_VALUE;
    if (n == 0) return CUBLAS_SUCCESS;
    return cublas_status(maya_library_call(handle->stream,
                                           "{\"call\":\"%s\",\"n\":%d,\"k\":%d,\"uplo\":\"%s\",\"trans\":\"%s\","
                                           "\"lda\":%d,\"ldc\":%d,\"type\":\"%s\"}",
                                           call, n, k, uplo_letter, trans_letter, lda, ldc, type));
}

#define RANK_K(function, type) \
    MAYA_API int function##_v2(cublas_handle *handle, int uplo, int trans, int n, int k, const void *alpha, const void *a, \
                               int lda, const void *beta, void *c, int ldc) { \
        return rank_k_call(handle, #function, type, uplo, trans, n, k, lda, ldc); \
    }
RANK_K(cublasSsyrk, "fp32")
RANK_K(cublasDsyrk, "fp64")
RANK_K(cublasCsyrk, "complex64")
RANK_K(cublasZsyrk, "complex128")
RANK_K(cublasCherk, "complex64")
RANK_K(cublasZherk, "complex128")

#define RANK_2K(function, type) \
    MAYA_API int function##_v2(cublas_handle *handle, int uplo, int trans, int n, int k, const void *alpha, const void *a, \
                               int lda, const void *b, int ldb, const void *beta, void *c, int ldc) { \
        return rank_k_call(handle, #function, type, uplo, trans, n, k, lda, ldc); \
    }
RANK_2K(cublasSsyr2k, "fp32")
RANK_2K(cublasDsyr2k, "fp64")
RANK_2K(cublasCsyr2k, "complex64")
RANK_2K(cublasZsyr2k, "complex128")
RANK_2K(cublasCher2k, "complex64")
RANK_2K(cublasZher2k, "complex128")

/* ---- multiplication by a triangular matrix, and triangular solves ---- */

typedef struct {
    const char *call, *type;
    int side, uplo, trans, diag, m, n, lda, ldb, batch;
} triangular;

static int triangular_call(cublas_handle *handle, const triangular *p) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    const char *side = side_name(p->side), *uplo = fill_name(p->uplo);
    const char *trans = operation_name(p->trans), *diag = diagonal_name(p->diag);
    if (side == NULL || uplo == NULL || trans == NULL || diag == NULL || p->m < 0 || p->n < 0 || p->batch < 0 ||
        !leading_dimension_holds(p->lda, p->side == 0 ? p->m : p->n) || !leading_dimension_holds(p->ldb, p->m))
        return CUBLAS_INVALID_VALUE;
    if (p->m == 0 || p->n == 0 || p->batch == 0) return CUBLAS_SUCCESS;
    return cublas_status(maya_library_call(handle->stream,
                                           "{\"call\":\"%s\",\"m\":%d,\"n\":%d,\"batch\":%d,\"side\":\"%s\","
                                           "\"uplo\":\"%s\",\"trans\":\"%s\",\"diag\":\"%s\",\"lda\":%d,\"ldb\":%d,"
                                           "\"type\":\"%s\"}",
                                           p->call, p->m, p->n, p->batch, side, uplo, trans, diag, p->lda, p->ldb, p->type));
}

#define TRIANGULAR(function, count) \
    &(triangular) { \
        .call = function, .type = element_type, .side = side, .uplo = uplo, .trans = trans, .diag = diag, .m = m, .n = n, \
        .lda = lda, .ldb = ldb, .batch = count \
    }

#define TRIANGULAR_MATRICES(letter, type) \
    MAYA_API int cublas##letter##trmm_v2(cublas_handle *handle, int side, int uplo, int trans, int diag, int m, int n, \
                                         const void *alpha, const void *a, int lda, const void *b, int ldb, void *c, \
                                         int ldc) { \
        static const char element_type[] = type; \
        return triangular_call(handle, TRIANGULAR("cublas" #letter "trmm", 1)); \
    } \
    MAYA_API int cublas##letter##trsm_v2(cublas_handle *handle, int side, int uplo, int trans, int diag, int m, int n, \
                                         const void *alpha, const void *a, int lda, void *b, int ldb) { \
        static const char element_type[] = type; \
        return triangular_call(handle, TRIANGULAR("cublas" #letter "trsm", 1)); \
    } \
    MAYA_API int cublas##letter##trsmBatched(cublas_handle *handle, int side, int uplo, int trans, int diag, int m, int n, \
                                             const void *alpha, const void *const *a, int lda, void *const *b, int ldb, \
                                             int batch) { \
        static const char element_type[] = type; \
        return triangular_call(handle, TRIANGULAR("cublas" #letter "trsmBatched", batch)); \
    }
ALL_TYPES(TRIANGULAR_MATRICES)
