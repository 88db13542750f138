/* cuSOLVER: singular values and eigenvalues.
 *
 * In: shapes and whether vectors are wanted ("job"). Out: one record per call; every iteration converges.
 */
#include "cusolver_problem.h"

#define RECORD(...) cusolver_record(handle, &(dense_problem){__VA_ARGS__})
#define UPLO valid_or_question(fill_name(uplo))
#define JOB valid_or_question(job_name(job))

/* LAPACK's for divide and conquer with vectors; without them a few rows do. */
static int64_t eigen_elements(int job, int64_t n) { return job == 0 ? n * PANEL : 1 + 6 * n + 2 * n * n; }

/* ---- singular values: QR iteration ---- */

/* 'A' all vectors, 'S' the first ones, 'O' in place of the matrix, 'N' none. */
static const char *svd_job(signed char u, signed char vt) {
    static const char letters[] = "NASO";
    static const char *const names[4][4] = {
        {"NN", "NA", "NS", "NO"}, {"AN", "AA", "AS", "AO"}, {"SN", "SA", "SS", "SO"}, {"ON", "OA", "OS", "OO"}};
    const char *first = u == 0 ? NULL : strchr(letters, u), *second = vt == 0 ? NULL : strchr(letters, vt);
    return first == NULL || second == NULL ? NULL : names[first - letters][second - letters];
}

#define SVD(letter, element) \
    MAYA_API int cusolverDn##letter##gesvd_bufferSize(cusolver_handle *handle, int m, int n, int *elements) { \
        return cusolver_workspace(handle, (int64_t)m * n + larger(m, n) * PANEL, elements); \
    } \
    MAYA_API int cusolverDn##letter##gesvd(cusolver_handle *handle, signed char job_u, signed char job_vt, int m, int n, \
                                           void *a, int lda, void *s, void *u, int ldu, void *vt, int ldvt, void *work, \
                                           int elements, void *real_work, int *info) { \
        return RECORD("cusolverDn" #letter "gesvd", element, m, n, .lda = lda, \
                      .job = valid_or_question(svd_job(job_u, job_vt)), .info = info); \
    }
ALL_TYPES(SVD)

/* ---- singular values: Jacobi, and approximate ---- */

#define SVD_JACOBI(letter, element) \
    MAYA_API int cusolverDn##letter##gesvdj_bufferSize(cusolver_handle *handle, int job, int econ, int m, int n, \
                                                       const void *a, int lda, const void *s, const void *u, int ldu, \
                                                       const void *v, int ldv, int *elements, void *parameters) { \
        return cusolver_workspace(handle, 2 * (int64_t)m * n + (int64_t)n * n, elements); \
    } \
    MAYA_API int cusolverDn##letter##gesvdj(cusolver_handle *handle, int job, int econ, int m, int n, void *a, int lda, \
                                            void *s, void *u, int ldu, void *v, int ldv, void *work, int elements, int *info, \
                                            void *parameters) { \
        return RECORD("cusolverDn" #letter "gesvdj", element, m, n, .lda = lda, .job = JOB, .info = info); \
    } \
    MAYA_API int cusolverDn##letter##gesvdjBatched_bufferSize(cusolver_handle *handle, int job, int m, int n, const void *a, \
                                                              int lda, const void *s, const void *u, int ldu, const void *v, \
                                                              int ldv, int *elements, void *parameters, int batch) { \
        return cusolver_workspace(handle, (int64_t)m * n * batch, elements); \
    } \
    MAYA_API int cusolverDn##letter##gesvdjBatched(cusolver_handle *handle, int job, int m, int n, void *a, int lda, void *s, \
                                                   void *u, int ldu, void *v, int ldv, void *work, int elements, int *info, \
                                                   void *parameters, int batch) { \
        return RECORD("cusolverDn" #letter "gesvdjBatched", element, m, n, .batch = batch, .lda = lda, .job = JOB, \
                      .info = info); \
    } \
    MAYA_API int cusolverDn##letter##gesvdaStridedBatched_bufferSize( \
        cusolver_handle *handle, int job, int rank, int m, int n, const void *a, int lda, long long stridea, const void *s, \
        long long strides, const void *u, int ldu, long long strideu, const void *v, int ldv, long long stridev, \
        int *elements, int batch) { \
        return cusolver_workspace(handle, ((int64_t)m * n + (int64_t)n * n) * batch, elements); \
    } \
    MAYA_API int cusolverDn##letter##gesvdaStridedBatched( \
        cusolver_handle *handle, int job, int rank, int m, int n, const void *a, int lda, long long stridea, void *s, \
        long long strides, void *u, int ldu, long long strideu, void *v, int ldv, long long stridev, void *work, int elements, \
        int *info, double *residuals, int batch) { \
        int status = RECORD("cusolverDn" #letter "gesvdaStridedBatched", element, m, n, .k = rank, .batch = batch, .lda = lda, \
                            .job = JOB, .info = info); \
        if (status == CUSOLVER_SUCCESS && residuals != NULL) memset(residuals, 0, (size_t)batch * sizeof *residuals); \
        return status; \
    }
ALL_TYPES(SVD_JACOBI)

/* ---- eigenvalues of a symmetric (real, "sy") or Hermitian (complex, "he") matrix ---- */

#define EIGEN(divide, jacobi, element) \
    MAYA_API int cusolverDn##divide##_bufferSize(cusolver_handle *handle, int job, int uplo, int n, const void *a, int lda, \
                                                 const void *w, int *elements) { \
        return cusolver_workspace(handle, eigen_elements(job, n), elements); \
    } \
    MAYA_API int cusolverDn##divide(cusolver_handle *handle, int job, int uplo, int n, void *a, int lda, void *w, void *work, \
                                    int elements, int *info) { \
        return RECORD("cusolverDn" #divide, element, n, n, .lda = lda, .uplo = UPLO, .job = JOB, .info = info); \
    } \
    MAYA_API int cusolverDn##jacobi##_bufferSize(cusolver_handle *handle, int job, int uplo, int n, const void *a, int lda, \
                                                 const void *w, int *elements, void *parameters) { \
        return cusolver_workspace(handle, 2 * (int64_t)n * n, elements); \
    } \
    MAYA_API int cusolverDn##jacobi(cusolver_handle *handle, int job, int uplo, int n, void *a, int lda, void *w, void *work, \
                                    int elements, int *info, void *parameters) { \
        return RECORD("cusolverDn" #jacobi, element, n, n, .lda = lda, .uplo = UPLO, .job = JOB, .info = info); \
    } \
    MAYA_API int cusolverDn##jacobi##Batched_bufferSize(cusolver_handle *handle, int job, int uplo, int n, const void *a, \
                                                        int lda, const void *w, int *elements, void *parameters, int batch) { \
        return cusolver_workspace(handle, (int64_t)n * n * batch, elements); \
    } \
    MAYA_API int cusolverDn##jacobi##Batched(cusolver_handle *handle, int job, int uplo, int n, void *a, int lda, void *w, \
                                             void *work, int elements, int *info, void *parameters, int batch) { \
        return RECORD("cusolverDn" #jacobi "Batched", element, n, n, .batch = batch, .lda = lda, .uplo = UPLO, .job = JOB, \
                      .info = info); \
    }
EIGEN(Ssyevd, Ssyevj, "fp32")
EIGEN(Dsyevd, Dsyevj, "fp64")
EIGEN(Cheevd, Cheevj, "complex64")
EIGEN(Zheevd, Zheevj, "complex128")

/* ---- the same with 64-bit sizes and types as arguments ---- */

MAYA_API int cusolverDnXsyevd_bufferSize(cusolver_handle *handle, void *parameters, int job, int uplo, int64_t n, int a_type,
                                         const void *a, int64_t lda, int w_type, const void *w, int compute_type,
                                         size_t *device_bytes, size_t *host_bytes) {
    return cusolver_workspace_bytes(handle, eigen_elements(job, n), a_type, device_bytes, host_bytes);
}

MAYA_API int cusolverDnXsyevd(cusolver_handle *handle, void *parameters, int job, int uplo, int64_t n, int a_type, void *a,
                              int64_t lda, int w_type, void *w, int compute_type, void *device_work, size_t device_bytes,
                              void *host_work, size_t host_bytes, int *info) {
    return RECORD("cusolverDnXsyevd", data_type_name(a_type), n, n, .lda = lda, .uplo = UPLO, .job = JOB, .info = info);
}

MAYA_API int cusolverDnXsyevBatched_bufferSize(cusolver_handle *handle, void *parameters, int job, int uplo, int64_t n,
                                               int a_type, const void *a, int64_t lda, int w_type, const void *w,
                                               int compute_type, size_t *device_bytes, size_t *host_bytes, int64_t batch) {
    return cusolver_workspace_bytes(handle, n * n * batch, a_type, device_bytes, host_bytes);
}

MAYA_API int cusolverDnXsyevBatched(cusolver_handle *handle, void *parameters, int job, int uplo, int64_t n, int a_type,
                                    void *a, int64_t lda, int w_type, void *w, int compute_type, void *device_work,
                                    size_t device_bytes, void *host_work, size_t host_bytes, int *info, int64_t batch) {
    return RECORD("cusolverDnXsyevBatched", data_type_name(a_type), n, n, .batch = batch, .lda = lda, .uplo = UPLO, .job = JOB,
                  .info = info);
}

/* Eigenvalues of a general matrix: the Hessenberg form is iterated on the host, which needs a copy there. */

MAYA_API int cusolverDnXgeev_bufferSize(cusolver_handle *handle, void *parameters, int job_left, int job, int64_t n, int a_type,
                                        const void *a, int64_t lda, int w_type, const void *w, int vl_type, const void *vl,
                                        int64_t ldvl, int vr_type, const void *vr, int64_t ldvr, int compute_type,
                                        size_t *device_bytes, size_t *host_bytes) {
    int status = cusolver_workspace_bytes(handle, 2 * n * n + n * PANEL, a_type, device_bytes, host_bytes);
    if (status == CUSOLVER_SUCCESS) *host_bytes = (size_t)larger(1, n * n) * (size_t)data_type_bits(a_type) / 8;
    return status;
}

MAYA_API int cusolverDnXgeev(cusolver_handle *handle, void *parameters, int job_left, int job, int64_t n, int a_type, void *a,
                             int64_t lda, int w_type, void *w, int vl_type, void *vl, int64_t ldvl, int vr_type, void *vr,
                             int64_t ldvr, int compute_type, void *device_work, size_t device_bytes, void *host_work,
                             size_t host_bytes, int *info) {
    return RECORD("cusolverDnXgeev", data_type_name(a_type), n, n, .lda = lda, .job = JOB, .info = info);
}
