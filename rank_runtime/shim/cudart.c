/* libcudart: errors, versions, and which device the calling thread uses. */

#define _GNU_SOURCE
#include "cudart_common.h"
#include "device/attributes.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static __thread cudaError_t last_error;

cudaError_t cudart_result(int status) {
    if (status != CUDA_OK) last_error = status;
    return status;
}

MAYA_API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = CUDA_OK;
    return error;
}

MAYA_API cudaError_t cudaPeekAtLastError(void) { return last_error; }

typedef struct {
    int code;
    const char *name, *description;
} error_text;

static const error_text error_texts[] = {
    {CUDA_OK, "cudaSuccess", "no error"},
    {CUDA_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {CUDA_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {CUDA_NOT_INITIALIZED, "cudaErrorInitializationError", "initialization error"},
    {CUDA_INVALID_CONFIGURATION, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {CUDA_INVALID_SYMBOL, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {CUDA_INVALID_DEVICE_POINTER, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {CUDA_INVALID_DEVICE_FUNCTION, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {CUDA_NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {CUDA_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {CUDA_INVALID_IMAGE, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {CUDA_INVALID_CONTEXT, "cudaErrorDeviceUninitialized", "invalid device context"},
    {CUDA_INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {CUDA_NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {CUDA_NOT_READY, "cudaErrorNotReady", "device not ready"},
    {CUDA_PEER_ALREADY_ENABLED, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {CUDA_PEER_NOT_ENABLED, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {CUDA_HOST_ALREADY_REGISTERED, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {CUDA_HOST_NOT_REGISTERED, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {CUDA_NOT_PERMITTED, "cudaErrorNotPermitted", "operation not permitted"},
    {CUDA_NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {CUDA_CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {CUDA_CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {CUDA_CAPTURE_UNJOINED, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {CUDA_CAPTURED_EVENT, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
};

static const error_text *text_of(cudaError_t error) {
    static const error_text unknown = {CUDA_UNKNOWN_ERROR, "cudaErrorUnknown", "unknown error"};
    for (size_t i = 0; i < sizeof error_texts / sizeof *error_texts; i++) {
        if (error_texts[i].code == error) return &error_texts[i];
    }
    return &unknown;
}

MAYA_API const char *cudaGetErrorName(cudaError_t error) { return text_of(error)->name; }

MAYA_API const char *cudaGetErrorString(cudaError_t error) { return text_of(error)->description; }

MAYA_API cudaError_t cudaDriverGetVersion(int *version) {
    *version = MAYA_CUDA_VERSION;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = MAYA_CUDA_VERSION;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaGetDeviceCount(int *count) {
    *count = maya_visible_devices()->count;
    if (*count == 0) return cudart_result(CUDA_NO_DEVICE);
    maya_load_observer();
    return CUDA_OK;
}

MAYA_API cudaError_t cudaSetDevice(int device) {
    int status = maya_set_device(device);
    /* since CUDA 12 this call creates the context */
    return cudart_result(status == CUDA_OK ? maya_use_device(device) : status);
}

MAYA_API cudaError_t cudaGetDevice(int *device) {
    *device = maya_current_device();
    return CUDA_OK;
}

MAYA_API cudaError_t cudaDeviceSynchronize(void) { return cudart_result(maya_device_synchronize()); }

MAYA_API cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    if (device < 0 || device >= maya_visible_devices()->count) return cudart_result(CUDA_INVALID_DEVICE);
    snprintf(text, (size_t)length, "0000:%02X:00.0", maya_device_attribute_of(device, MAYA_ATTRIBUTE_PCI_BUS));
    return CUDA_OK;
}

MAYA_API cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) {
    unsigned domain = 0, bus = 0;
    if (text == NULL || (sscanf(text, "%x:%x:%*x", &domain, &bus) != 2 && sscanf(text, "%x:%*x", &bus) != 1)) {
        return cudart_result(CUDA_INVALID_VALUE);
    }
    for (int i = 0; i < maya_visible_devices()->count; i++) {
        if (domain != 0 || (unsigned)maya_device_attribute_of(i, MAYA_ATTRIBUTE_PCI_BUS) != bus) continue;
        *device = i;
        return CUDA_OK;
    }
    return cudart_result(CUDA_INVALID_DEVICE);
}

MAYA_API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    int count = maya_visible_devices()->count;
    if (device < 0 || device >= count || peer < 0 || peer >= count) return cudart_result(CUDA_INVALID_DEVICE);
    *can = device != peer;
    return CUDA_OK;
}

static bool peer_enabled[MAYA_MAX_DEVICES][MAYA_MAX_DEVICES];

MAYA_API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)flags;
    int device = maya_current_device();
    if (peer < 0 || peer >= maya_visible_devices()->count || peer == device) return cudart_result(CUDA_INVALID_DEVICE);
    if (peer_enabled[device][peer]) return cudart_result(CUDA_PEER_ALREADY_ENABLED);
    peer_enabled[device][peer] = true;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    int device = maya_current_device();
    if (peer < 0 || peer >= maya_visible_devices()->count) return cudart_result(CUDA_INVALID_DEVICE);
    if (!peer_enabled[device][peer]) return cudart_result(CUDA_PEER_NOT_ENABLED);
    peer_enabled[device][peer] = false;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaProfilerStart(void) { return CUDA_OK; }

MAYA_API cudaError_t cudaProfilerStop(void) { return CUDA_OK; }

/* ---- the driver's functions, for callers that ask the runtime for them ---- */

static cudaError_t driver_entry_point(const char *name, void **function, unsigned version, int *found) {
    typedef int (*lookup)(const char *, void **, int, uint64_t, int *);
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    lookup look_up = driver ? (lookup)dlsym(driver, "cuGetProcAddress_v2") : NULL;
    int outcome = CUDA_ENTRY_POINT_NOT_FOUND;
    *function = NULL;
    if (look_up) look_up(name, function, (int)version, 0, &outcome);
    if (found) *found = outcome;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {
    (void)flags;
    return driver_entry_point(name, function, MAYA_CUDA_VERSION, found);
}

MAYA_API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                      unsigned long long flags, int *found) {
    (void)flags;
    return driver_entry_point(name, function, version, found);
}
