/* libcudart: memory of devices and host, copies and fills, pointer attributes, memory shared with other processes. */

#include "cudart_common.h"

#include <stdlib.h>
#include <string.h>

/* ---- allocation ---- */

MAYA_API cudaError_t cudaMalloc(void **address, size_t size) {
    return cudart_result(maya_device_malloc(maya_current_device(), size, address));
}

MAYA_API cudaError_t cudaFree(void *address) {
    /* cudaFree(NULL) is the customary way to create the context */
    if (address == NULL) return cudart_result(maya_use_device(maya_current_device()));
    return cudart_result(maya_device_free(address));
}

MAYA_API cudaError_t cudaMallocManaged(void **address, size_t size, unsigned flags) {
    (void)flags;
    return cudart_result(maya_managed_malloc(maya_current_device(), size, address));
}

MAYA_API cudaError_t cudaMallocHost(void **address, size_t size) { return cudart_result(maya_host_malloc(size, address)); }

MAYA_API cudaError_t cudaHostAlloc(void **address, size_t size, unsigned flags) {
    (void)flags; /* portable, mapped, write-combined: all host memory is reachable from everywhere */
    return cudart_result(maya_host_malloc(size, address));
}

MAYA_API cudaError_t cudaFreeHost(void *address) { return cudart_result(maya_host_free(address)); }

MAYA_API cudaError_t cudaHostRegister(void *address, size_t size, unsigned flags) {
    (void)flags;
    return cudart_result(maya_host_register(address, size));
}

MAYA_API cudaError_t cudaHostUnregister(void *address) { return cudart_result(maya_host_unregister(address)); }

MAYA_API cudaError_t cudaHostGetDevicePointer(void **device_address, void *host_address, unsigned flags) {
    (void)flags;
    *device_address = host_address;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    int status = maya_use_device(maya_current_device());
    if (status == CUDA_OK) maya_memory_info(maya_current_device(), free_bytes, total_bytes);
    return cudart_result(status);
}

/* ---- memory pools; a pool handle points to the state of the device's only pool, the default one ---- */

static maya_pool_state *pool_handle(int device) { return maya_pool_of(device); }

static int pool_device(const maya_pool_state *pool) { return (int)(pool - maya_pool_of(0)); }

MAYA_API cudaError_t cudaMallocAsync(void **address, size_t size, cudaStream_t stream) {
    return cudart_result(maya_pool_malloc(maya_current_device(), size, stream, address));
}

MAYA_API cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
    return cudart_result(maya_pool_free(address, stream));
}

MAYA_API cudaError_t cudaDeviceGetDefaultMemPool(maya_pool_state **pool, int device) {
    if (device < 0 || device >= maya_visible_devices()->count) return cudart_result(CUDA_INVALID_DEVICE);
    *pool = pool_handle(device);
    return CUDA_OK;
}

enum {
    POOL_REUSE_FIRST = 1,
    POOL_REUSE_LAST = 3,
    POOL_THRESHOLD = 4,
    POOL_RESERVED,
    POOL_RESERVED_HIGH,
    POOL_USED,
    POOL_USED_HIGH
};

MAYA_API cudaError_t cudaMemPoolGetAttribute(maya_pool_state *pool, int attribute, void *value) {
    uint64_t *number = value;
    switch (attribute) {
        case POOL_THRESHOLD: *number = pool->release_threshold; return CUDA_OK;
        case POOL_RESERVED: *number = pool->reserved; return CUDA_OK;
        case POOL_RESERVED_HIGH: *number = pool->reserved_high; return CUDA_OK;
        case POOL_USED: *number = pool->used; return CUDA_OK;
        case POOL_USED_HIGH: *number = pool->used_high; return CUDA_OK;
        default: break;
    }
    if (attribute < POOL_REUSE_FIRST || attribute > POOL_REUSE_LAST) return cudart_result(CUDA_INVALID_VALUE);
    *(int *)value = 1;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaMemPoolSetAttribute(maya_pool_state *pool, int attribute, void *value) {
    switch (attribute) {
        case POOL_THRESHOLD: pool->release_threshold = *(uint64_t *)value; return CUDA_OK;
        case POOL_RESERVED_HIGH: pool->reserved_high = pool->reserved; return CUDA_OK; /* only a reset to 0 is allowed */
        case POOL_USED_HIGH: pool->used_high = pool->used; return CUDA_OK;
        default: break;
    }
    bool is_reuse_policy = attribute >= POOL_REUSE_FIRST && attribute <= POOL_REUSE_LAST;
    return is_reuse_policy ? CUDA_OK : cudart_result(CUDA_INVALID_VALUE);
}

MAYA_API cudaError_t cudaMemPoolTrimTo(maya_pool_state *pool, size_t keep) {
    maya_pool_trim(pool_device(pool), keep);
    return CUDA_OK;
}

MAYA_API cudaError_t cudaMemPoolSetAccess(maya_pool_state *pool, const void *accesses, size_t count) {
    (void)pool;
    (void)accesses; /* every device can access all memory */
    (void)count;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value) {
    (void)device;
    (void)attribute;
    *(uint64_t *)value = 0; /* graphs allocate no memory here */
    return CUDA_OK;
}

MAYA_API cudaError_t cudaDeviceSetGraphMemAttribute(int device, int attribute, void *value) {
    (void)device;
    (void)attribute;
    (void)value;
    return CUDA_OK;
}

/* ---- copies ---- */

static cudaError_t copy_flat(void *to, const void *from, size_t size, cudaStream_t stream, bool blocking) {
    maya_copy copy = {.destination = to, .source = from, .width = size, .rows = 1, .blocking = blocking};
    return cudart_result(maya_copy_submit(stream, &copy));
}

static cudaError_t copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                             cudaStream_t stream, bool blocking) {
    if (width > to_pitch || width > from_pitch) return cudart_result(CUDA_INVALID_PITCH);
    maya_copy copy = {.destination = to,
                      .source = from,
                      .width = width,
                      .rows = rows,
                      .destination_pitch = to_pitch,
                      .source_pitch = from_pitch,
                      .blocking = blocking};
    return cudart_result(maya_copy_submit(stream, &copy));
}

MAYA_API cudaError_t cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    (void)kind; /* derived from the addresses, as the real runtime does with unified addressing */
    return copy_flat(to, from, size, NULL, true);
}

MAYA_API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, cudaStream_t stream) {
    (void)kind;
    return copy_flat(to, from, size, stream, false);
}

MAYA_API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                         cudaStream_t stream) {
    (void)to_device;
    (void)from_device;
    return copy_flat(to, from, size, stream, false);
}

MAYA_API cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t size) {
    (void)to_device;
    (void)from_device;
    return copy_flat(to, from, size, NULL, true);
}

MAYA_API cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                                  int kind) {
    (void)kind;
    return copy_rows(to, to_pitch, from, from_pitch, width, rows, NULL, true);
}

MAYA_API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                       size_t rows, int kind, cudaStream_t stream) {
    (void)kind;
    return copy_rows(to, to_pitch, from, from_pitch, width, rows, stream, false);
}

MAYA_API cudaError_t cudaMemset(void *address, int value, size_t size) {
    return cudart_result(maya_fill_submit(NULL, address, (uint8_t)value, 1, size, 1, 0, true));
}

MAYA_API cudaError_t cudaMemsetAsync(void *address, int value, size_t size, cudaStream_t stream) {
    return cudart_result(maya_fill_submit(stream, address, (uint8_t)value, 1, size, 1, 0, false));
}

/* ---- pointers ---- */

typedef struct {
    int type, device;
    void *device_pointer, *host_pointer;
#if MAYA_CUDA_VERSION >= 13000
    long reserved[8];
#endif
} pointer_attributes;

MAYA_API cudaError_t cudaPointerGetAttributes(pointer_attributes *attributes, const void *address) {
    enum { INVALID_DEVICE_ID = -2 }; /* cudaInvalidDeviceId */
    maya_allocation_info info = maya_find_allocation(address);
    bool known = info.type != MAYA_MEMORY_UNREGISTERED;
    *attributes = (pointer_attributes){
        .type = info.type,
        .device = known ? info.device : INVALID_DEVICE_ID,
        .device_pointer = known ? (void *)address : NULL,
        .host_pointer = info.type == MAYA_MEMORY_DEVICE ? NULL : (void *)address,
    };
    return CUDA_OK;
}

/* ---- other processes ---- */

typedef struct {
    unsigned char bytes[64];
} ipc_handle;

MAYA_API cudaError_t cudaIpcGetMemHandle(ipc_handle *handle, void *address) {
    return cudart_result(maya_ipc_export(address, handle->bytes));
}

MAYA_API cudaError_t cudaIpcOpenMemHandle(void **address, ipc_handle handle, unsigned flags) {
    (void)flags;
    return cudart_result(maya_ipc_open(handle.bytes, maya_current_device(), address));
}

MAYA_API cudaError_t cudaIpcCloseMemHandle(void *address) { return cudart_result(maya_ipc_close(address)); }

MAYA_API cudaError_t cudaIpcGetEventHandle(ipc_handle *handle, cudaEvent_t event) {
    return cudart_result(maya_event_export(event, handle->bytes));
}

MAYA_API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, ipc_handle handle) {
    return cudart_result(maya_event_open(handle.bytes, event));
}
