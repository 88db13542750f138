/* cuDNN 9, the library itself: version, handles and error texts.
 *
 * NVIDIA's cuDNN is split into sublibraries; programs link only libcudnn.so.9, which all cudnn*.c files here are compiled into.
 */
#include "cudnn_common.h"

#include <stdio.h>

enum { VERSION_MAJOR, VERSION_MINOR, VERSION_PATCH }; /* libraryPropertyType */

static const struct {
    int status;
    const char *name;
} status_names[] = {
    {0, "CUDNN_STATUS_SUCCESS"},
    {1001, "CUDNN_STATUS_NOT_INITIALIZED"},
    {1002, "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"},
    {1003, "CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH"},
    {1004, "CUDNN_STATUS_DEPRECATED"},
    {1005, "CUDNN_STATUS_LICENSE_ERROR"},
    {1006, "CUDNN_STATUS_RUNTIME_IN_PROGRESS"},
    {1007, "CUDNN_STATUS_RUNTIME_FP_OVERFLOW"},
    {1008, "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"},
    {2000, "CUDNN_STATUS_BAD_PARAM"},
    {2001, "CUDNN_STATUS_INVALID_VALUE"},
    {2002, "CUDNN_STATUS_BAD_PARAM_NULL_POINTER"},
    {2003, "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"},
    {2004, "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"},
    {2005, "CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND"},
    {2006, "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT"},
    {2007, "CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH"},
    {2008, "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH"},
    {2009, "CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES"},
    {2010, "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE"},
    {2011, "CUDNN_STATUS_BAD_PARAM_CUDA_GRAPH_MISMATCH"},
    {2012, "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE"},
    {3000, "CUDNN_STATUS_NOT_SUPPORTED"},
    {3001, "CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN"},
    {3002, "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"},
    {3003, "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE"},
    {3004, "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT"},
    {3005, "CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER"},
    {3006, "CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART"},
    {3007, "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"},
    {3008, "CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING"},
    {3009, "CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE"},
    {3010, "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT"},
    {3011, "CUDNN_STATUS_NOT_SUPPORTED_PADDING"},
    {3012, "CUDNN_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM"},
    {3013, "CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API"},
    {3014, "CUDNN_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE"},
    {4000, "CUDNN_STATUS_INTERNAL_ERROR"},
    {4001, "CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED"},
    {4002, "CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE"},
    {4003, "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"},
    {4004, "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"},
    {4005, "CUDNN_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM"},
    {4006, "CUDNN_STATUS_INTERNAL_ERROR_TEXTURE_CREATION_FAILED"},
    {5000, "CUDNN_STATUS_EXECUTION_FAILED"},
    {5001, "CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER"},
    {5002, "CUDNN_STATUS_EXECUTION_FAILED_CUBLAS"},
    {5003, "CUDNN_STATUS_EXECUTION_FAILED_CUDART"},
    {5004, "CUDNN_STATUS_EXECUTION_FAILED_CURAND"},
};

static __thread char last_error[512];

dnn_status dnn_fail(dnn_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    if (maya_get_settings()->debug >= 1) maya_message("cuDNN returns %d: %s", status, last_error);
    return status;
}

MAYA_API const char *cudnnGetErrorString(int status) {
    for (size_t index = 0; index < sizeof status_names / sizeof *status_names; index++)
        if (status_names[index].status == status) return status_names[index].name;
    return "CUDNN_UNKNOWN_STATUS";
}

/* Reading the message clears it, so that it is not mistaken for the error of a later call. */
MAYA_API void cudnnGetLastErrorString(char *message, size_t size) {
    if (!message || size == 0) return;
    snprintf(message, size, "%s", last_error);
    last_error[0] = 0;
}

MAYA_API size_t cudnnGetVersion(void) { return MAYA_CUDNN_VERSION; }

MAYA_API size_t cudnnGetCudartVersion(void) { return MAYA_CUDA_VERSION; }

/* The newest architecture this cuDNN has kernels for, as capability * 100. */
MAYA_API size_t cudnnGetMaxDeviceVersion(void) { return 1210; }

MAYA_API dnn_status cudnnGetProperty(int property, int *value) {
    if (!value) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnGetProperty: no place for the value");
    switch (property) {
        case VERSION_MAJOR: *value = MAYA_CUDNN_VERSION / 10000; break;
        case VERSION_MINOR: *value = MAYA_CUDNN_VERSION / 100 % 100; break;
        case VERSION_PATCH: *value = MAYA_CUDNN_VERSION % 100; break;
        default: return dnn_fail(CUDNN_STATUS_BAD_PARAM, "cudnnGetProperty: there is no property %d", property);
    }
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnCreate(dnn_handle **handle) {
    if (!handle) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnCreate: no place for the handle");
    *handle = calloc(1, sizeof **handle);
    if (!*handle) return dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "cudnnCreate: no memory");
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnDestroy(dnn_handle *handle) {
    if (!handle) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnDestroy: no handle");
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnSetStream(dnn_handle *handle, void *stream) {
    if (!handle) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnSetStream: no handle");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnGetStream(dnn_handle *handle, void **stream) {
    if (!handle || !stream)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnGetStream: no handle, or no place for the stream");
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}
