/* libcupti: the functions that torch.profiler (Kineto) needs.
 *
 * The profiler enables activities, and later flushes and reads buffers. No device activity is recorded here: the buffer
 * callbacks are stored but never called, so the profiler's result has host events and no kernels or copies. A message
 * says so once. Device activities are in Maya's own trace.
 *
 * Callbacks: one subscriber, as in CUPTI. Resource callbacks can be switched on, but contexts exist before a program
 * can subscribe, so none is ever called. Callbacks on API calls are not emulated; enabling them prints a message. */

#include "device/device.h"

#include <stdlib.h>
#include <time.h>

#ifndef MAYA_CUDA_VERSION
#define MAYA_CUDA_VERSION 13000
#endif

typedef enum {
    CUPTI_SUCCESS = 0,
    CUPTI_INVALID_PARAMETER = 1,
    CUPTI_OUT_OF_MEMORY = 8,
    CUPTI_MAX_LIMIT_REACHED = 12,
    CUPTI_QUEUE_EMPTY = 18,
    CUPTI_INVALID_KIND = 21,
    CUPTI_NOT_SUPPORTED = 27,
    CUPTI_MULTIPLE_SUBSCRIBERS = 39,
} cupti_result;

MAYA_API cupti_result cuptiGetVersion(uint32_t *version) {
    if (version == NULL) return CUPTI_INVALID_PARAMETER;
    /* Until CUDA 12 a running number, since CUDA 13 the CUDA version with two digits for each part. */
    *version = MAYA_CUDA_VERSION >= 13000 ? MAYA_CUDA_VERSION / 1000 * 10000 + MAYA_CUDA_VERSION % 1000 * 10 : 26;
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiGetResultString(cupti_result result, const char **text) {
    if (text == NULL) return CUPTI_INVALID_PARAMETER;
    switch (result) {
        case CUPTI_SUCCESS: *text = "CUPTI_SUCCESS"; break;
        case CUPTI_INVALID_PARAMETER: *text = "CUPTI_ERROR_INVALID_PARAMETER"; break;
        case CUPTI_OUT_OF_MEMORY: *text = "CUPTI_ERROR_OUT_OF_MEMORY"; break;
        case CUPTI_MAX_LIMIT_REACHED: *text = "CUPTI_ERROR_MAX_LIMIT_REACHED"; break;
        case CUPTI_QUEUE_EMPTY: *text = "CUPTI_ERROR_QUEUE_EMPTY"; break;
        case CUPTI_INVALID_KIND: *text = "CUPTI_ERROR_INVALID_KIND"; break;
        case CUPTI_NOT_SUPPORTED: *text = "CUPTI_ERROR_NOT_SUPPORTED"; break;
        case CUPTI_MULTIPLE_SUBSCRIBERS: *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"; break;
        default: *text = "CUPTI_ERROR_UNKNOWN"; break;
    }
    return CUPTI_SUCCESS;
}

/* ---- time ---- */

static uint64_t (*timestamp_callback)(void);

MAYA_API cupti_result cuptiActivityRegisterTimestampCallback(uint64_t (*callback)(void)) {
    timestamp_callback = callback;
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiGetTimestamp(uint64_t *timestamp) {
    if (timestamp == NULL) return CUPTI_INVALID_PARAMETER;
    if (timestamp_callback != NULL) {
        *timestamp = timestamp_callback();
        return CUPTI_SUCCESS;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *timestamp = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return CUPTI_SUCCESS;
}

/* ---- activities ---- */

MAYA_API cupti_result cuptiActivityRegisterCallbacks(void (*requested)(uint8_t **, size_t *, size_t *),
                                                     void (*completed)(void *, uint32_t, uint8_t *, size_t, size_t)) {
    return requested == NULL || completed == NULL ? CUPTI_INVALID_PARAMETER : CUPTI_SUCCESS;
}

enum { HIGHEST_ACTIVITY_KIND = 59 };

MAYA_API cupti_result cuptiActivityEnable(uint32_t kind) {
    static bool told;
    if (kind == 0 || kind > HIGHEST_ACTIVITY_KIND) return CUPTI_INVALID_KIND;
    if (!__atomic_exchange_n(&told, true, __ATOMIC_RELAXED)) {
        maya_message("CUPTI: the profiler records host events only; kernels and copies are in Maya's own trace");
    }
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiActivityDisable(uint32_t kind) {
    return kind == 0 || kind > HIGHEST_ACTIVITY_KIND ? CUPTI_INVALID_KIND : CUPTI_SUCCESS;
}

/* The following functions select or configure records, of which there are none. */

MAYA_API cupti_result cuptiActivityEnableRuntimeApi(uint32_t function, uint8_t enable) {
    (void)function, (void)enable;
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiActivityEnableDriverApi(uint32_t function, uint8_t enable) {
    (void)function, (void)enable;
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiActivityEnableLatencyTimestamps(uint8_t enable) {
    (void)enable;
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t enable) {
    (void)enable;
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiActivitySetAttribute(uint32_t attribute, size_t *size, void *value) {
    (void)attribute;
    return size == NULL || value == NULL ? CUPTI_INVALID_PARAMETER : CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiActivityFlushPeriod(uint32_t milliseconds) {
    (void)milliseconds;
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid_bytes, void **record) {
    (void)buffer, (void)valid_bytes;
    if (record == NULL) return CUPTI_INVALID_PARAMETER;
    return CUPTI_MAX_LIMIT_REACHED; /* CUPTI's status for "no more records" */
}

MAYA_API cupti_result cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    (void)context, (void)stream;
    if (dropped == NULL) return CUPTI_INVALID_PARAMETER;
    *dropped = 0;
    return CUPTI_SUCCESS;
}

/* ---- external correlation: a stack of the caller's numbers, per thread and kind ---- */

typedef struct correlation {
    struct correlation *below;
    uint64_t number;
} correlation;

enum { CORRELATION_KINDS = 8 };

static __thread correlation *correlations[CORRELATION_KINDS];

MAYA_API cupti_result cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t number) {
    if (kind == 0 || kind >= CORRELATION_KINDS) return CUPTI_INVALID_PARAMETER;
    correlation *pushed = malloc(sizeof *pushed);
    if (pushed == NULL) return CUPTI_OUT_OF_MEMORY;
    *pushed = (correlation){.below = correlations[kind], .number = number};
    correlations[kind] = pushed;
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *number) {
    if (kind == 0 || kind >= CORRELATION_KINDS) return CUPTI_INVALID_PARAMETER;
    correlation *popped = correlations[kind];
    if (popped == NULL) return CUPTI_QUEUE_EMPTY;
    if (number != NULL) *number = popped->number;
    correlations[kind] = popped->below;
    free(popped);
    return CUPTI_SUCCESS;
}

/* ---- callbacks ---- */

static bool subscribed;

MAYA_API cupti_result cuptiSubscribe(void **subscriber, void (*callback)(void *, uint32_t, uint32_t, const void *),
                                     void *user_data) {
    (void)callback, (void)user_data;
    if (subscriber == NULL) return CUPTI_INVALID_PARAMETER;
    if (__atomic_exchange_n(&subscribed, true, __ATOMIC_ACQ_REL)) return CUPTI_MULTIPLE_SUBSCRIBERS;
    *subscriber = &subscribed;
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiUnsubscribe(void *subscriber) {
    if (subscriber != &subscribed) return CUPTI_INVALID_PARAMETER;
    return __atomic_exchange_n(&subscribed, false, __ATOMIC_ACQ_REL) ? CUPTI_SUCCESS : CUPTI_INVALID_PARAMETER;
}

static cupti_result enable_callbacks(const char *function, uint32_t enable, void *subscriber, uint32_t domain) {
    enum { DRIVER_CALLS = 1, RUNTIME_CALLS = 2, HIGHEST_DOMAIN = 6 };
    if (subscriber != &subscribed || domain == 0 || domain > HIGHEST_DOMAIN) return CUPTI_INVALID_PARAMETER;
    if (enable && (domain == DRIVER_CALLS || domain == RUNTIME_CALLS)) {
        maya_unsupported_detail(function, "callbacks on CUDA calls");
        return CUPTI_NOT_SUPPORTED;
    }
    return CUPTI_SUCCESS;
}

MAYA_API cupti_result cuptiEnableCallback(uint32_t enable, void *subscriber, uint32_t domain, uint32_t callback) {
    (void)callback;
    return enable_callbacks(__func__, enable, subscriber, domain);
}

MAYA_API cupti_result cuptiEnableDomain(uint32_t enable, void *subscriber, uint32_t domain) {
    return enable_callbacks(__func__, enable, subscriber, domain);
}

MAYA_API cupti_result cuptiFinalize(void) {
    __atomic_store_n(&subscribed, false, __ATOMIC_RELEASE);
    timestamp_callback = NULL;
    return CUPTI_SUCCESS;
}
