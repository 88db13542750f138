/* libnccl.so.2: communicators. Life cycle, configuration, queries, registered memory and windows.
 *
 * A communicator here is complete as soon as it exists, so a program that asked for a non-blocking one never sees
 * ncclInProgress. The operations are in nccl_collective.c; how members meet is behind nccl_rendezvous_join(). Not
 * emulated are the device-side interface (ncclDevComm*), one-sided operations (ncclPutSignal, ...) and growing a
 * communicator. */

#include "nccl_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#ifndef MAYA_NCCL_VERSION
#define MAYA_NCCL_VERSION 22703
#endif

enum {
    COMMUNICATOR_MAGIC = 0x6d617961,
    REGISTRATION_MAGIC = 0x6d617972,
    UNIQUE_ID_BYTES = 128,
    /* What cuMemCreate, which NCCL allocates with, rounds to. */
    ALLOCATION_GRANULARITY = 2 << 20,
};

typedef struct {
    char bytes[UNIQUE_ID_BYTES];
} nccl_unique_id;

/* The beginning of ncclConfig_t, which grows at its end with nearly every release; `size` is what the caller knows. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config;

/* ---- errors ---- */

static __thread char last_error[256];

nccl_result nccl_fail(nccl_result result, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    if (maya_get_settings()->debug > 0) maya_message("NCCL: %s", last_error);
    return result;
}

nccl_result nccl_check_communicator(const nccl_communicator *communicator, const char *function) {
    if (communicator != NULL && communicator->magic == COMMUNICATOR_MAGIC) return NCCL_SUCCESS;
    return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %p is not a communicator", function, (const void *)communicator);
}

MAYA_API const char *ncclGetErrorString(nccl_result result) {
    static const char *const texts[] = {
        [NCCL_SUCCESS] = "no error",
        [NCCL_CUDA_ERROR] = "unhandled cuda error",
        [NCCL_SYSTEM_ERROR] = "unhandled system error",
        [NCCL_INTERNAL_ERROR] = "internal error",
        [NCCL_INVALID_ARGUMENT] = "invalid argument",
        [NCCL_INVALID_USAGE] = "invalid usage",
        [NCCL_REMOTE_ERROR] = "another process failed",
        [NCCL_IN_PROGRESS] = "operation in progress",
        [NCCL_TIMEOUT] = "operation timed out",
    };
    return (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

MAYA_API const char *ncclGetLastError(const nccl_communicator *communicator) {
    (void)communicator; /* may be NULL; NCCL, too, keeps one text for all communicators */
    return last_error;
}

MAYA_API nccl_result ncclGetVersion(int *version) {
    if (version == NULL) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: version is NULL", __func__);
    *version = MAYA_NCCL_VERSION;
    return NCCL_SUCCESS;
}

/* ---- birth ---- */

MAYA_API nccl_result ncclGetUniqueId(nccl_unique_id *identifier) {
    if (identifier == NULL) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: the identifier is NULL", __func__);
    memset(identifier, 0, sizeof *identifier);
    int length = snprintf(identifier->bytes, sizeof identifier->bytes, "maya rank %d process %d ",
                          maya_get_settings()->rank, (int)getpid());
    if (getrandom(identifier->bytes + length + 1, 16, 0) != 16) return nccl_fail(NCCL_SYSTEM_ERROR, "getrandom failed");
    return NCCL_SUCCESS;
}

static nccl_result check_config(const nccl_config *config, const char *function) {
    enum { CONFIG_MAGIC = 0xcafebeef };
    if (config == NULL) return NCCL_SUCCESS;
    if (config->magic != (unsigned)CONFIG_MAGIC || config->size < sizeof *config) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: the configuration does not begin as NCCL_CONFIG_INITIALIZER does",
                         function);
    }
    if (config->blocking != INT_MIN && config->blocking != 0 && config->blocking != 1) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: blocking is %d, expected 0 or 1", function, config->blocking);
    }
    return NCCL_SUCCESS;
}

static nccl_result create(const char *function, nccl_communicator **communicator, int ranks, int rank, int device,
                          const nccl_unique_id *identifiers, int identifier_count, const nccl_config *config) {
    if (communicator == NULL || ranks < 1 || rank < 0 || rank >= ranks) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: rank %d of %d ranks", function, rank, ranks);
    }
    *communicator = NULL;
    nccl_result result = check_config(config, function);
    if (result != NCCL_SUCCESS) return result;
    nccl_communicator *made = calloc(1, sizeof *made);
    if (made == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
    made->magic = COMMUNICATOR_MAGIC;
    made->ranks = ranks;
    made->rank = rank;
    made->device = device;
    result = nccl_rendezvous_join(made, identifiers, identifier_count);
    if (result != NCCL_SUCCESS) {
        free(made);
        return result;
    }
    *communicator = made;
    return NCCL_SUCCESS;
}

MAYA_API nccl_result ncclCommInitRank(nccl_communicator **communicator, int ranks, nccl_unique_id identifier,
                                      int rank) {
    return create(__func__, communicator, ranks, rank, maya_current_device(), &identifier, 1, NULL);
}

MAYA_API nccl_result ncclCommInitRankConfig(nccl_communicator **communicator, int ranks, nccl_unique_id identifier,
                                            int rank, const nccl_config *config) {
    return create(__func__, communicator, ranks, rank, maya_current_device(), &identifier, 1, config);
}

MAYA_API nccl_result ncclCommInitRankScalable(nccl_communicator **communicator, int ranks, int rank,
                                              int identifier_count, const nccl_unique_id *identifiers,
                                              const nccl_config *config) {
    if (identifiers == NULL || identifier_count < 1 || identifier_count > ranks) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %d identifiers for %d ranks", __func__, identifier_count, ranks);
    }
    return create(__func__, communicator, ranks, rank, maya_current_device(), identifiers, identifier_count, config);
}

MAYA_API nccl_result ncclCommInitAll(nccl_communicator **communicators, int devices, const int *device_list) {
    if (communicators == NULL || devices < 1) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %d devices", __func__, devices);
    }
    nccl_unique_id identifier;
    nccl_result result = ncclGetUniqueId(&identifier);
    for (int i = 0; i < devices && result == NCCL_SUCCESS; i++) {
        int device = device_list ? device_list[i] : i;
        result = create(__func__, &communicators[i], devices, i, device, &identifier, 1, NULL);
    }
    return result;
}

MAYA_API nccl_result ncclCommSplit(nccl_communicator *parent, int color, int key, nccl_communicator **communicator,
                                   const nccl_config *config) {
    enum { NO_COLOR = -1 };
    (void)key; /* orders the members; there is one */
    nccl_result result = nccl_check_communicator(parent, __func__);
    if (result != NCCL_SUCCESS) return result;
    if (communicator == NULL || color < NO_COLOR) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: color %d", __func__, color);
    }
    if (color == NO_COLOR) {
        *communicator = NULL;
        return check_config(config, __func__);
    }
    return create(__func__, communicator, parent->ranks, parent->rank, parent->device, NULL, 0, config);
}

/* The calling rank stays, so a communicator of one rank has nobody to leave it. */
MAYA_API nccl_result ncclCommShrink(nccl_communicator *parent, const int *excluded, int excluded_count,
                                    nccl_communicator **communicator, const nccl_config *config, int flags) {
    (void)excluded, (void)communicator, (void)config, (void)flags;
    nccl_result result = nccl_check_communicator(parent, __func__);
    if (result != NCCL_SUCCESS) return result;
    return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %d of %d ranks excluded", __func__, excluded_count, parent->ranks);
}

/* ---- death ---- */

MAYA_API nccl_result ncclCommFinalize(nccl_communicator *communicator) {
    return nccl_check_communicator(communicator, __func__);
}

static nccl_result destroy(nccl_communicator *communicator, const char *function) {
    if (communicator == NULL) return NCCL_SUCCESS;
    nccl_result result = nccl_check_communicator(communicator, function);
    if (result != NCCL_SUCCESS) return result;
    nccl_rendezvous_leave(communicator);
    communicator->magic = 0; /* so that a later use of the handle is found */
    free(communicator);
    return NCCL_SUCCESS;
}

MAYA_API nccl_result ncclCommDestroy(nccl_communicator *communicator) { return destroy(communicator, __func__); }

MAYA_API nccl_result ncclCommAbort(nccl_communicator *communicator) { return destroy(communicator, __func__); }

/* Nothing can be in flight on a communicator of one rank that would have to be stopped. */
MAYA_API nccl_result ncclCommRevoke(nccl_communicator *communicator, int flags) {
    if (flags != 0) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: flags %d, expected 0", __func__, flags);
    return nccl_check_communicator(communicator, __func__);
}

/* ---- queries ---- */

static nccl_result query(const nccl_communicator *communicator, int *target, size_t offset, const char *function) {
    nccl_result result = nccl_check_communicator(communicator, function);
    if (result != NCCL_SUCCESS) return result;
    if (target == NULL) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: no place for the result", function);
    memcpy(target, (const char *)communicator + offset, sizeof *target);
    return NCCL_SUCCESS;
}

MAYA_API nccl_result ncclCommCount(const nccl_communicator *communicator, int *count) {
    return query(communicator, count, offsetof(nccl_communicator, ranks), __func__);
}

MAYA_API nccl_result ncclCommUserRank(const nccl_communicator *communicator, int *rank) {
    return query(communicator, rank, offsetof(nccl_communicator, rank), __func__);
}

MAYA_API nccl_result ncclCommCuDevice(const nccl_communicator *communicator, int *device) {
    return query(communicator, device, offsetof(nccl_communicator, device), __func__);
}

MAYA_API nccl_result ncclCommGetAsyncError(const nccl_communicator *communicator, nccl_result *error) {
    nccl_result result = nccl_check_communicator(communicator, __func__);
    if (result == NCCL_SUCCESS && error != NULL) *error = NCCL_SUCCESS;
    return result;
}

/* ---- memory ---- */

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

/* Memory made known to a communicator: a buffer or a window. It changes how fast NCCL is, not what it does. */
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

static nccl_result check_registration(const char *function, const nccl_communicator *communicator,
                                      const registration *handle) {
    nccl_result result = nccl_check_communicator(communicator, function);
    if (result != NCCL_SUCCESS) return result;
    bool ours = handle != NULL && handle->magic == REGISTRATION_MAGIC && handle->communicator == communicator;
    if (ours) return NCCL_SUCCESS;
    return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %p was not registered with this communicator", function,
                     (const void *)handle);
}

static nccl_result withdraw(const char *function, const nccl_communicator *communicator, registration *handle) {
    nccl_result result = check_registration(function, communicator, handle);
    if (result != NCCL_SUCCESS) return result;
    handle->magic = 0;
    free(handle);
    return NCCL_SUCCESS;
}

MAYA_API nccl_result ncclCommRegister(const nccl_communicator *communicator, void *address, size_t size,
                                      void **handle) {
    return enroll(__func__, communicator, address, size, (registration **)handle);
}

MAYA_API nccl_result ncclCommDeregister(const nccl_communicator *communicator, void *handle) {
    return withdraw(__func__, communicator, handle);
}

MAYA_API nccl_result ncclCommWindowRegister(nccl_communicator *communicator, void *address, size_t size,
                                            registration **window, int flags) {
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
