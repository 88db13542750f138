/* cuBLAS's batched factorisations and solvers: many small matrices, one call.
 *
 * In: shapes and batch. Out: one record per call. Every factorisation is reported as successful: info words on the host
 * are 0 at once, those on the device in stream order.
 */
#include "cublas_handle.h"
#include "cublas_signature.h"

/* `info` is in host memory and tells whether the arguments are valid, `device_info` has one word per matrix; either may be
 * NULL. */
static int batched_call(cublas_handle *handle, const char *call, const char *type, const char *trans, int m, int n, int nrhs,
                        int lda, int batch, int *info, int *device_info) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    if (trans == NULL || m < 0 || n < 0 || nrhs < 0 || batch < 0 || !leading_dimension_holds(lda, m))
        return CUBLAS_INVALID_VALUE;
    if (info != NULL) *info = 0;
    if (m == 0 || n == 0 || batch == 0) return CUBLAS_SUCCESS;
    more_keys keys = {.used = 0};
    add_number(&keys, "nrhs", nrhs);
    add_word(&keys, "trans", nrhs == 0 ? NULL : trans);
    int error =
        maya_library_call(handle->stream, "{\"call\":\"%s\",\"m\":%d,\"n\":%d,\"batch\":%d%s,\"lda\":%d,\"type\":\"%s\"}", call,
                          m, n, batch, keys.text, lda, type);
    return cublas_status(error != 0 ? error : info_success(handle->stream, device_info, batch));
}

#define BATCHED(letter, type) \
    MAYA_API int cublas##letter##getrfBatched(cublas_handle *handle, int n, void *const *a, int lda, int *pivots, \
                                              int *device_info, int batch) { \
        return batched_call(handle, "cublas" #letter "getrfBatched", type, "N", n, n, 0, lda, batch, NULL, device_info); \
    } \
    MAYA_API int cublas##letter##getrsBatched(cublas_handle *handle, int trans, int n, int nrhs, const void *const *a, \
                                              int lda, const int *pivots, void *const *b, int ldb, int *info, int batch) { \
        return batched_call(handle, "cublas" #letter "getrsBatched", type, operation_name(trans), n, n, nrhs, lda, batch, \
                            info, NULL); \
    } \
    MAYA_API int cublas##letter##geqrfBatched(cublas_handle *handle, int m, int n, void *const *a, int lda, void *const *tau, \
                                              int *info, int batch) { \
        return batched_call(handle, "cublas" #letter "geqrfBatched", type, "N", m, n, 0, lda, batch, info, NULL); \
    } \
    MAYA_API int cublas##letter##gelsBatched(cublas_handle *handle, int trans, int m, int n, int nrhs, void *const *a, \
                                             int lda, void *const *c, int ldc, int *info, int *device_info, int batch) { \
        return batched_call(handle, "cublas" #letter "gelsBatched", type, operation_name(trans), m, n, nrhs, lda, batch, info, \
                            device_info); \
    }
ALL_TYPES(BATCHED)
