/* cuBLAS level 2: a matrix and vectors. In: shapes, triangle, operation. Out: one record per call. */
#include "cublas_handle.h"
#include "cublas_signature.h"

typedef struct {
    const char *call, *type;
    int m, n, lda; /* m rows, n columns; square matrices have m == n */
    bool has_trans, has_uplo, has_diag;
    int trans, uplo, diag;
} matrix_vector;

static int level2_call(cublas_handle *handle, const matrix_vector *p) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    const char *trans = operation_name(p->trans), *uplo = fill_name(p->uplo), *diag = diagonal_name(p->diag);
    if (trans == NULL || uplo == NULL || diag == NULL || p->m < 0 || p->n < 0 || !leading_dimension_holds(p->lda, p->m))
        return CUBLAS_INVALID_VALUE;
    if (p->m == 0 || p->n == 0) return CUBLAS_SUCCESS;
    more_keys keys = {.used = 0};
    add_word(&keys, "trans", p->has_trans ? trans : NULL);
    add_word(&keys, "uplo", p->has_uplo ? uplo : NULL);
    add_word(&keys, "diag", p->has_diag ? diag : NULL);
    return cublas_status(maya_library_call(handle->stream, "{\"call\":\"%s\",\"m\":%d,\"n\":%d,\"lda\":%d%s,\"type\":\"%s\"}",
                                           p->call, p->m, p->n, p->lda, keys.text, p->type));
}

#define GENERAL_MATRIX_VECTOR(letter, data_type) \
    MAYA_API int cublas##letter##gemv_v2(cublas_handle *handle, int trans, int m, int n, const void *alpha, const void *a, \
                                         int lda, const void *x, int incx, const void *beta, void *y, int incy) { \
        return level2_call(handle, &(matrix_vector){.call = "cublas" #letter "gemv", \
                                                    .type = data_type, \
                                                    .m = m, \
                                                    .n = n, \
                                                    .lda = lda, \
                                                    .has_trans = true, \
                                                    .trans = trans}); \
    }
ALL_TYPES(GENERAL_MATRIX_VECTOR)

#define OUTER_PRODUCT(function, data_type) \
    MAYA_API int function##_v2(cublas_handle *handle, int m, int n, const void *alpha, const void *x, int incx, const void *y, \
                               int incy, void *a, int lda) { \
        return level2_call(handle, &(matrix_vector){.call = #function, .type = data_type, .m = m, .n = n, .lda = lda}); \
    }
OUTER_PRODUCT(cublasSger, "fp32")
OUTER_PRODUCT(cublasDger, "fp64")
OUTER_PRODUCT(cublasCgeru, "complex64")
OUTER_PRODUCT(cublasCgerc, "complex64")
OUTER_PRODUCT(cublasZgeru, "complex128")
OUTER_PRODUCT(cublasZgerc, "complex128")

#define SQUARE(function, data_type) \
    &(matrix_vector) { .call = #function, .type = data_type, .m = n, .n = n, .lda = lda, .has_uplo = true, .uplo = uplo }

#define SYMMETRIC_MATRIX_VECTOR(function, data_type) \
    MAYA_API int function##_v2(cublas_handle *handle, int uplo, int n, const void *alpha, const void *a, int lda, \
                               const void *x, int incx, const void *beta, void *y, int incy) { \
        return level2_call(handle, SQUARE(function, data_type)); \
    }
SYMMETRIC_MATRIX_VECTOR(cublasSsymv, "fp32")
SYMMETRIC_MATRIX_VECTOR(cublasDsymv, "fp64")
SYMMETRIC_MATRIX_VECTOR(cublasCsymv, "complex64")
SYMMETRIC_MATRIX_VECTOR(cublasZsymv, "complex128")
SYMMETRIC_MATRIX_VECTOR(cublasChemv, "complex64")
SYMMETRIC_MATRIX_VECTOR(cublasZhemv, "complex128")

#define RANK_1_UPDATE(function, data_type) \
    MAYA_API int function##_v2(cublas_handle *handle, int uplo, int n, const void *alpha, const void *x, int incx, void *a, \
                               int lda) { \
        return level2_call(handle, SQUARE(function, data_type)); \
    }
RANK_1_UPDATE(cublasSsyr, "fp32")
RANK_1_UPDATE(cublasDsyr, "fp64")
RANK_1_UPDATE(cublasCsyr, "complex64")
RANK_1_UPDATE(cublasZsyr, "complex128")
RANK_1_UPDATE(cublasCher, "complex64")
RANK_1_UPDATE(cublasZher, "complex128")

#define RANK_2_UPDATE(function, data_type) \
    MAYA_API int function##_v2(cublas_handle *handle, int uplo, int n, const void *alpha, const void *x, int incx, \
                               const void *y, int incy, void *a, int lda) { \
        return level2_call(handle, SQUARE(function, data_type)); \
    }
RANK_2_UPDATE(cublasSsyr2, "fp32")
RANK_2_UPDATE(cublasDsyr2, "fp64")
RANK_2_UPDATE(cublasCsyr2, "complex64")
RANK_2_UPDATE(cublasZsyr2, "complex128")
RANK_2_UPDATE(cublasCher2, "complex64")
RANK_2_UPDATE(cublasZher2, "complex128")

#define TRIANGULAR_MATRIX_VECTOR(function, data_type) \
    MAYA_API int function##_v2(cublas_handle *handle, int uplo, int trans, int diag, int n, const void *a, int lda, void *x, \
                               int incx) { \
        return level2_call(handle, &(matrix_vector){.call = #function, \
                                                    .type = data_type, \
                                                    .m = n, \
                                                    .n = n, \
                                                    .lda = lda, \
                                                    .has_trans = true, \
                                                    .has_uplo = true, \
                                                    .has_diag = true, \
                                                    .trans = trans, \
                                                    .uplo = uplo, \
                                                    .diag = diag}); \
    }
TRIANGULAR_MATRIX_VECTOR(cublasStrmv, "fp32")
TRIANGULAR_MATRIX_VECTOR(cublasDtrmv, "fp64")
TRIANGULAR_MATRIX_VECTOR(cublasCtrmv, "complex64")
TRIANGULAR_MATRIX_VECTOR(cublasZtrmv, "complex128")
TRIANGULAR_MATRIX_VECTOR(cublasStrsv, "fp32")
TRIANGULAR_MATRIX_VECTOR(cublasDtrsv, "fp64")
TRIANGULAR_MATRIX_VECTOR(cublasCtrsv, "complex64")
TRIANGULAR_MATRIX_VECTOR(cublasZtrsv, "complex128")
