/* cuBLAS: handles, modes, version. Copies and the computing functions are in cublas_*.c.
 *
 * In: calls of torch (and of MAGMA, which torch contains). Out: one library record per call, on the handle's stream.
 *
 * Not emulated: rotg and rotmg, because torch does not call them and their scalar results would have to be correct.
 */
#include "cublas_handle.h"

/* The workspace that a handle allocates when it is created; it stays allocated when the program sets a workspace of its
 * own, as torch does. An estimate: the sizes that cuBLAS's documentation recommends. */
static size_t own_workspace_bytes(void) { return (size_t)(maya_get_settings()->device.compute_major >= 9 ? 32 : 4) << 20; }

MAYA_API int cublasCreate_v2(cublas_handle **handle) {
    if (handle == NULL) return CUBLAS_INVALID_VALUE;
    cublas_handle *created = calloc(1, sizeof *created);
    if (created == NULL) return CUBLAS_ALLOC_FAILED;
    if (maya_device_malloc(maya_current_device(), own_workspace_bytes(), &created->own_workspace) != 0) {
        free(created);
        return CUBLAS_ALLOC_FAILED;
    }
    *handle = created;
    return CUBLAS_SUCCESS;
}

MAYA_API int cublasDestroy_v2(cublas_handle *handle) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    maya_device_free(handle->own_workspace);
    free(handle);
    return CUBLAS_SUCCESS;
}

MAYA_API int cublasGetVersion_v2(cublas_handle *handle, int *version) {
    if (version == NULL) return CUBLAS_INVALID_VALUE;
    *version = TOOLKIT_MAJOR * 10000 + TOOLKIT_MINOR * 100;
    return CUBLAS_SUCCESS;
}

MAYA_API int cublasGetProperty(int property, int *value) {
    return library_property(property, TOOLKIT_MAJOR, TOOLKIT_MINOR, value) ? CUBLAS_SUCCESS : CUBLAS_INVALID_VALUE;
}

MAYA_API size_t cublasGetCudartVersion(void) { return MAYA_CUDA_VERSION; }

MAYA_API const char *cublasGetStatusName(int status) {
    switch (status) {
        case CUBLAS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
        case CUBLAS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
        case CUBLAS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case CUBLAS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
        case CUBLAS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        case CUBLAS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
        default: return "CUBLAS_STATUS_UNKNOWN";
    }
}

MAYA_API const char *cublasGetStatusString(int status) { return cublasGetStatusName(status); }

/* ---- the state of a handle ---- */

MAYA_API int cublasSetStream_v2(cublas_handle *handle, void *stream) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    /* As documented, setting a stream also resets the workspace to the library's own. */
    handle->stream = stream;
    handle->user_workspace = NULL;
    handle->user_workspace_bytes = 0;
    return CUBLAS_SUCCESS;
}

MAYA_API int cublasGetStream_v2(cublas_handle *handle, void **stream) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    if (stream == NULL) return CUBLAS_INVALID_VALUE;
    *stream = handle->stream;
    return CUBLAS_SUCCESS;
}

MAYA_API int cublasSetWorkspace_v2(cublas_handle *handle, void *workspace, size_t bytes) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    if ((uintptr_t)workspace % 256 != 0) return CUBLAS_INVALID_VALUE;
    handle->user_workspace = workspace;
    handle->user_workspace_bytes = bytes;
    return CUBLAS_SUCCESS;
}

static int set_mode(int *mode, int value, int largest) {
    if (value < 0 || value > largest) return CUBLAS_INVALID_VALUE;
    *mode = value;
    return CUBLAS_SUCCESS;
}

static int get_mode(int mode, int *value) {
    if (value == NULL) return CUBLAS_INVALID_VALUE;
    *value = mode;
    return CUBLAS_SUCCESS;
}

MAYA_API int cublasSetPointerMode_v2(cublas_handle *handle, int mode) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    return set_mode(&handle->pointer_mode, mode, POINTER_DEVICE);
}

MAYA_API int cublasGetPointerMode_v2(cublas_handle *handle, int *mode) {
    return handle == NULL ? CUBLAS_NOT_INITIALIZED : get_mode(handle->pointer_mode, mode);
}

MAYA_API int cublasSetAtomicsMode(cublas_handle *handle, int mode) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    return set_mode(&handle->atomics_mode, mode, 1);
}

MAYA_API int cublasGetAtomicsMode(cublas_handle *handle, int *mode) {
    return handle == NULL ? CUBLAS_NOT_INITIALIZED : get_mode(handle->atomics_mode, mode);
}

MAYA_API int cublasSetMathMode(cublas_handle *handle, int mode) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    return set_mode(&handle->math_mode, mode, 2 * MATH_MODE_BITS + 1);
}

MAYA_API int cublasGetMathMode(cublas_handle *handle, int *mode) {
    return handle == NULL ? CUBLAS_NOT_INITIALIZED : get_mode(handle->math_mode, mode);
}

MAYA_API int cublasSetSmCountTarget(cublas_handle *handle, int target) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    return set_mode(&handle->sm_count_target, target, maya_get_settings()->device.sm_count);
}

MAYA_API int cublasGetSmCountTarget(cublas_handle *handle, int *target) {
    return handle == NULL ? CUBLAS_NOT_INITIALIZED : get_mode(handle->sm_count_target, target);
}
