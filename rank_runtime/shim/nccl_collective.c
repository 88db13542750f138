/* NCCL's collectives and P2P calls: each call is checked as NCCL checks it, becomes an nccl_operation, and is submitted with
 * its group. */

#include "device/schedule.h"
#include "device/watchdogs.h"
#include "nccl_internal.h"

#include <string.h>

bool nccl_is_p2p(const nccl_operation *operation) { return operation->call == NCCL_SEND || operation->call == NCCL_RECEIVE; }

bool nccl_is_reduction(const nccl_operation *operation) {
    nccl_call call = operation->call;
    return call == NCCL_ALL_REDUCE || call == NCCL_REDUCE || call == NCCL_REDUCE_SCATTER;
}

bool nccl_has_peer(const nccl_operation *operation) {
    switch (operation->call) {
        case NCCL_REDUCE:
        case NCCL_BROADCAST:
        case NCCL_GATHER:
        case NCCL_SCATTER:
        case NCCL_SEND:
        case NCCL_RECEIVE: return true;
        default: return false;
    }
}

static bool is_root(const nccl_operation *operation) { return operation->peer == operation->communicator->rank; }

size_t nccl_send_bytes(const nccl_operation *operation) {
    size_t bytes = operation->count * nccl_type_size(operation->type);
    size_t all = bytes * (size_t)operation->communicator->ranks;
    switch (operation->call) {
        case NCCL_REDUCE_SCATTER:
        case NCCL_ALL_TO_ALL: return all;
        case NCCL_BROADCAST: return is_root(operation) ? bytes : 0;
        case NCCL_SCATTER: return is_root(operation) ? all : 0;
        case NCCL_RECEIVE: return 0;
        default: return bytes;
    }
}

size_t nccl_receive_bytes(const nccl_operation *operation) {
    size_t bytes = operation->count * nccl_type_size(operation->type);
    size_t all = bytes * (size_t)operation->communicator->ranks;
    switch (operation->call) {
        case NCCL_ALL_GATHER:
        case NCCL_ALL_TO_ALL: return all;
        case NCCL_REDUCE: return is_root(operation) ? bytes : 0;
        case NCCL_GATHER: return is_root(operation) ? all : 0;
        case NCCL_SEND: return 0;
        default: return bytes;
    }
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
    if (nccl_is_reduction(operation) && operation->operator >= NCCL_BUILT_IN_OPERATORS) {
        size_t index = (size_t)(operation->operator - NCCL_BUILT_IN_OPERATORS);
        if (index < NCCL_MAX_SCALED_SUMS) operation->scaling = communicator->scaled_sums[index];
        if (!operation->scaling.used) {
            return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: reduction %d", function, operation->operator);
        }
    } else if (operation->operator < 0) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: reduction %d", function, operation->operator);
    }
    bool missing = (nccl_send_bytes(operation) > 0 && operation->send == NULL) ||
                   (nccl_receive_bytes(operation) > 0 && operation->receive == NULL);
    if (missing) return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: a buffer is NULL", function);
    return NCCL_SUCCESS;
}

/* A number for the call that does not depend on the order of threads: its arguments, and how many such calls came before. */
static uint64_t identity(const nccl_operation *operation) {
    enum { KINDS = 256 };
    static _Atomic uint64_t calls[KINDS];
    uint64_t kind = maya_schedule_mix(operation->communicator->number, (uint64_t)operation->call);
    kind = maya_schedule_mix(maya_schedule_mix(kind, operation->count), (uint64_t)operation->peer);
    return maya_schedule_mix(kind, calls[kind % KINDS]++);
}

/* Applies --inject and --schedule-seed to a call. Graph launches and calls that involve only this rank are not counted. */
static nccl_result inject_fault(nccl_operation *operation) {
    bool is_local = operation->communicator->ranks == 1 || (nccl_is_p2p(operation) && is_root(operation));
    if (is_local || maya_stream_is_capturing(operation->stream)) return NCCL_SUCCESS;
    char text[256];
    maya_sleep_ns(maya_schedule_ns(MAYA_CALL_BEGINS, identity(operation)));
    operation->fault = maya_fault_at_call(text, sizeof text);
    return operation->fault == MAYA_CALL_RAISES ? nccl_fail(NCCL_SYSTEM_ERROR, "%s", text) : NCCL_SUCCESS;
}

/* Where the calling thread's Python code made the call. The coordinator learns a call site before the first post that has it.
 */
static const maya_python_site *find_call_site(void) {
    maya_python_site *site = maya_this_thread()->call_site;
    if (site == NULL || __atomic_exchange_n(&site->sent, true, __ATOMIC_RELAXED)) return site;
    maya_call_site message = {.number = site->number, .frames = {site->text, site->size}};
    maya_pack_call_site(maya_outgoing_begin(), &message);
    maya_outgoing_end(NULL, 0);
    return site;
}

static nccl_result post(const char *function, nccl_operation operation) {
    MAYA_OWN_TIME;
    if (!maya_stream_is_capturing(operation.stream)) maya_watchdogs_poll();
    nccl_group_open();
    nccl_result result = nccl_check_ready(operation.communicator, function);
    if (result == NCCL_SUCCESS) result = check(function, &operation);
    /* NCCL drops empty collectives, but not empty sends and receives, because the peer waits for them. */
    if (result == NCCL_SUCCESS && (operation.count > 0 || nccl_is_p2p(&operation))) {
        result = inject_fault(&operation);
        operation.site = find_call_site();
        if (result == NCCL_SUCCESS) nccl_group_add_operation(&operation);
    }
    if (result != NCCL_SUCCESS) nccl_group_refuse(result);
    nccl_result closed = nccl_group_close();
    return result != NCCL_SUCCESS ? result : closed;
}

/* clang-format off */
MAYA_API nccl_result ncclAllReduce(const void *send, void *receive, size_t count, nccl_type type, int operator,
                                   nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){
                .call = NCCL_ALL_REDUCE, .send = send, .receive = receive, .count = count, .type = type,
                .operator = operator, .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclReduce(const void *send, void *receive, size_t count, nccl_type type, int operator, int root,
                                nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){
                .call = NCCL_REDUCE, .send = send, .receive = receive, .count = count, .type = type,
                .operator = operator, .peer = root, .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclReduceScatter(const void *send, void *receive, size_t receive_count, nccl_type type, int operator,
                                       nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){
                .call = NCCL_REDUCE_SCATTER, .send = send, .receive = receive, .count = receive_count, .type = type,
                .operator = operator, .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclBroadcast(const void *send, void *receive, size_t count, nccl_type type, int root,
                                   nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){
                .call = NCCL_BROADCAST, .send = send, .receive = receive, .count = count, .type = type, .peer = root,
                .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclBcast(void *buffer, size_t count, nccl_type type, int root, nccl_communicator *communicator,
                               void *stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}

MAYA_API nccl_result ncclAllGather(const void *send, void *receive, size_t send_count, nccl_type type,
                                   nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){
                .call = NCCL_ALL_GATHER, .send = send, .receive = receive, .count = send_count, .type = type,
                .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclAlltoAll(const void *send, void *receive, size_t count, nccl_type type,
                                  nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){
                .call = NCCL_ALL_TO_ALL, .send = send, .receive = receive, .count = count, .type = type,
                .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclGather(const void *send, void *receive, size_t count, nccl_type type, int root,
                                nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){
                .call = NCCL_GATHER, .send = send, .receive = receive, .count = count, .type = type, .peer = root,
                .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclScatter(const void *send, void *receive, size_t count, nccl_type type, int root,
                                 nccl_communicator *communicator, void *stream) {
    return post(__func__, (nccl_operation){
                .call = NCCL_SCATTER, .send = send, .receive = receive, .count = count, .type = type, .peer = root,
                .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclSend(const void *send, size_t count, nccl_type type, int peer, nccl_communicator *communicator,
                              void *stream) {
    return post(__func__, (nccl_operation){
                .call = NCCL_SEND, .send = send, .count = count, .type = type, .peer = peer,
                .communicator = communicator, .stream = stream});
}

MAYA_API nccl_result ncclRecv(void *receive, size_t count, nccl_type type, int peer, nccl_communicator *communicator,
                              void *stream) {
    return post(__func__, (nccl_operation){
                .call = NCCL_RECEIVE, .receive = receive, .count = count, .type = type, .peer = peer,
                .communicator = communicator, .stream = stream});
}
/* clang-format on */

/* ---- reduction operators that a program creates ---- */

MAYA_API nccl_result ncclRedOpCreatePreMulSum(int *operator, void *scalar, nccl_type type, int residence,
                                              nccl_communicator *communicator) {
    enum { SCALAR_ON_DEVICE = 0, SCALAR_ON_HOST = 1 };
    nccl_result result = nccl_check_communicator(communicator, __func__);
    if (result != NCCL_SUCCESS) return result;
    if (operator == NULL || scalar == NULL || (unsigned)type >= NCCL_TYPES || (unsigned)residence > SCALAR_ON_HOST) {
        return nccl_fail(NCCL_INVALID_ARGUMENT, "%s: operator %p, scalar %p, data type %d, residence %d", __func__,
                         (void *)operator, scalar, type, residence);
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
