/* Operations on communicators whose only member is this process; the coordinator is not involved.
 *
 * In: an operation. Out: one collective record, and the real bytes in the receive buffer, in stream order: with one member
 * every collective copies the send buffer to the receive buffer (scaled, for ncclRedOpCreatePreMulSum). */

#include "nccl_internal.h"

#include <stdlib.h>

typedef struct {
    void *target;
    const void *source;
    size_t count;
    nccl_type type;
    nccl_scaled_sum scaling;
} transfer;

static void run_transfer(void *argument) {
    transfer *request = argument;
    size_t size = request->count * nccl_type_size(request->type);
    if (!request->scaling.used) {
        if (request->target != request->source) maya_values_copy(request->target, request->source, size);
        return;
    }
    const void *scalar = request->scaling.device_scalar;
    maya_values_hold();
    bool known = maya_values_are_known(request->source, size) &&
                 (scalar == NULL || maya_values_are_known(scalar, nccl_type_size(request->type)));
    if (scalar == NULL) scalar = request->scaling.host_scalar;
    if (known) {
        nccl_scale(request->target, request->source, scalar, request->count, request->type);
        maya_values_known(request->target, size);
    } else {
        maya_values_set_placeholder(request->target, size);
    }
    maya_values_release();
}

nccl_result nccl_post_one_rank(const nccl_operation *operation, const void *source) {
    maya_command command = {
        .kind = MAYA_RECORD_COLLECTIVE,
        .signature = nccl_signature(operation),
        .value = operation->sequence,
        .flags = nccl_record_flags(operation),
    };
    if (operation->receive != NULL && operation->count > 0) {
        transfer *argument = malloc(sizeof *argument);
        if (argument == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
        *argument = (transfer){
            .target = operation->receive,
            .source = source,
            .count = operation->count,
            .type = operation->type,
            .scaling = operation->scaling,
        };
        command.run = run_transfer;
        command.release = free;
        command.argument = argument;
    }
    int error = maya_submit(operation->stream, &command);
    return error == 0 ? NCCL_SUCCESS : nccl_fail(NCCL_CUDA_ERROR, "CUDA error %d", error);
}
