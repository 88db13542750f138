/* cuSOLVER: factorisations (Cholesky, LU, QR, LDL) and the systems of equations they solve.
 *
 * In: shapes. Out: one record per call; every factorisation succeeds.
 */
#include "cusolver_problem.h"

#define RECORD(...) cusolver_record(handle, &(dense_problem){__VA_ARGS__})
#define UPLO valid_or_question(fill_name(uplo))
#define SIDE valid_or_question(side_name(side))
#define TRANS valid_or_question(operation_name(trans))

/* ---- Cholesky ---- */

#define CHOLESKY(letter, element) \
    MAYA_API int cusolverDn##letter##potrf_bufferSize(cusolver_handle *handle, int uplo, int n, void *a, int lda, \
                                                      int *elements) { \
        return cusolver_workspace(handle, (int64_t)n * PANEL, elements); \
    } \
    MAYA_API int cusolverDn##letter##potrf(cusolver_handle *handle, int uplo, int n, void *a, int lda, void *work, \
                                           int elements, int *info) { \
        return RECORD("cusolverDn" #letter "potrf", element, n, n, .lda = lda, .uplo = UPLO, .info = info); \
    } \
    MAYA_API int cusolverDn##letter##potrs(cusolver_handle *handle, int uplo, int n, int nrhs, const void *a, int lda, \
                                           void *b, int ldb, int *info) { \
        return RECORD("cusolverDn" #letter "potrs", element, n, n, .nrhs = nrhs, .lda = lda, .uplo = UPLO, .info = info); \
    } \
    MAYA_API int cusolverDn##letter##potrfBatched(cusolver_handle *handle, int uplo, int n, void **a, int lda, int *info, \
                                                  int batch) { \
        return RECORD("cusolverDn" #letter "potrfBatched", element, n, n, .batch = batch, .lda = lda, .uplo = UPLO, \
                      .info = info); \
    } \
    /* One info word for the whole call: it reports on the arguments, not on the matrices. */ \
    MAYA_API int cusolverDn##letter##potrsBatched(cusolver_handle *handle, int uplo, int n, int nrhs, void **a, int lda, \
                                                  void **b, int ldb, int *info, int batch) { \
        int status = RECORD("cusolverDn" #letter "potrsBatched", element, n, n, .nrhs = nrhs, .batch = batch, .lda = lda, \
                            .uplo = UPLO); \
        if (status != CUSOLVER_SUCCESS) return status; \
        return info_success(handle->stream, info, 1) == 0 ? CUSOLVER_SUCCESS : CUSOLVER_EXECUTION_FAILED; \
    }
ALL_TYPES(CHOLESKY)

/* ---- LU ---- */

#define LU(letter, element) \
    MAYA_API int cusolverDn##letter##getrf_bufferSize(cusolver_handle *handle, int m, int n, void *a, int lda, \
                                                      int *elements) { \
        return cusolver_workspace(handle, larger(m, n) * PANEL, elements); \
    } \
    MAYA_API int cusolverDn##letter##getrf(cusolver_handle *handle, int m, int n, void *a, int lda, void *work, int *pivots, \
                                           int *info) { \
        return RECORD("cusolverDn" #letter "getrf", element, m, n, .lda = lda, .info = info); \
    } \
    MAYA_API int cusolverDn##letter##getrs(cusolver_handle *handle, int trans, int n, int nrhs, const void *a, int lda, \
                                           const int *pivots, void *b, int ldb, int *info) { \
        return RECORD("cusolverDn" #letter "getrs", element, n, n, .nrhs = nrhs, .lda = lda, .trans = TRANS, .info = info); \
    }
ALL_TYPES(LU)

/* ---- QR ---- */

#define QR(letter, element) \
    MAYA_API int cusolverDn##letter##geqrf_bufferSize(cusolver_handle *handle, int m, int n, void *a, int lda, \
                                                      int *elements) { \
        return cusolver_workspace(handle, (int64_t)n * PANEL, elements); \
    } \
    MAYA_API int cusolverDn##letter##geqrf(cusolver_handle *handle, int m, int n, void *a, int lda, void *tau, void *work, \
                                           int elements, int *info) { \
        return RECORD("cusolverDn" #letter "geqrf", element, m, n, .lda = lda, .info = info); \
    }
ALL_TYPES(QR)

/* Q from its reflectors, and Q times a matrix: "or" for real types, "un" for complex ones. */
#define REFLECTORS(generate, multiply, element) \
    MAYA_API int cusolverDn##generate##_bufferSize(cusolver_handle *handle, int m, int n, int k, const void *a, int lda, \
                                                   const void *tau, int *elements) { \
        return cusolver_workspace(handle, (int64_t)n * PANEL, elements); \
    } \
    MAYA_API int cusolverDn##generate(cusolver_handle *handle, int m, int n, int k, void *a, int lda, const void *tau, \
                                      void *work, int elements, int *info) { \
        return RECORD("cusolverDn" #generate, element, m, n, .k = k, .lda = lda, .info = info); \
    } \
    MAYA_API int cusolverDn##multiply##_bufferSize(cusolver_handle *handle, int side, int trans, int m, int n, int k, \
                                                   const void *a, int lda, const void *tau, const void *c, int ldc, \
                                                   int *elements) { \
        return cusolver_workspace(handle, (int64_t)(side == 0 ? n : m) * PANEL, elements); \
    } \
    MAYA_API int cusolverDn##multiply(cusolver_handle *handle, int side, int trans, int m, int n, int k, const void *a, \
                                      int lda, const void *tau, void *c, int ldc, void *work, int elements, int *info) { \
        return RECORD("cusolverDn" #multiply, element, m, n, .k = k, .lda = ldc, .side = SIDE, .trans = TRANS, .info = info); \
    }
REFLECTORS(Sorgqr, Sormqr, "fp32")
REFLECTORS(Dorgqr, Dormqr, "fp64")
REFLECTORS(Cungqr, Cunmqr, "complex64")
REFLECTORS(Zungqr, Zunmqr, "complex128")

/* ---- LDL of a symmetric matrix ---- */

#define LDL(letter, element) \
    MAYA_API int cusolverDn##letter##sytrf_bufferSize(cusolver_handle *handle, int n, void *a, int lda, int *elements) { \
        return cusolver_workspace(handle, (int64_t)n * PANEL, elements); \
    } \
    MAYA_API int cusolverDn##letter##sytrf(cusolver_handle *handle, int uplo, int n, void *a, int lda, int *pivots, \
                                           void *work, int elements, int *info) { \
        return RECORD("cusolverDn" #letter "sytrf", element, n, n, .lda = lda, .uplo = UPLO, .info = info); \
    }
ALL_TYPES(LDL)

/* ---- the same with 64-bit sizes and types as arguments ---- */

MAYA_API int cusolverDnXpotrf_bufferSize(cusolver_handle *handle, void *parameters, int uplo, int64_t n, int a_type,
                                         const void *a, int64_t lda, int compute_type, size_t *device_bytes,
                                         size_t *host_bytes) {
    return cusolver_workspace_bytes(handle, n * PANEL, a_type, device_bytes, host_bytes);
}

MAYA_API int cusolverDnXpotrf(cusolver_handle *handle, void *parameters, int uplo, int64_t n, int a_type, void *a, int64_t lda,
                              int compute_type, void *device_work, size_t device_bytes, void *host_work, size_t host_bytes,
                              int *info) {
    return RECORD("cusolverDnXpotrf", data_type_name(a_type), n, n, .lda = lda, .uplo = UPLO, .info = info);
}

MAYA_API int cusolverDnXpotrs(cusolver_handle *handle, void *parameters, int uplo, int64_t n, int64_t nrhs, int a_type,
                              const void *a, int64_t lda, int b_type, void *b, int64_t ldb, int *info) {
    return RECORD("cusolverDnXpotrs", data_type_name(a_type), n, n, .nrhs = nrhs, .lda = lda, .uplo = UPLO, .info = info);
}

MAYA_API int cusolverDnXgeqrf_bufferSize(cusolver_handle *handle, void *parameters, int64_t m, int64_t n, int a_type,
                                         const void *a, int64_t lda, int tau_type, const void *tau, int compute_type,
                                         size_t *device_bytes, size_t *host_bytes) {
    return cusolver_workspace_bytes(handle, n * PANEL, a_type, device_bytes, host_bytes);
}

MAYA_API int cusolverDnXgeqrf(cusolver_handle *handle, void *parameters, int64_t m, int64_t n, int a_type, void *a, int64_t lda,
                              int tau_type, void *tau, int compute_type, void *device_work, size_t device_bytes,
                              void *host_work, size_t host_bytes, int *info) {
    return RECORD("cusolverDnXgeqrf", data_type_name(a_type), m, n, .lda = lda, .info = info);
}

MAYA_API int cusolverDnXsytrs_bufferSize(cusolver_handle *handle, int uplo, int64_t n, int64_t nrhs, int a_type, const void *a,
                                         int64_t lda, const int64_t *pivots, int b_type, void *b, int64_t ldb,
                                         size_t *device_bytes, size_t *host_bytes) {
    return cusolver_workspace_bytes(handle, n * larger(1, nrhs), a_type, device_bytes, host_bytes);
}

MAYA_API int cusolverDnXsytrs(cusolver_handle *handle, int uplo, int64_t n, int64_t nrhs, int a_type, const void *a,
                              int64_t lda, const int64_t *pivots, int b_type, void *b, int64_t ldb, void *device_work,
                              size_t device_bytes, void *host_work, size_t host_bytes, int *info) {
    return RECORD("cusolverDnXsytrs", data_type_name(a_type), n, n, .nrhs = nrhs, .lda = lda, .uplo = UPLO, .info = info);
}
