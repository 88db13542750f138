/* libcuda: initialisation, devices, contexts and errors. */

#define _GNU_SOURCE
#include "cuda_common.h"
#include "device/attributes.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

MAYA_API CUresult cuInit(unsigned flags) {
    (void)flags;
    return maya_visible_devices()->count ? CUDA_OK : CUDA_NO_DEVICE;
}

MAYA_API CUresult cuDriverGetVersion(int *version) {
    *version = MAYA_CUDA_VERSION;
    return CUDA_OK;
}

/* ---- errors; the texts are the runtime's ---- */

static const char *runtime_text(const char *function, CUresult error) {
    void *runtime = dlsym(RTLD_DEFAULT, function);
    return runtime ? ((const char *(*)(int))runtime)(error) : "unknown error";
}

MAYA_API CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = runtime_text("cudaGetErrorString", error);
    return CUDA_OK;
}

MAYA_API CUresult cuGetErrorName(CUresult error, const char **name) {
    *name = runtime_text("cudaGetErrorName", error);
    return CUDA_OK;
}

/* ---- the driver's log of errors, which stays empty: our errors are messages on stderr ---- */

MAYA_API CUresult cuLogsRegisterCallback(void *callback, void *data, void **handle) {
    (void)data;
    if (callback == NULL || handle == NULL) return CUDA_INVALID_VALUE;
    *handle = callback;
    return CUDA_OK;
}

MAYA_API CUresult cuLogsUnregisterCallback(void *handle) { return handle == NULL ? CUDA_INVALID_VALUE : CUDA_OK; }

/* ---- devices ---- */

static bool is_device(CUdevice device) { return device >= 0 && device < maya_visible_devices()->count; }

MAYA_API CUresult cuDeviceGetCount(int *count) {
    *count = maya_visible_devices()->count;
    return CUDA_OK;
}

MAYA_API CUresult cuDeviceGet(CUdevice *device, int index) {
    if (!is_device(index)) return CUDA_INVALID_DEVICE;
    *device = index;
    return CUDA_OK;
}

MAYA_API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    if (!is_device(device)) return CUDA_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", maya_get_settings()->device.name);
    return CUDA_OK;
}

MAYA_API CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device) {
    if (!is_device(device)) return CUDA_INVALID_DEVICE;
    maya_device_uuid(maya_visible_devices()->physical[device], uuid);
    return CUDA_OK;
}

MAYA_API CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }

MAYA_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (!is_device(device)) return CUDA_INVALID_DEVICE;
    *bytes = (size_t)maya_get_settings()->device.memory_bytes;
    return CUDA_OK;
}

MAYA_API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    if (!is_device(device)) return CUDA_INVALID_DEVICE;
    *value = maya_device_attribute_of(device, attribute);
    return *value < 0 ? CUDA_INVALID_VALUE : CUDA_OK;
}

MAYA_API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    if (!is_device(device)) return CUDA_INVALID_DEVICE;
    snprintf(text, (size_t)length, "0000:%02X:00.0", maya_device_attribute_of(device, MAYA_ATTRIBUTE_PCI_BUS));
    return CUDA_OK;
}

MAYA_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    if (!is_device(device) || !is_device(peer)) return CUDA_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_OK;
}

/* ---- contexts: the primary one of each device ---- */

static struct {
    int device;
} contexts[MAYA_MAX_DEVICES];

enum { STACK = 64 };
static __thread CUcontext stack[STACK];
static __thread int stack_used;
static __thread bool current_known; /* false: the thread has not used the driver yet, and the runtime's device is current */

static CUcontext context_of(int device) {
    contexts[device].device = device;
    return (CUcontext)&contexts[device];
}

MAYA_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    int status = maya_use_device(device);
    if (status == CUDA_OK) *context = context_of(device);
    return status;
}

MAYA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return is_device(device) ? CUDA_OK : CUDA_INVALID_DEVICE; }

MAYA_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    if (!is_device(device)) return CUDA_INVALID_DEVICE;
    *flags = 0;
    *active = maya_device_in_use(device);
    return CUDA_OK;
}

MAYA_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    (void)flags;
    return is_device(device) ? CUDA_OK : CUDA_INVALID_DEVICE;
}

MAYA_API CUresult cuCtxGetCurrent(CUcontext *context) {
    int device = maya_current_device();
    *context = current_known || maya_device_in_use(device) ? context_of(device) : NULL;
    return CUDA_OK;
}

MAYA_API CUresult cuCtxSetCurrent(CUcontext context) {
    if (context == NULL) {
        current_known = false;
        return CUDA_OK;
    }
    current_known = true;
    return maya_set_device(context->device);
}

MAYA_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (stack_used == STACK) return CUDA_INVALID_CONTEXT;
    cuCtxGetCurrent(&stack[stack_used++]);
    return cuCtxSetCurrent(context);
}

MAYA_API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (stack_used == 0) return CUDA_INVALID_CONTEXT;
    if (context) cuCtxGetCurrent(context);
    return cuCtxSetCurrent(stack[--stack_used]);
}

MAYA_API CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }

MAYA_API CUresult cuCtxPopCurrent(CUcontext *context) { return cuCtxPopCurrent_v2(context); }

MAYA_API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = maya_current_device();
    return CUDA_OK;
}

/* With the context as an argument since CUDA 13; NULL is the current one. */
MAYA_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    *device = context ? context->device : maya_current_device();
    return CUDA_OK;
}

MAYA_API CUresult cuCtxSynchronize(void) { return maya_device_synchronize(); }

MAYA_API CUresult cuCtxSynchronize_v2(CUcontext context) {
    int current = maya_current_device();
    int status = context ? maya_set_device(context->device) : CUDA_OK;
    if (status == CUDA_OK) status = maya_device_synchronize();
    maya_set_device(current);
    return status;
}

MAYA_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    (void)flags;
    return peer ? CUDA_OK : CUDA_INVALID_CONTEXT;
}

/* Limits of kernels (stack, printf buffer, heap, ...). They are stored and have no effect, because kernels do not run. */
enum { LIMITS = 8 };
static size_t limits[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0};

MAYA_API CUresult cuCtxGetLimit(size_t *value, int limit) {
    if (limit < 0 || limit >= LIMITS) return CUDA_INVALID_VALUE;
    *value = limits[limit];
    return CUDA_OK;
}

MAYA_API CUresult cuCtxSetLimit(int limit, size_t value) {
    if (limit < 0 || limit >= LIMITS) return CUDA_INVALID_VALUE;
    limits[limit] = value;
    return CUDA_OK;
}

MAYA_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_OK;
}
