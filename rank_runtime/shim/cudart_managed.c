/* libcudart: hints about managed memory. It lives on the device here from its allocation on (device/memory.c), so a hint moves
 * no pages and takes no time; addresses and devices are checked. */

#include "cudart_common.h"

enum { CPU_DEVICE = -1 }; /* cudaCpuDeviceId */

static int check(const void *address, size_t count, int device) {
    maya_allocation_info info = maya_find_allocation(address);
    if (device < CPU_DEVICE || device >= maya_visible_devices()->count) return CUDA_INVALID_DEVICE;
    if (info.type != MAYA_MEMORY_MANAGED || count == 0) return CUDA_INVALID_VALUE;
    bool is_inside = (uintptr_t)address + count <= (uintptr_t)info.base + info.size;
    return is_inside ? CUDA_OK : CUDA_INVALID_VALUE;
}

typedef struct {
    int type, number;
} location; /* cudaMemLocation */

static int check_at(const void *address, size_t count, location place) {
    enum { DEVICE = 1 };
    return check(address, count, place.type == DEVICE ? place.number : CPU_DEVICE);
}

#if MAYA_CUDA_VERSION >= 13000
MAYA_API cudaError_t cudaMemPrefetchAsync(const void *address, size_t count, location place, unsigned flags,
                                          cudaStream_t stream) {
    (void)flags, (void)stream;
    return cudart_result(check_at(address, count, place));
}

MAYA_API cudaError_t cudaMemAdvise(const void *address, size_t count, int advice, location place) {
    (void)advice;
    return cudart_result(check_at(address, count, place));
}
#else
MAYA_API cudaError_t cudaMemPrefetchAsync(const void *address, size_t count, int device, cudaStream_t stream) {
    (void)stream;
    return cudart_result(check(address, count, device));
}

MAYA_API cudaError_t cudaMemAdvise(const void *address, size_t count, int advice, int device) {
    (void)advice;
    return cudart_result(check(address, count, device));
}

MAYA_API cudaError_t cudaMemPrefetchAsync_v2(const void *address, size_t count, location place, unsigned flags,
                                             cudaStream_t stream) {
    (void)flags, (void)stream;
    return cudart_result(check_at(address, count, place));
}

MAYA_API cudaError_t cudaMemAdvise_v2(const void *address, size_t count, int advice, location place) {
    (void)advice;
    return cudart_result(check_at(address, count, place));
}
#endif
