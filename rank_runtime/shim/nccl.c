/* libnccl.so.2: communicators. Life cycle, configuration, queries.
 *
 * A communicator is ready when all its members have called init. The init of a blocking communicator waits for that in the call
 * or, inside a group, at the end of the group; the init of a non-blocking one returns ncclInProgress, and ncclCommGetAsyncError
 * tells when it is ready. A communicator of one rank is ready at once. Operations never block: they wait in their streams.
 *
 * Not emulated: the device-side interface (ncclDevComm*), one-sided operations (ncclPutSignal, ...) and growing a communicator.
 */

#include "nccl_internal.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    COMMUNICATOR_MAGIC = 0x6d617961,
    UNIQUE_ID_BYTES = 128,
};

typedef struct {
    char bytes[UNIQUE_ID_BYTES];
} nccl_unique_id;

/* The first fields of ncclConfig_t, which grows at its end with nearly every release; `size` is the size that the caller was
 * compiled with. INT_MIN stands for the default. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
    /* missing in the oldest configurations: */
    int cluster_size, min_channels, max_channels;
    const char *network;
    int split_shares;
} nccl_config;

enum { SMALLEST_CONFIG = offsetof(nccl_config, cluster_size) };

/* ---- errors ---- */

static __thread char last_error[512];
static char first_late_error[512]; /* for threads without an error of their own, such as torch's watchdog */

nccl_result nccl_fail(nccl_result result, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    nccl_debug_warn(last_error, strlen(last_error));
    if (maya_get_settings()->debug > 0) maya_message("NCCL: %s", last_error);
    return result;
}

void nccl_keep_late_error(const char *text) {
    if (first_late_error[0] == '\0') snprintf(first_late_error, sizeof first_late_error, "%s", text);
}

nccl_result nccl_check_communicator(const nccl_communicator *communicator, const char *function) {
    if (communicator != NULL && communicator->magic == COMMUNICATOR_MAGIC) return NCCL_SUCCESS;
    return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %p is not a communicator", function, (const void *)communicator);
}

nccl_result nccl_check_ready(nccl_communicator *communicator, const char *function) {
    nccl_result result = nccl_check_communicator(communicator, function);
    if (result != NCCL_SUCCESS) return result;
    result = nccl_finish_init(communicator);
    if (result == NCCL_IN_PROGRESS) {
        return nccl_fail(NCCL_INVALID_ARGUMENT,
                         "%s: the communicator is not ready: ncclCommGetAsyncError has not said "
                         "ncclSuccess yet",
                         function);
    }
    if (result != NCCL_SUCCESS) return nccl_fail(result, "%s: %s", function, communicator->error);
    if (communicator->gone || communicator->finalized) {
        return nccl_fail(NCCL_INVALID_USAGE, "%s: the communicator has been %s", function,
                         communicator->gone ? "revoked or aborted" : "finalized");
    }
    return NCCL_SUCCESS;
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
    bool has_error = communicator != NULL && communicator->magic == COMMUNICATOR_MAGIC && communicator->error[0];
    if (has_error) return communicator->error;
    return last_error[0] ? last_error : first_late_error;
}

MAYA_API nccl_result ncclGetVersion(int *version) {
    if (version == NULL) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: version is NULL", __func__);
    *version = MAYA_NCCL_VERSION;
    return NCCL_SUCCESS;
}

/* ---- init ---- */

MAYA_API nccl_result ncclGetUniqueId(nccl_unique_id *identifier) {
    if (identifier == NULL) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: the identifier is NULL", __func__);
    memset(identifier, 0, sizeof *identifier);
    int length = snprintf(identifier->bytes, sizeof identifier->bytes, "maya rank %d process %d ", maya_get_settings()->rank,
                          (int)getpid());
    if (getrandom(identifier->bytes + length + 1, 16, 0) != 16) return nccl_fail(NCCL_SYSTEM_ERROR, "getrandom failed");
    return NCCL_SUCCESS;
}

static nccl_result check_config(const nccl_config *config, const char *function) {
    enum { CONFIG_MAGIC = 0xcafebeef };
    if (config == NULL) return NCCL_SUCCESS;
    if (config->magic != (unsigned)CONFIG_MAGIC || config->size < SMALLEST_CONFIG) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: the configuration does not begin as NCCL_CONFIG_INITIALIZER does",
                         function);
    }
    if (config->blocking != INT_MIN && config->blocking != 0 && config->blocking != 1) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: blocking is %d, expected 0 or 1", function, config->blocking);
    }
    return NCCL_SUCCESS;
}

static bool has_option(const nccl_config *config, size_t end) { return config != NULL && config->size >= end; }

/* A communicator before its rendezvous; NULL: out of memory. `config` NULL: the configuration of `parent`. */
static nccl_communicator *new_communicator(const char *function, int ranks, int rank, int device, const nccl_config *config,
                                           const nccl_communicator *parent) {
    static uint32_t asked_for;
    nccl_communicator *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    *made = (nccl_communicator){
        .magic = COMMUNICATOR_MAGIC,
        .number = __atomic_add_fetch(&asked_for, 1, __ATOMIC_RELAXED),
        .function = function,
        .device = device,
        .blocking = config ? config->blocking != 0 : parent == NULL || parent->blocking,
        .shares_buffers =
            parent && has_option(config, offsetof(nccl_config, split_shares) + sizeof(int)) && config->split_shares == 1,
        .channel_limit = has_option(config, offsetof(nccl_config, max_channels) + sizeof(int)) && config->max_channels > 0
                             ? config->max_channels
                             : 0,
        .references = 1,
        .state = NCCL_IN_PROGRESS,
        .ranks = ranks,
        .rank = rank,
    };
    return made;
}

nccl_result nccl_wait_for_init(nccl_communicator **handle) {
    nccl_communicator *communicator = *handle;
    pthread_mutex_lock(&nccl_lock);
    while (communicator->state == NCCL_IN_PROGRESS) pthread_cond_wait(&nccl_changed, &nccl_lock);
    pthread_mutex_unlock(&nccl_lock);
    nccl_result result = nccl_finish_init(communicator);
    if (result == NCCL_SUCCESS) return result;
    nccl_fail(result, "%s: %s", communicator->function, communicator->error);
    communicator->magic = 0;
    *handle = NULL;
    nccl_leave(communicator, true);
    return result;
}

/* Continues an init whose rendezvous has begun, or failed to begin (`begun`): waits for it unless it is non-blocking or in a
 * group. */
static nccl_result begin_init(nccl_communicator **handle, nccl_communicator *made, nccl_result begun) {
    if (begun != NCCL_SUCCESS) {
        nccl_leave(made, true);
        if (nccl_group_is_open()) nccl_group_refuse(begun);
        return begun;
    }
    *handle = made;
    if (nccl_group_is_open()) {
        nccl_group_add_init(handle);
        return NCCL_SUCCESS;
    }
    if (made->blocking) return nccl_wait_for_init(handle);
    return made->ranks == 1 ? nccl_finish_init(made) : NCCL_IN_PROGRESS;
}

static nccl_result create(const char *function, nccl_communicator **handle, int ranks, int rank, int device,
                          const nccl_unique_id *identifiers, int identifier_count, const nccl_config *config) {
    if (handle == NULL || ranks < 1 || rank < 0 || rank >= ranks) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: rank %d of %d ranks", function, rank, ranks);
    }
    *handle = NULL;
    nccl_result result = check_config(config, function);
    if (result != NCCL_SUCCESS) return result;
    nccl_communicator *made = new_communicator(function, ranks, rank, device, config, NULL);
    if (made == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
    return begin_init(handle, made, nccl_join(made, identifiers, (size_t)identifier_count * sizeof *identifiers));
}

MAYA_API nccl_result ncclCommInitRank(nccl_communicator **communicator, int ranks, nccl_unique_id identifier, int rank) {
    return create(__func__, communicator, ranks, rank, maya_current_device(), &identifier, 1, NULL);
}

MAYA_API nccl_result ncclCommInitRankConfig(nccl_communicator **communicator, int ranks, nccl_unique_id identifier, int rank,
                                            const nccl_config *config) {
    return create(__func__, communicator, ranks, rank, maya_current_device(), &identifier, 1, config);
}

MAYA_API nccl_result ncclCommInitRankScalable(nccl_communicator **communicator, int ranks, int rank, int identifier_count,
                                              const nccl_unique_id *identifiers, const nccl_config *config) {
    if (identifiers == NULL || identifier_count < 1 || identifier_count > ranks) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %d identifiers for %d ranks", __func__, identifier_count, ranks);
    }
    return create(__func__, communicator, ranks, rank, maya_current_device(), identifiers, identifier_count, config);
}

MAYA_API nccl_result ncclCommInitAll(nccl_communicator **communicators, int devices, const int *device_list) {
    if (communicators == NULL || devices < 1) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: %d devices", __func__, devices);
    }
    for (int i = 0; i < devices; i++) {
        int device = device_list ? device_list[i] : i, count = maya_visible_devices()->count;
        if (device < 0 || device >= count) {
            return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: device %d of %d devices", __func__, device, count);
        }
    }
    nccl_unique_id identifier;
    nccl_result result = ncclGetUniqueId(&identifier);
    nccl_group_open(); /* all inits begin before the first is waited for */
    for (int i = 0; i < devices && result == NCCL_SUCCESS; i++) {
        int device = device_list ? device_list[i] : i;
        result = create(__func__, &communicators[i], devices, i, device, &identifier, 1, NULL);
    }
    nccl_result closed = nccl_group_close();
    return result != NCCL_SUCCESS ? result : closed;
}

MAYA_API nccl_result ncclCommSplit(nccl_communicator *parent, int color, int key, nccl_communicator **handle,
                                   const nccl_config *config) {
    enum { NO_COLOR = -1 };
    nccl_result result = nccl_check_ready(parent, __func__);
    if (result == NCCL_SUCCESS) result = check_config(config, __func__);
    if (result != NCCL_SUCCESS) return result;
    if (handle == NULL || color < NO_COLOR) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: color %d", __func__, color);
    }
    *handle = NULL;
    if (color == NO_COLOR) return nccl_split(parent, NULL, color, key);
    nccl_communicator *made = new_communicator(__func__, -1, -1, parent->device, config, parent);
    if (made == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
    return begin_init(handle, made, nccl_split(parent, made, color, key));
}

static nccl_result check_excluded(const nccl_communicator *parent, const int *excluded, int count) {
    for (int i = 0; i < count && excluded; i++) {
        bool valid = excluded[i] >= 0 && excluded[i] < parent->ranks && excluded[i] != parent->rank;
        for (int j = 0; j < i; j++) valid = valid && excluded[j] != excluded[i];
        if (!valid) {
            return nccl_fail(NCCL_INVALID_ARGUMENT, "ncclCommShrink: rank %d of %d ranks is excluded by rank %d", excluded[i],
                             parent->ranks, parent->rank);
        }
    }
    if (excluded != NULL && count >= 1 && count < parent->ranks) return NCCL_SUCCESS;
    return nccl_fail(NCCL_INVALID_ARGUMENT, "ncclCommShrink: %d of %d ranks excluded", count, parent->ranks);
}

MAYA_API nccl_result ncclCommShrink(nccl_communicator *parent, const int *excluded, int excluded_count,
                                    nccl_communicator **handle, const nccl_config *config, int flags) {
    enum { SHRINK_ABORT = 1 }; /* cancel the parent's outstanding operations, e.g. because an excluded rank has died */
    nccl_result result = nccl_check_communicator(parent, __func__);
    if (result == NCCL_SUCCESS && (flags & SHRINK_ABORT) == 0) result = nccl_check_ready(parent, __func__);
    if (result == NCCL_SUCCESS) result = check_config(config, __func__);
    if (result == NCCL_SUCCESS) result = check_excluded(parent, excluded, excluded_count);
    if (result != NCCL_SUCCESS) return result;
    if (handle == NULL) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: no place for the result", __func__);
    *handle = NULL;
    if (flags & SHRINK_ABORT) nccl_cancel_operations(parent);
    nccl_communicator *made = new_communicator(__func__, parent->ranks - excluded_count, -1, parent->device, config, parent);
    if (made == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
    return begin_init(handle, made, nccl_shrink(parent, made, excluded, excluded_count));
}

/* ---- finalize, destroy, abort ---- */

/* The caller holds nccl_lock. */
static void wait_for_operations(nccl_communicator *communicator) {
    while (communicator->outstanding > 0 && !communicator->gone && communicator->state == NCCL_SUCCESS &&
           !nccl_coordinator_is_lost()) {
        pthread_cond_wait(&nccl_changed, &nccl_lock);
    }
}

MAYA_API nccl_result ncclCommFinalize(nccl_communicator *communicator) {
    nccl_result result = nccl_check_ready(communicator, __func__);
    if (result != NCCL_SUCCESS) return result;
    pthread_mutex_lock(&nccl_lock);
    communicator->finalized = true;
    if (communicator->blocking) wait_for_operations(communicator);
    else if (communicator->outstanding > 0) result = NCCL_IN_PROGRESS;
    pthread_mutex_unlock(&nccl_lock);
    return result;
}

MAYA_API nccl_result ncclCommDestroy(nccl_communicator *communicator) {
    if (communicator == NULL) return NCCL_SUCCESS;
    nccl_result result = nccl_check_communicator(communicator, __func__);
    if (result != NCCL_SUCCESS) return result;
    communicator->magic = 0; /* makes later uses of the handle errors */
    pthread_mutex_lock(&nccl_lock);
    wait_for_operations(communicator);
    pthread_mutex_unlock(&nccl_lock);
    nccl_leave(communicator, false);
    return NCCL_SUCCESS;
}

MAYA_API nccl_result ncclCommAbort(nccl_communicator *communicator) {
    if (communicator == NULL) return NCCL_SUCCESS;
    nccl_result result = nccl_check_communicator(communicator, __func__);
    if (result != NCCL_SUCCESS) return result;
    communicator->magic = 0;
    nccl_leave(communicator, true);
    return NCCL_SUCCESS;
}

/* Cancels the outstanding operations and refuses new ones; the communicator can still be shrunk. */
MAYA_API nccl_result ncclCommRevoke(nccl_communicator *communicator, int flags) {
    if (flags != 0) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: flags %d, expected 0", __func__, flags);
    nccl_result result = nccl_check_communicator(communicator, __func__);
    if (result == NCCL_SUCCESS) nccl_cancel_operations(communicator);
    return result;
}

/* ---- queries ---- */

static nccl_result query(nccl_communicator *communicator, int *target, size_t offset, const char *function) {
    nccl_result result = nccl_check_communicator(communicator, function);
    if (result != NCCL_SUCCESS) return result;
    if (target == NULL) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: no place for the result", function);
    if (nccl_finish_init(communicator) == NCCL_IN_PROGRESS) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: the communicator is not ready", function);
    }
    memcpy(target, (const char *)communicator + offset, sizeof *target);
    return NCCL_SUCCESS;
}

MAYA_API nccl_result ncclCommCount(nccl_communicator *communicator, int *count) {
    return query(communicator, count, offsetof(nccl_communicator, ranks), __func__);
}

MAYA_API nccl_result ncclCommUserRank(nccl_communicator *communicator, int *rank) {
    return query(communicator, rank, offsetof(nccl_communicator, rank), __func__);
}

MAYA_API nccl_result ncclCommCuDevice(nccl_communicator *communicator, int *device) {
    return query(communicator, device, offsetof(nccl_communicator, device), __func__);
}

MAYA_API nccl_result ncclCommGetAsyncError(nccl_communicator *communicator, nccl_result *error) {
    nccl_result result = nccl_check_communicator(communicator, __func__);
    if (result != NCCL_SUCCESS || error == NULL) return result;
    *error = nccl_finish_init(communicator);
    pthread_mutex_lock(&nccl_lock);
    if (*error == NCCL_SUCCESS && communicator->finalized && communicator->outstanding > 0) *error = NCCL_IN_PROGRESS;
    pthread_mutex_unlock(&nccl_lock);
    return NCCL_SUCCESS;
}
