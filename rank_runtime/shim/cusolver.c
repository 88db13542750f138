/* cuSOLVER (dense): handles, parameters, version, and the record that every solver leaves. The solvers are in
 * cusolver_factor.c (factorisations and systems of equations) and cusolver_spectral.c (singular and eigenvalues).
 *
 * In: calls of torch.linalg. Out: one library record per call, and info words set to success.
 */
#include "cublas_signature.h"
#include "cusolver_problem.h"

#include <limits.h>

/* ---- the record ---- */

static bool is_valid(const char *letter) { return letter == NULL || letter[0] != '?'; }

int cusolver_record(cusolver_handle *handle, const dense_problem *p) {
    if (handle == NULL) return CUSOLVER_NOT_INITIALIZED;
    if (p->type == NULL || p->m < 0 || p->n < 0 || p->k < 0 || p->nrhs < 0 || p->batch < 0 || p->lda < larger(1, p->m) ||
        !is_valid(p->uplo) || !is_valid(p->side) || !is_valid(p->trans) || !is_valid(p->job))
        return CUSOLVER_INVALID_VALUE;
    int64_t batch = p->batch == 0 ? 1 : p->batch;
    int error = 0;
    if (p->m != 0 && p->n != 0) {
        more_keys keys = {.used = 0};
        add_number(&keys, "k", p->k);
        add_number(&keys, "nrhs", p->nrhs);
        add_word(&keys, "uplo", p->uplo);
        add_word(&keys, "side", p->side);
        add_word(&keys, "trans", p->trans);
        add_word(&keys, "job", p->job);
        error = maya_library_call(handle->stream,
                                  "{\"call\":\"%s\",\"m\":%lld,\"n\":%lld,\"batch\":%lld%s,\"lda\":%lld,"
                                  "\"type\":\"%s\"}",
                                  p->call, (long long)p->m, (long long)p->n, (long long)batch, keys.text, (long long)p->lda,
                                  p->type);
    }
    if (error == 0) error = info_success(handle->stream, p->info, batch);
    return error == 0 ? CUSOLVER_SUCCESS : CUSOLVER_EXECUTION_FAILED;
}

int cusolver_workspace(cusolver_handle *handle, int64_t elements, int *result) {
    if (handle == NULL) return CUSOLVER_NOT_INITIALIZED;
    if (result == NULL || elements < 0 || elements > INT_MAX) return CUSOLVER_INVALID_VALUE;
    *result = (int)larger(1, elements);
    return CUSOLVER_SUCCESS;
}

int cusolver_workspace_bytes(cusolver_handle *handle, int64_t elements, int type, size_t *device_bytes, size_t *host_bytes) {
    if (handle == NULL) return CUSOLVER_NOT_INITIALIZED;
    int bits = data_type_bits(type);
    if (device_bytes == NULL || host_bytes == NULL || elements < 0 || bits == 0) return CUSOLVER_INVALID_VALUE;
    *device_bytes = (size_t)larger(1, elements) * (size_t)bits / 8;
    *host_bytes = 0;
    return CUSOLVER_SUCCESS;
}

/* ---- handles ---- */

MAYA_API int cusolverDnCreate(cusolver_handle **handle) {
    if (handle == NULL) return CUSOLVER_INVALID_VALUE;
    *handle = calloc(1, sizeof **handle);
    return *handle == NULL ? CUSOLVER_ALLOC_FAILED : CUSOLVER_SUCCESS;
}

MAYA_API int cusolverDnDestroy(cusolver_handle *handle) {
    free(handle);
    return CUSOLVER_SUCCESS;
}

MAYA_API int cusolverDnSetStream(cusolver_handle *handle, void *stream) {
    if (handle == NULL) return CUSOLVER_NOT_INITIALIZED;
    handle->stream = stream;
    return CUSOLVER_SUCCESS;
}

MAYA_API int cusolverDnGetStream(cusolver_handle *handle, void **stream) {
    if (handle == NULL) return CUSOLVER_NOT_INITIALIZED;
    if (stream == NULL) return CUSOLVER_INVALID_VALUE;
    *stream = handle->stream;
    return CUSOLVER_SUCCESS;
}

/* cuSOLVER's own major version runs one behind the toolkit's. */

MAYA_API int cusolverGetVersion(int *version) {
    if (version == NULL) return CUSOLVER_INVALID_VALUE;
    *version = (TOOLKIT_MAJOR - 1) * 1000 + TOOLKIT_MINOR * 100;
    return CUSOLVER_SUCCESS;
}

MAYA_API int cusolverGetProperty(int property, int *value) {
    return library_property(property, TOOLKIT_MAJOR - 1, TOOLKIT_MINOR, value) ? CUSOLVER_SUCCESS : CUSOLVER_INVALID_VALUE;
}

/* ---- parameters; they are stored and have no effect on shapes ---- */

typedef struct {
    double tolerance;
    int max_sweeps;
    int sort;
} solver_parameters;

static int create_parameters(solver_parameters **parameters) {
    if (parameters == NULL) return CUSOLVER_INVALID_VALUE;
    *parameters = malloc(sizeof **parameters);
    if (*parameters == NULL) return CUSOLVER_ALLOC_FAILED;
    **parameters = (solver_parameters){.max_sweeps = 100, .sort = 1};
    return CUSOLVER_SUCCESS;
}

static int destroy_parameters(solver_parameters *parameters) {
    free(parameters);
    return CUSOLVER_SUCCESS;
}

#define PARAMETERS(kind) \
    MAYA_API int cusolverDnCreate##kind(solver_parameters **parameters) { return create_parameters(parameters); } \
    MAYA_API int cusolverDnDestroy##kind(solver_parameters *parameters) { return destroy_parameters(parameters); }
PARAMETERS(Params)
PARAMETERS(GesvdjInfo)
PARAMETERS(SyevjInfo)

#define JACOBI_SETTINGS(method) \
    MAYA_API int cusolverDnX##method##SetTolerance(solver_parameters *parameters, double tolerance) { \
        if (parameters == NULL) return CUSOLVER_INVALID_VALUE; \
        parameters->tolerance = tolerance; \
        return CUSOLVER_SUCCESS; \
    } \
    MAYA_API int cusolverDnX##method##SetMaxSweeps(solver_parameters *parameters, int max_sweeps) { \
        if (parameters == NULL) return CUSOLVER_INVALID_VALUE; \
        parameters->max_sweeps = max_sweeps; \
        return CUSOLVER_SUCCESS; \
    } \
    MAYA_API int cusolverDnX##method##SetSortEig(solver_parameters *parameters, int sort) { \
        if (parameters == NULL) return CUSOLVER_INVALID_VALUE; \
        parameters->sort = sort; \
        return CUSOLVER_SUCCESS; \
    }
JACOBI_SETTINGS(gesvdj)
JACOBI_SETTINGS(syevj)
