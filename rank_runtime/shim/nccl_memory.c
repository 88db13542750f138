/* NCCL's memory: the buffers of communicators, memory that it allocates for the program, and registered buffers and windows.
 * Registration has no effect here: it changes how fast NCCL is, not its results. */

#include "nccl_internal.h"

#include <stdlib.h>

enum {
    REGISTRATION_MAGIC = 0x6d617972,
    /* The granularity of cuMemCreate, which NCCL allocates with. */
    ALLOCATION_GRANULARITY = 2 << 20,
};

static int64_t positive_variable(const char *variable, int64_t otherwise) {
    const char *text = getenv(variable);
    long long number = text ? strtoll(text, NULL, 10) : 0;
    return number > 0 ? number : otherwise;
}

/* An estimate; the real size depends on links, GPUs and the algorithms in use. Since 2.22 NCCL connects when a connection is
 * first needed, and nearly every program needs a ring: one connection to receive from per channel, with a buffer for each of
 * the three protocols. The Simple protocol's buffer has NCCL_BUFFSIZE bytes (4 MiB); those of LL128 (8 steps for 640 threads of
 * 120 eight-byte words) and LL (8 steps for 512 threads of 8 sixteen-byte lines) are fixed. NCCL chooses 16 channels on an
 * H100 with NVLink. */
int64_t nccl_buffer_bytes(const nccl_communicator *communicator) {
    const int64_t line_128 = 8 * 640 * 120 * 8, line_8 = 8 * 512 * 8 * 16;
    if (communicator->ranks == 1 || communicator->shares_buffers) return 0;
    int64_t channels = positive_variable("NCCL_MAX_NCHANNELS", 16);
    if (channels > 16) channels = 16;
    if (communicator->channel_limit > 0 && communicator->channel_limit < channels) channels = communicator->channel_limit;
    int64_t bytes = channels * (positive_variable("NCCL_BUFFSIZE", 4 << 20) + line_128 + line_8);
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

/* A registered buffer or window. */
typedef struct {
    uint32_t magic;
    const nccl_communicator *communicator;
    void *address;
} registration;

static nccl_result register_buffer(const char *function, const nccl_communicator *communicator, void *address, size_t size,
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

static nccl_result deregister(const char *function, const nccl_communicator *communicator, registration *handle) {
    nccl_result result = check_registration(function, communicator, handle);
    if (result != NCCL_SUCCESS) return result;
    handle->magic = 0;
    free(handle);
    return NCCL_SUCCESS;
}

MAYA_API nccl_result ncclCommRegister(const nccl_communicator *communicator, void *address, size_t size, void **handle) {
    return register_buffer(__func__, communicator, address, size, (registration **)handle);
}

MAYA_API nccl_result ncclCommDeregister(const nccl_communicator *communicator, void *handle) {
    return deregister(__func__, communicator, handle);
}

MAYA_API nccl_result ncclCommWindowRegister(nccl_communicator *communicator, void *address, size_t size, registration **window,
                                            int flags) {
    (void)flags;
    return register_buffer(__func__, communicator, address, size, window);
}

MAYA_API nccl_result ncclCommWindowDeregister(nccl_communicator *communicator, registration *window) {
    return deregister(__func__, communicator, window);
}

MAYA_API nccl_result ncclWinGetUserPtr(nccl_communicator *communicator, registration *window, void **address) {
    nccl_result result = check_registration(__func__, communicator, window);
    if (result != NCCL_SUCCESS) return result;
    if (address == NULL) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: no place for the result", __func__);
    *address = window->address;
    return NCCL_SUCCESS;
}
