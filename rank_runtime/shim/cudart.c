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
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {17, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {705, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {800, "cudaErrorNotPermitted", "operation not permitted"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
};

static const error_text *text_of(cudaError_t error) {
    static const error_text unknown = {999, "cudaErrorUnknown", "unknown error"};
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

static cudaError_t driver_entry_point(const char *name, void **function, int *found) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    *function = driver ? dlsym(driver, name) : NULL;
    if (found) *found = *function ? 0 : 1; /* cudaDriverEntryPointSuccess, SymbolNotFound */
    return CUDA_OK;
}

MAYA_API cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {
    (void)flags;
    return driver_entry_point(name, function, found);
}

MAYA_API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                      unsigned long long flags, int *found) {
    (void)version;
    (void)flags;
    return driver_entry_point(name, function, found);
}
