/* cuBLAS level 1: operations on vectors.
 *
 * In: length and strides. Out: one record per call. A scalar result in host memory is zero, or the first index for
 * functions that return an index; the host waits for it, as with the real library. A result in device memory is not
 * written.
 */
#include "cublas_handle.h"
#include "cublas_signature.h"

/* incy is 0 for calls with one vector. */
static int vector_call(cublas_handle *handle, const char *call, const char *type, int n, int incx, int incy) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    if (n <= 0) return CUBLAS_SUCCESS;
    more_keys keys = {.used = 0};
    add_number(&keys, "incy", incy);
    return cublas_status(maya_library_call(handle->stream, "{\"call\":\"%s\",\"n\":%d,\"incx\":%d%s,\"type\":\"%s\"}", call, n,
                                           incx, keys.text, type));
}

/* A call on vectors that returns a scalar. */
static int reduction_call(cublas_handle *handle, const char *call, const char *type, int n, int incx, int incy, void *result,
                          size_t result_bytes) {
    if (handle == NULL) return CUBLAS_NOT_INITIALIZED;
    if (result == NULL) return CUBLAS_INVALID_VALUE;
    int status = vector_call(handle, call, type, n, incx, incy);
    if (status != CUBLAS_SUCCESS || handle->pointer_mode == POINTER_DEVICE) return status;
    memset(result, 0, result_bytes);
    return cublas_status(maya_stream_synchronize(handle->stream));
}

/* Indices count from 1; 0 would mean an empty vector, and make a pivot search access memory before its array. */
static int index_call(cublas_handle *handle, const char *call, const char *type, int n, int incx, int *result) {
    int status = reduction_call(handle, call, type, n, incx, 0, result, sizeof *result);
    if (status == CUBLAS_SUCCESS && handle->pointer_mode == POINTER_HOST && n > 0) *result = 1;
    return status;
}

#define TWO_VECTORS(letter, type) \
    MAYA_API int cublas##letter##axpy_v2(cublas_handle *handle, int n, const void *alpha, const void *x, int incx, void *y, \
                                         int incy) { \
        return vector_call(handle, "cublas" #letter "axpy", type, n, incx, incy); \
    } \
    MAYA_API int cublas##letter##copy_v2(cublas_handle *handle, int n, const void *x, int incx, void *y, int incy) { \
        return vector_call(handle, "cublas" #letter "copy", type, n, incx, incy); \
    } \
    MAYA_API int cublas##letter##swap_v2(cublas_handle *handle, int n, void *x, int incx, void *y, int incy) { \
        return vector_call(handle, "cublas" #letter "swap", type, n, incx, incy); \
    }
ALL_TYPES(TWO_VECTORS)

/* The mixed forms (Cs, Zd) rotate or scale complex vectors by real numbers. */
#define ROTATE_AND_SCALE(letter, type) \
    MAYA_API int cublas##letter##rot_v2(cublas_handle *handle, int n, void *x, int incx, void *y, int incy, \
                                        const void *cosine, const void *sine) { \
        return vector_call(handle, "cublas" #letter "rot", type, n, incx, incy); \
    } \
    MAYA_API int cublas##letter##scal_v2(cublas_handle *handle, int n, const void *alpha, void *x, int incx) { \
        return vector_call(handle, "cublas" #letter "scal", type, n, incx, 0); \
    }
ALL_TYPES(ROTATE_AND_SCALE)
ROTATE_AND_SCALE(Cs, "complex64")
ROTATE_AND_SCALE(Zd, "complex128")

#define ROTATE_MODIFIED(letter, type) \
    MAYA_API int cublas##letter##rotm_v2(cublas_handle *handle, int n, void *x, int incx, void *y, int incy, \
                                         const void *parameters) { \
        return vector_call(handle, "cublas" #letter "rotm", type, n, incx, incy); \
    }
REAL_TYPES(ROTATE_MODIFIED)

#define DOT(function, type, result_bytes) \
    MAYA_API int function##_v2(cublas_handle *handle, int n, const void *x, int incx, const void *y, int incy, void *result) { \
        return reduction_call(handle, #function, type, n, incx, incy, result, result_bytes); \
    }
DOT(cublasSdot, "fp32", 4)
DOT(cublasDdot, "fp64", 8)
DOT(cublasCdotu, "complex64", 8)
DOT(cublasCdotc, "complex64", 8)
DOT(cublasZdotu, "complex128", 16)
DOT(cublasZdotc, "complex128", 16)

MAYA_API int cublasDotEx(cublas_handle *handle, int n, const void *x, int x_type, int incx, const void *y, int y_type, int incy,
                         void *result, int result_type, int compute_type) {
    const char *type = data_type_name(x_type);
    if (type == NULL || y_type != x_type || data_type_bits(result_type) == 0) return CUBLAS_NOT_SUPPORTED;
    return reduction_call(handle, "cublasDotEx", type, n, incx, incy, result, (size_t)data_type_bits(result_type) / 8);
}

/* Norms and sums are real, also of complex vectors. */
#define NORM(function, type, result_bytes) \
    MAYA_API int function##_v2(cublas_handle *handle, int n, const void *x, int incx, void *result) { \
        return reduction_call(handle, #function, type, n, incx, 0, result, result_bytes); \
    }
NORM(cublasSnrm2, "fp32", 4)
NORM(cublasDnrm2, "fp64", 8)
NORM(cublasScnrm2, "complex64", 4)
NORM(cublasDznrm2, "complex128", 8)
NORM(cublasSasum, "fp32", 4)
NORM(cublasDasum, "fp64", 8)
NORM(cublasScasum, "complex64", 4)
NORM(cublasDzasum, "complex128", 8)

#define EXTREME(letter, type) \
    MAYA_API int cublasI##letter##amax_v2(cublas_handle *handle, int n, const void *x, int incx, int *result) { \
        return index_call(handle, "cublasI" #letter "amax", type, n, incx, result); \
    } \
    MAYA_API int cublasI##letter##amin_v2(cublas_handle *handle, int n, const void *x, int incx, int *result) { \
        return index_call(handle, "cublasI" #letter "amin", type, n, incx, result); \
    }
EXTREME(s, "fp32")
EXTREME(d, "fp64")
EXTREME(c, "complex64")
EXTREME(z, "complex128")
