/* NCCL's operations: each call is checked as NCCL checks it, becomes an nccl_operation, and leaves with its group.
 *
 * Group semantics: between ncclGroupStart and the outermost ncclGroupEnd of a thread, calls only queue. The end of the
 * group hands all of them to the rendezvous in the order of the calls, or, if one of them was refused, none. A call
 * outside a group is a group of its own. */

#include "nccl_internal.h"

#include <stdlib.h>
#include <string.h>

static __thread struct {
    int depth;
    nccl_result refused; /* the first error of a call in this group */
    nccl_operation *operations;
    size_t count, capacity;
} group;

static nccl_result open_group(void) {
    if (group.depth++ == 0) group.refused = NCCL_SUCCESS;
    return NCCL_SUCCESS;
}

static void forget_group(void) {
    free(group.operations);
    group.operations = NULL;
    group.count = group.capacity = 0;
}

static nccl_result close_group(void) {
    if (group.depth == 0) return nccl_fail(NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth > 0) return NCCL_SUCCESS;
    nccl_result result = group.refused;
    if (result == NCCL_SUCCESS && group.count > 0) result = nccl_rendezvous_post(group.operations, group.count);
    forget_group();
    return result;
}

MAYA_API nccl_result ncclGroupStart(void) { return open_group(); }

MAYA_API nccl_result ncclGroupEnd(void) { return close_group(); }

/* Would close the group without starting it and say how long it takes: durations are known only after the run. */
MAYA_API nccl_result ncclGroupSimulateEnd(void *simulation_info) {
    (void)simulation_info;
    if (group.depth == 0) return nccl_fail(NCCL_INVALID_USAGE, "ncclGroupSimulateEnd without ncclGroupStart");
    if (--group.depth == 0) forget_group();
    maya_unsupported("ncclGroupSimulateEnd");
    return nccl_fail(NCCL_INVALID_USAGE, "ncclGroupSimulateEnd is not emulated");
}

static nccl_result enqueue(const nccl_operation *operation) {
    if (group.count == group.capacity) {
        size_t capacity = group.capacity ? 2 * group.capacity : 16;
        nccl_operation *grown = realloc(group.operations, capacity * sizeof *grown);
        if (grown == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
        group.operations = grown;
        group.capacity = capacity;
    }
    group.operations[group.count++] = *operation;
    return NCCL_SUCCESS;
}

static bool is_reduction(nccl_call call) {
    return call == NCCL_ALL_REDUCE || call == NCCL_REDUCE || call == NCCL_REDUCE_SCATTER;
}

/* Does this rank read its send buffer (write its receive buffer) in this call? */
static bool sends(const nccl_operation *operation) {
    bool root = operation->peer == operation->communicator->rank;
    if (operation->call == NCCL_BROADCAST || operation->call == NCCL_SCATTER) return root;
    return operation->call != NCCL_RECEIVE;
}

static bool receives(const nccl_operation *operation) {
    bool root = operation->peer == operation->communicator->rank;
    if (operation->call == NCCL_REDUCE || operation->call == NCCL_GATHER) return root;
    return operation->call != NCCL_SEND;
}

static nccl_result check(const char *function, nccl_operation *operation) {
    const nccl_communicator *communicator = operation->communicator;
    if ((unsigned)operation->type >= NCCL_TYPES) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: data type %d", function, operation->type);
    }
    if (operation->peer < 0 || operation->peer >= communicator->ranks) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: root or peer %d of %d ranks", function, operation->peer,
                         communicator->ranks);
    }
    if (is_reduction(operation->call) && operation->operator >= NCCL_BUILT_IN_OPERATORS) {
        size_t index = (size_t)(operation->operator - NCCL_BUILT_IN_OPERATORS);
        if (index < NCCL_MAX_SCALED_SUMS) operation->scaling = communicator->scaled_sums[index];
        if (!operation->scaling.used) {
            return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: reduction %d", function, operation->operator);
        }
    } else if (operation->operator < 0) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: reduction %d", function, operation->operator);
    }
    bool missing = (sends(operation) && operation->send == NULL) || (receives(operation) && operation->receive == NULL);
    if (operation->count > 0 && missing) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: a buffer is NULL", function);
    return NCCL_SUCCESS;
}

static nccl_result post(const char *function, nccl_operation operation) {
    open_group();
    nccl_result result = nccl_check_communicator(operation.communicator, function);
    if (result == NCCL_SUCCESS) result = check(function, &operation);
    if (result == NCCL_SUCCESS) {
        bool message = operation.call == NCCL_SEND || operation.call == NCCL_RECEIVE;
        /* NCCL drops empty collectives, but not empty messages: their other end waits for them. */
        if (message || operation.count > 0) {
            uint64_t *posted = message ? &operation.communicator->messages : &operation.communicator->collectives;
            operation.sequence = __atomic_fetch_add(posted, 1, __ATOMIC_RELAXED);
            result = enqueue(&operation);
        }
    }
    if (result != NCCL_SUCCESS && group.refused == NCCL_SUCCESS) group.refused = result;
    nccl_result closed = close_group();
    return result != NCCL_SUCCESS ? result : closed;
}

MAYA_API nccl_result ncclAllReduce(const void *send, void *receive, size_t count, nccl_type type, int operator,
                                   nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){.call = NCCL_ALL_REDUCE, .send = send, .receive = receive, .count = count,
                                           .type = type, .operator = operator, .communicator = communicator,
                                           .stream = stream});
}

MAYA_API nccl_result ncclReduce(const void *send, void *receive, size_t count, nccl_type type, int operator, int root,
                                nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){.call = NCCL_REDUCE, .send = send, .receive = receive, .count = count,
                                           .type = type, .operator = operator, .peer = root,
                                           .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclReduceScatter(const void *send, void *receive, size_t receive_count, nccl_type type,
                                       int operator, nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){.call = NCCL_REDUCE_SCATTER, .send = send, .receive = receive,
                                           .count = receive_count, .type = type, .operator = operator,
                                           .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclBroadcast(const void *send, void *receive, size_t count, nccl_type type, int root,
                                   nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){.call = NCCL_BROADCAST, .send = send, .receive = receive, .count = count,
                                           .type = type, .peer = root, .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclBcast(void *buffer, size_t count, nccl_type type, int root, nccl_communicator *communicator,
                               void *stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}

MAYA_API nccl_result ncclAllGather(const void *send, void *receive, size_t send_count, nccl_type type,
                                   nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){.call = NCCL_ALL_GATHER, .send = send, .receive = receive,
                                           .count = send_count, .type = type, .communicator = communicator,
                                           .stream = stream});
}

MAYA_API nccl_result ncclAlltoAll(const void *send, void *receive, size_t count, nccl_type type,
                                  nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){.call = NCCL_ALL_TO_ALL, .send = send, .receive = receive, .count = count,
                                           .type = type, .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclGather(const void *send, void *receive, size_t count, nccl_type type, int root,
                                nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){.call = NCCL_GATHER, .send = send, .receive = receive, .count = count,
                                           .type = type, .peer = root, .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclScatter(const void *send, void *receive, size_t count, nccl_type type, int root,
                                 nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){.call = NCCL_SCATTER, .send = send, .receive = receive, .count = count,
                                           .type = type, .peer = root, .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclSend(const void *send, size_t count, nccl_type type, int peer, nccl_communicator *communicator,
                              void *stream) {
    return post(__func__, (nccl_operation){.call = NCCL_SEND, .send = send, .count = count, .type = type, .peer = peer,
                                           .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclRecv(void *receive, size_t count, nccl_type type, int peer, nccl_communicator *communicator,
                              void *stream) {
    return post(__func__, (nccl_operation){.call = NCCL_RECEIVE, .receive = receive, .count = count, .type = type,
                                           .peer = peer, .communicator = communicator, .stream = stream});
}

/* ---- operators a program makes itself ---- */

MAYA_API nccl_result ncclRedOpCreatePreMulSum(int *operator, void *scalar, nccl_type type, int residence,
                                              nccl_communicator *communicator) {
    enum { SCALAR_ON_DEVICE = 0, SCALAR_ON_HOST = 1 };
    nccl_result result = nccl_check_communicator(communicator, __func__);
    if (result != NCCL_SUCCESS) return result;
    if (operator == NULL || scalar == NULL || (unsigned)type >= NCCL_TYPES || (unsigned)residence > SCALAR_ON_HOST) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: operator %p, scalar %p, data type %d, residence %d", __func__,
                         (void *)operator, scalar, type, residence);
    }
    if (type == NCCL_FLOAT8_E4M3 || type == NCCL_FLOAT8_E5M2) {
        maya_unsupported_detail(__func__, "8-bit floating point");
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: 8-bit floating point is not emulated", __func__);
    }
    for (int i = 0; i < NCCL_MAX_SCALED_SUMS; i++) {
        nccl_scaled_sum *slot = &communicator->scaled_sums[i];
        if (slot->used) continue;
        *slot = (nccl_scaled_sum){.used = true};
        if (residence == SCALAR_ON_DEVICE) slot->device_scalar = scalar;
        else memcpy(slot->host_scalar, scalar, nccl_type_size(type));
        *operator = NCCL_BUILT_IN_OPERATORS + i;
        return NCCL_SUCCESS;
    }
    return nccl_fail(NCCL_INVALID_USAGE, "%s: more than %d operators of one communicator are alive", __func__,
                     NCCL_MAX_SCALED_SUMS);
}

MAYA_API nccl_result ncclRedOpDestroy(int operator, nccl_communicator *communicator) {
    nccl_result result = nccl_check_communicator(communicator, __func__);
    if (result != NCCL_SUCCESS) return result;
    int index = operator - NCCL_BUILT_IN_OPERATORS;
    if (index < 0 || index >= NCCL_MAX_SCALED_SUMS || !communicator->scaled_sums[index].used) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: operator %d is not of this communicator", __func__, operator);
    }
    communicator->scaled_sums[index].used = false;
    return NCCL_SUCCESS;
}
