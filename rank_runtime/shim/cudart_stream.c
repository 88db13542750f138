/* libcudart: streams, events, host functions. */

#include "cudart_common.h"

#include <stdlib.h>

MAYA_API cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudart_result(maya_stream_create(0, 0, stream)); }

MAYA_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudart_result(maya_stream_create(flags, 0, stream));
}

MAYA_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    return cudart_result(maya_stream_create(flags, priority, stream));
}

MAYA_API cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudart_result(maya_stream_destroy(stream)); }

MAYA_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudart_result(maya_stream_synchronize(stream)); }

MAYA_API cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudart_result(maya_stream_query(stream)); }

MAYA_API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    unsigned flags;
    int device;
    uint64_t id;
    return cudart_result(maya_stream_info(stream, &flags, priority, &device, &id));
}

MAYA_API cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    int priority, device;
    uint64_t id;
    return cudart_result(maya_stream_info(stream, flags, &priority, &device, &id));
}

MAYA_API cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *number) {
    unsigned flags;
    int priority, device;
    uint64_t id;
    int status = maya_stream_info(stream, &flags, &priority, &device, &id);
    *number = id;
    return cudart_result(status);
}

MAYA_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    return cudart_result(maya_stream_wait_event(stream, event));
}

/* ---- events ---- */

MAYA_API cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudart_result(maya_event_create(0, event)); }

MAYA_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    return cudart_result(maya_event_create(flags, event));
}

MAYA_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return event ? cudart_result(maya_event_destroy(event)) : cudart_result(CUDA_INVALID_HANDLE);
}

MAYA_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudart_result(maya_event_record(event, stream));
}

MAYA_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    (void)flags;
    return cudart_result(maya_event_record(event, stream));
}

MAYA_API cudaError_t cudaEventQuery(cudaEvent_t event) { return cudart_result(maya_event_query(event)); }

MAYA_API cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudart_result(maya_event_synchronize(event)); }

MAYA_API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    return cudart_result(maya_event_elapsed(start, end, milliseconds));
}

/* ---- host functions ---- */

MAYA_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void *), void *argument) {
    maya_command command = {.run = function, .argument = argument, .kind = MAYA_RECORD_HOST_FUNCTION, .on_host_thread = true};
    return cudart_result(maya_submit(stream, &command));
}

typedef void (*stream_callback)(cudaStream_t, cudaError_t, void *);

typedef struct {
    stream_callback callback;
    cudaStream_t stream;
    void *user_data;
} callback_job;

static void run_callback(void *argument) {
    const callback_job *job = argument;
    job->callback(job->stream, CUDA_OK, job->user_data);
}

MAYA_API cudaError_t cudaStreamAddCallback(cudaStream_t stream, stream_callback callback, void *user_data, unsigned flags) {
    (void)flags;
    callback_job *job = malloc(sizeof *job);
    if (job == NULL) return cudart_result(CUDA_OUT_OF_MEMORY);
    *job = (callback_job){callback, stream, user_data};
    maya_command command = {
        .run = run_callback, .release = free, .argument = job, .kind = MAYA_RECORD_HOST_FUNCTION, .on_host_thread = true};
    return cudart_result(maya_submit(stream, &command));
}
