/* libcuda: memory, virtual memory management, pointers, copies and fills. */

#include "cuda_common.h"

#include <string.h>

/* ---- allocation ---- */

MAYA_API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    return maya_device_malloc(maya_current_device(), size, (void **)address);
}

MAYA_API CUresult cuMemFree_v2(CUdeviceptr address) { return maya_device_free((void *)address); }

MAYA_API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags) {
    (void)flags;
    return maya_managed_malloc(maya_current_device(), size, (void **)address);
}

MAYA_API CUresult cuMemAllocHost_v2(void **address, size_t size) { return maya_host_malloc(size, address); }

MAYA_API CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    (void)flags;
    return maya_host_malloc(size, address);
}

MAYA_API CUresult cuMemFreeHost(void *address) { return maya_host_free(address); }

MAYA_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    int status = maya_use_device(maya_current_device());
    if (status == CUDA_OK) maya_memory_info(maya_current_device(), free_bytes, total_bytes);
    return status;
}

MAYA_API CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) {
    return maya_pool_malloc(maya_current_device(), size, stream, (void **)address);
}

MAYA_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) { return maya_pool_free((void *)address, stream); }

/* ---- virtual memory management ---- */

typedef struct {
    int type, id;
} memory_location;

typedef struct {
    int type, requested_handle_types;
    memory_location location;
    void *win32_metadata;
    struct {
        unsigned char compression_type, gpu_direct_rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} allocation_properties;

enum { GRANULARITY = 2 << 20, POSIX_FILE_DESCRIPTOR = 1, FABRIC = 8 };

MAYA_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const allocation_properties *properties, int option) {
    (void)properties;
    (void)option;
    *granularity = GRANULARITY;
    return CUDA_OK;
}

MAYA_API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted, uint64_t flags) {
    (void)wanted; /* a hint */
    (void)flags;
    if (size == 0 || size % GRANULARITY != 0) return CUDA_INVALID_VALUE;
    return maya_vmm_reserve(size, alignment, (void **)address);
}

MAYA_API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) { return maya_vmm_release_range((void *)address, size); }

MAYA_API CUresult cuMemCreate(uint64_t *handle, size_t size, const allocation_properties *properties, uint64_t flags) {
    (void)flags;
    if (size == 0 || size % GRANULARITY != 0) return CUDA_INVALID_VALUE;
    unsigned types = (unsigned)properties->requested_handle_types;
    if (types & FABRIC) return CUDA_NOT_PERMITTED; /* as on a node without the IMEX service; callers ask without it then */
    if (types & ~(unsigned)POSIX_FILE_DESCRIPTOR) {
        maya_unsupported_detail("cuMemCreate", "handle type %u; only POSIX file descriptors can be exported", types);
        return CUDA_NOT_SUPPORTED;
    }
    return maya_vmm_create(properties->location.id, size, types, handle);
}

MAYA_API CUresult cuMemRelease(uint64_t handle) { return maya_vmm_release(handle); }

MAYA_API CUresult cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    return maya_vmm_retain_by_address(address, handle);
}

MAYA_API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, uint64_t handle, uint64_t flags) {
    (void)flags;
    return maya_vmm_map((void *)address, size, offset, handle);
}

MAYA_API CUresult cuMemUnmap(CUdeviceptr address, size_t size) { return maya_vmm_unmap((void *)address, size); }

MAYA_API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const void *descriptors, size_t count) {
    (void)address; /* all devices can read and write mapped memory */
    (void)size;
    (void)descriptors;
    (void)count;
    return CUDA_OK;
}

MAYA_API CUresult cuMemGetAllocationPropertiesFromHandle(allocation_properties *properties, uint64_t handle) {
    int device;
    unsigned types;
    int status = maya_vmm_describe(handle, &device, &types);
    if (status == CUDA_OK) {
        *properties = (allocation_properties){.type = 1, .requested_handle_types = (int)types, .location = {1, device}};
    }
    return status;
}

MAYA_API CUresult cuMemExportToShareableHandle(void *shareable, uint64_t handle, int type, uint64_t flags) {
    (void)flags;
    if (type != POSIX_FILE_DESCRIPTOR) {
        maya_unsupported_detail("cuMemExportToShareableHandle", "handle type %d", type);
        return CUDA_NOT_SUPPORTED;
    }
    return maya_vmm_export(handle, shareable);
}

MAYA_API CUresult cuMemImportFromShareableHandle(uint64_t *handle, void *shareable, int type) {
    if (type != POSIX_FILE_DESCRIPTOR) {
        maya_unsupported_detail("cuMemImportFromShareableHandle", "handle type %d", type);
        return CUDA_NOT_SUPPORTED;
    }
    return maya_vmm_import((int)(intptr_t)shareable, handle);
}

/* ---- pointers ---- */

MAYA_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    maya_allocation_info info = maya_find_allocation((void *)address);
    if (info.type == MAYA_MEMORY_UNREGISTERED) return CUDA_NOT_FOUND;
    if (base) *base = (CUdeviceptr)info.base;
    if (size) *size = info.size;
    return CUDA_OK;
}

MAYA_API CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    return cuMemGetAddressRange_v2(base, size, address);
}

MAYA_API CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
    enum {
        CONTEXT = 1,
        MEMORY_TYPE = 2,
        DEVICE_POINTER = 3,
        HOST_POINTER = 4,
        SYNC_MEMOPS = 6,
        BUFFER_ID = 7,
        IS_MANAGED = 8,
        DEVICE_ORDINAL = 9,
        IPC_CAPABLE = 10,
        RANGE_START = 11,
        RANGE_SIZE = 12,
        MAPPED = 13
    };
    maya_allocation_info info = maya_find_allocation((void *)address);
    if (info.type == MAYA_MEMORY_UNREGISTERED) return CUDA_INVALID_VALUE;
    switch (attribute) {
        case MEMORY_TYPE:
            *(unsigned *)value = info.type == MAYA_MEMORY_HOST ? MAYA_MEMORY_HOST : MAYA_MEMORY_DEVICE;
            return CUDA_OK;
        case DEVICE_POINTER: *(CUdeviceptr *)value = address; return CUDA_OK;
        case HOST_POINTER:
            if (info.type == MAYA_MEMORY_DEVICE) return CUDA_INVALID_VALUE;
            *(void **)value = (void *)address;
            return CUDA_OK;
        case BUFFER_ID: *(uint64_t *)value = info.number; return CUDA_OK;
        case IS_MANAGED: *(unsigned *)value = info.type == MAYA_MEMORY_MANAGED; return CUDA_OK;
        case DEVICE_ORDINAL: *(int *)value = info.device; return CUDA_OK;
        case IPC_CAPABLE: *(int *)value = info.type == MAYA_MEMORY_DEVICE; return CUDA_OK;
        case RANGE_START: *(void **)value = info.base; return CUDA_OK;
        case RANGE_SIZE: *(size_t *)value = info.size; return CUDA_OK;
        case MAPPED: *(int *)value = 1; return CUDA_OK;
        default: maya_unsupported_detail("cuPointerGetAttribute", "attribute %d", attribute); return CUDA_NOT_SUPPORTED;
    }
}

MAYA_API CUresult cuPointerGetAttributes(unsigned count, const int *attributes, void **values, CUdeviceptr address) {
    for (unsigned i = 0; i < count; i++) {
        if (cuPointerGetAttribute(values[i], attributes[i], address) != CUDA_OK && values[i]) *(int *)values[i] = 0;
    }
    return CUDA_OK;
}

MAYA_API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) {
    enum { SYNC_MEMOPS = 6 };
    (void)value;
    (void)address;
    return attribute == SYNC_MEMOPS ? CUDA_OK : CUDA_INVALID_VALUE;
}

/* ---- copies and fills ---- */

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream, bool blocking) {
    maya_copy flat = {.destination = (void *)to, .source = (const void *)from, .width = size, .rows = 1, .blocking = blocking};
    return maya_copy_submit(stream, &flat);
}

MAYA_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) { return copy(to, from, size, NULL, true); }

MAYA_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    return copy(to, from, size, stream, false);
}

MAYA_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    return copy(to, (CUdeviceptr)from, size, NULL, true);
}

MAYA_API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    return copy((CUdeviceptr)to, from, size, NULL, true);
}

MAYA_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) { return copy(to, from, size, NULL, false); }

MAYA_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    return copy(to, (CUdeviceptr)from, size, stream, false);
}

MAYA_API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    return copy((CUdeviceptr)to, from, size, stream, false);
}

MAYA_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    return copy(to, from, size, stream, false);
}

MAYA_API CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count) {
    return maya_fill_submit(NULL, (void *)address, value, 1, count, 1, 0, true);
}

MAYA_API CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream) {
    return maya_fill_submit(stream, (void *)address, value, 1, count, 1, 0, false);
}

MAYA_API CUresult cuMemsetD32_v2(CUdeviceptr address, unsigned value, size_t count) {
    return maya_fill_submit(NULL, (void *)address, value, 4, count * 4, 1, 0, true);
}

MAYA_API CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
    return maya_fill_submit(stream, (void *)address, value, 4, count * 4, 1, 0, false);
}
