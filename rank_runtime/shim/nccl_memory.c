/* Memory that NCCL takes for itself, memory that it allocates for the program, and memory made known to it: buffers and
 * windows. Registration changes how fast NCCL is, not what it does. */

#include "nccl_internal.h"

#include <stdlib.h>

enum {
    REGISTRATION_MAGIC = 0x6d617972,
    /* What cuMemCreate, which NCCL allocates with, rounds to. */
    ALLOCATION_GRANULARITY = 2 << 20,
};

static int64_t chosen(const char *variable, int64_t otherwise) {
    const char *text = getenv(variable);
    long long number = text ? strtoll(text, NULL, 10) : 0;
    return number > 0 ? number : otherwise;
}

/* An estimate; how much it really is depends on links, GPUs and the algorithms that come to be used. NCCL connects when a
 * connection is first needed (since 2.22), and what nearly every program needs is a ring: on each channel one connection
 * to receive from, with a buffer for each of the three protocols. Those of the simple one have NCCL_BUFFSIZE bytes (4 MiB),
 * those of the other two are fixed: 8 steps for 640 threads of 120 eight-byte words, and 8 steps for 512 threads of 8
 * sixteen-byte lines. 16 channels are what NCCL chooses on an H100 with NVLink. */
int64_t nccl_buffer_bytes(const nccl_communicator *communicator) {
    const int64_t line_128 = 8 * 640 * 120 * 8, line_8 = 8 * 512 * 8 * 16;
    if (communicator->ranks == 1 || communicator->shares_buffers) return 0;
    int64_t channels = chosen("NCCL_MAX_NCHANNELS", 16);
    if (channels > 16) channels = 16;
    if (communicator->channel_limit > 0 && communicator->channel_limit < channels) channels = communicator->channel_limit;
    int64_t bytes = channels * (chosen("NCCL_BUFFSIZE", 4 << 20) + line_128 + line_8);
    return (bytes + ALLOCATION_GRANULARITY - 1) / ALLOCATION_GRANULARITY * ALLOCATION_GRANULARITY;
}

MAYA_API nccl_result ncclMemAlloc(void **address, size_t size) {
    if (address == NULL || size == 0) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %zu bytes", __func__, size);
    size_t rounded = (size + ALLOCATION_GRANULARITY - 1) / ALLOCATION_GRANULARITY * ALLOCATION_GRANULARITY;
    int error = maya_device_malloc(maya_current_device(), rounded, address);
    if (error == 0) return NCCL_SUCCESS;
    return nccl_fail(NCCL_CUDA_ERROR, "%s: %zu bytes: CUDA error %d", __func__, rounded, error);
}

MAYA_API nccl_result ncclMemFree(void *address) {
    if (address == NULL) return NCCL_SUCCESS;
    int error = maya_device_free(address);
    if (error == 0) return NCCL_SUCCESS;
    return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %p: CUDA error %d", __func__, address, error);
}

/* A buffer or a window. */
typedef struct {
    uint32_t magic;
    const nccl_communicator *communicator;
    void *address;
} registration;

static nccl_result enroll(const char *function, const nccl_communicator *communicator, void *address, size_t size,
                          registration **handle) {
    nccl_result result = nccl_check_communicator(communicator, function);
    if (result != NCCL_SUCCESS) return result;
    if (address == NULL || handle == NULL) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %zu bytes at %p", function, size, address);
    }
    registration *made = malloc(sizeof *made);
    if (made == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
    *made = (registration){.magic = REGISTRATION_MAGIC, .communicator = communicator, .address = address};
    *handle = made;
    return NCCL_SUCCESS;
}

static nccl_result check_registration(const char *function, const nccl_communicator *communicator, const registration *handle) {
    nccl_result result = nccl_check_communicator(communicator, function);
    if (result != NCCL_SUCCESS) return result;
    bool ours = handle != NULL && handle->magic == REGISTRATION_MAGIC && handle->communicator == communicator;
    if (ours) return NCCL_SUCCESS;
    return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %p was not registered with this communicator", function, (const void *)handle);
}

static nccl_result withdraw(const char *function, const nccl_communicator *communicator, registration *handle) {
    nccl_result result = check_registration(function, communicator, handle);
    if (result != NCCL_SUCCESS) return result;
    handle->magic = 0;
    free(handle);
    return NCCL_SUCCESS;
}

MAYA_API nccl_result ncclCommRegister(const nccl_communicator *communicator, void *address, size_t size, void **handle) {
    return enroll(__func__, communicator, address, size, (registration **)handle);
}

MAYA_API nccl_result ncclCommDeregister(const nccl_communicator *communicator, void *handle) {
    return withdraw(__func__, communicator, handle);
}

MAYA_API nccl_result ncclCommWindowRegister(nccl_communicator *communicator, void *address, size_t size, registration **window,
                                            int flags) {
    (void)flags;
    return enroll(__func__, communicator, address, size, window);
}

MAYA_API nccl_result ncclCommWindowDeregister(nccl_communicator *communicator, registration *window) {
    return withdraw(__func__, communicator, window);
}

MAYA_API nccl_result ncclWinGetUserPtr(nccl_communicator *communicator, registration *window, void **address) {
    nccl_result result = check_registration(__func__, communicator, window);
    if (result != NCCL_SUCCESS) return result;
    if (address == NULL) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: no place for the result", __func__);
    *address = window->address;
    return NCCL_SUCCESS;
}
