/* libcuda: streams, events, and memory operations in stream order. */

#include "cuda_common.h"

#include <stdlib.h>
#include <string.h>

MAYA_API CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return maya_stream_create(flags, 0, stream); }

MAYA_API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return maya_stream_create(flags, priority, stream);
}

MAYA_API CUresult cuStreamDestroy_v2(CUstream stream) { return maya_stream_destroy(stream); }

MAYA_API CUresult cuStreamSynchronize(CUstream stream) { return maya_stream_synchronize(stream); }

MAYA_API CUresult cuStreamQuery(CUstream stream) { return maya_stream_query(stream); }

MAYA_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    return maya_stream_wait_event(stream, event);
}

MAYA_API CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    *status = maya_stream_is_capturing(stream) ? MAYA_CAPTURE_ACTIVE : MAYA_CAPTURE_NONE;
    return CUDA_OK;
}

MAYA_API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *argument) {
    maya_command command = {.run = function, .argument = argument, .kind = MAYA_RECORD_HOST_FUNCTION, .on_host_thread = true};
    return maya_submit(stream, &command);
}

MAYA_API CUresult cuEventCreate(CUevent *event, unsigned flags) { return maya_event_create(flags, event); }

MAYA_API CUresult cuEventDestroy_v2(CUevent event) { return maya_event_destroy(event); }

MAYA_API CUresult cuEventRecord(CUevent event, CUstream stream) { return maya_event_record(event, stream); }

MAYA_API CUresult cuEventQuery(CUevent event) { return maya_event_query(event); }

MAYA_API CUresult cuEventSynchronize(CUevent event) { return maya_event_synchronize(event); }

MAYA_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return maya_event_elapsed(start, end, milliseconds);
}

MAYA_API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    return maya_event_elapsed(start, end, milliseconds);
}

/* ---- attributes; those of the L2 cache are hints to its replacement policy, which estimates do not know ---- */

MAYA_API CUresult cuStreamSetAttribute(CUstream stream, int attribute, const void *value) {
    enum { ACCESS_POLICY_WINDOW = 1 };
    (void)stream, (void)value;
    if (attribute == ACCESS_POLICY_WINDOW) return CUDA_OK;
    maya_unsupported_detail("cuStreamSetAttribute", "attribute %d", attribute);
    return CUDA_NOT_SUPPORTED;
}

MAYA_API CUresult cuCtxResetPersistingL2Cache(void) { return CUDA_OK; }

/* ---- memory operations ---- */

MAYA_API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    (void)flags;
    return maya_fill_submit(stream, (void *)address, value, 4, 4, 1, 0, false);
}

MAYA_API CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return cuStreamWriteValue32_v2(stream, address, value, flags);
}

typedef struct {
    CUdeviceptr address;
    uint64_t value;
} wide_write;

static void run_wide_write(void *argument) {
    const wide_write *job = argument;
    memcpy((void *)job->address, &job->value, sizeof job->value);
    maya_values_known((void *)job->address, sizeof job->value);
}

MAYA_API CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    (void)flags;
    wide_write *job = malloc(sizeof *job);
    if (job == NULL) return CUDA_OUT_OF_MEMORY;
    *job = (wide_write){address, value};
    maya_command command = {.run = run_wide_write, .release = free, .argument = job, .kind = MAYA_RECORD_MEMSET, .value = 8};
    return maya_submit(stream, &command);
}

MAYA_API CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return maya_stream_wait_value(stream, (void *)address, value, false, flags);
}

MAYA_API CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return maya_stream_wait_value(stream, (void *)address, value, false, flags);
}

MAYA_API CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    return maya_stream_wait_value(stream, (void *)address, value, true, flags);
}
