/* Communicators whose only member is this process: the whole rendezvous while there is one rank.
 *
 * A group comes in; each of its calls goes out as one collective record, in stream order, with real bytes: with one
 * member every collective leaves in the receive buffer what was in the send buffer (scaled, for
 * ncclRedOpCreatePreMulSum). A send to the own rank is delivered by its receive in the same group, as NCCL requires.
 *
 * A record's signature is
 * {"call":"ncclAllReduce","communicator":1,"ranks":1,"rank":0,"count":1024,"dtype":"bf16","op":"sum"} ("root" or "peer"
 * where the call has one); its value is the sequence number on that communicator. The number is not part of the
 * signature because signatures are interned: a training step posts the same few again and again. */

#include "nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>

nccl_result nccl_rendezvous_join(nccl_communicator *communicator, const void *identifiers, int identifier_count) {
    (void)identifiers;
    (void)identifier_count;
    if (communicator->ranks > 1) {
        int ranks = communicator->ranks;
        maya_message("NCCL: a communicator of %d ranks needs that many ranks, and this version runs one; start the "
                     "program with a world size of 1 and, if it drives several GPUs itself (nn.DataParallel), "
                     "with CUDA_VISIBLE_DEVICES=0", ranks);
        return nccl_fail(NCCL_INVALID_USAGE, "a communicator of %d ranks: only one rank is emulated", ranks);
    }
    static uint32_t joined;
    communicator->number = __atomic_add_fetch(&joined, 1, __ATOMIC_RELAXED);
    return NCCL_SUCCESS;
}

void nccl_rendezvous_leave(nccl_communicator *communicator) { (void)communicator; }

/* ---- what an operation does to memory ---- */

typedef struct {
    void *target;
    const void *source;
    size_t count;
    nccl_type type;
    nccl_scaled_sum scaling;
} transfer;

static void run_transfer(void *argument) {
    transfer *work = argument;
    size_t size = work->count * nccl_type_size(work->type);
    if (!work->scaling.used) {
        if (work->target != work->source) maya_values_copy(work->target, work->source, size);
        return;
    }
    const void *scalar = work->scaling.device_scalar;
    bool known = maya_values_are_known(work->source, size) &&
                 (scalar == NULL || maya_values_are_known(scalar, nccl_type_size(work->type)));
    if (scalar == NULL) scalar = work->scaling.host_scalar;
    if (known && nccl_scale(work->target, work->source, scalar, work->count, work->type)) {
        maya_values_known(work->target, size);
    } else {
        maya_values_made_up(work->target, size);
    }
}

static uint32_t signature_of(const nccl_operation *operation) {
    static const char *const calls[] = {
        [NCCL_ALL_REDUCE] = "ncclAllReduce",         [NCCL_REDUCE] = "ncclReduce",
        [NCCL_REDUCE_SCATTER] = "ncclReduceScatter", [NCCL_BROADCAST] = "ncclBroadcast",
        [NCCL_ALL_GATHER] = "ncclAllGather",         [NCCL_ALL_TO_ALL] = "ncclAlltoAll",
        [NCCL_GATHER] = "ncclGather",                [NCCL_SCATTER] = "ncclScatter",
        [NCCL_SEND] = "ncclSend",                    [NCCL_RECEIVE] = "ncclRecv",
    };
    static const char *const types[NCCL_TYPES] = {"int8", "uint8", "int32", "uint32", "int64",    "uint64",
                                                  "fp16", "fp32",  "fp64",  "bf16",   "fp8_e4m3", "fp8_e5m2"};
    static const char *const operators[] = {"sum", "prod", "max", "min", "avg", "premulsum"};

    const nccl_communicator *communicator = operation->communicator;
    char text[256];
    int length = snprintf(text, sizeof text,
                          "{\"call\":\"%s\",\"communicator\":%u,\"ranks\":%d,\"rank\":%d,"
                          "\"count\":%zu,\"dtype\":\"%s\"",
                          calls[operation->call], communicator->number, communicator->ranks, communicator->rank,
                          operation->count, types[operation->type]);
    switch (operation->call) {
    case NCCL_REDUCE:
    case NCCL_ALL_REDUCE:
    case NCCL_REDUCE_SCATTER: {
        const char *name = operators[operation->scaling.used ? NCCL_BUILT_IN_OPERATORS : operation->operator];
        length += snprintf(text + length, sizeof text - (size_t)length, ",\"op\":\"%s\"", name);
        if (operation->call != NCCL_REDUCE) break;
    } /* fall through */
    case NCCL_BROADCAST:
    case NCCL_GATHER:
    case NCCL_SCATTER:
        length += snprintf(text + length, sizeof text - (size_t)length, ",\"root\":%d", operation->peer);
        break;
    case NCCL_SEND:
    case NCCL_RECEIVE:
        length += snprintf(text + length, sizeof text - (size_t)length, ",\"peer\":%d", operation->peer);
        break;
    default:
        break;
    }
    length += snprintf(text + length, sizeof text - (size_t)length, "}");
    return maya_intern(text, (size_t)length);
}

/* `source` is where the bytes come from: the send buffer of the call itself or, for a receive, of the matching send. */
static nccl_result submit(const nccl_operation *operation, const void *source) {
    maya_work work = {
        .kind = MAYA_RECORD_COLLECTIVE,
        .signature = signature_of(operation),
        .value = operation->sequence,
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
        work.run = run_transfer;
        work.release = free;
        work.argument = argument;
    }
    int error = maya_submit(operation->stream, &work);
    return error == 0 ? NCCL_SUCCESS : nccl_fail(NCCL_CUDA_ERROR, "CUDA error %d", error);
}

/* ---- messages to oneself ---- */

/* The call that completes operations[index]: the nth send goes to the nth receive of its communicator. */
static const nccl_operation *counterpart(const nccl_operation *operations, size_t count, size_t index) {
    const nccl_operation *wanted = &operations[index];
    nccl_call other = wanted->call == NCCL_SEND ? NCCL_RECEIVE : NCCL_SEND;
    size_t before = 0;
    for (size_t i = 0; i < index; i++) {
        before += operations[i].call == wanted->call && operations[i].communicator == wanted->communicator;
    }
    for (size_t i = 0; i < count; i++) {
        if (operations[i].call != other || operations[i].communicator != wanted->communicator) continue;
        if (before-- == 0) return &operations[i];
    }
    return NULL;
}

static bool is_message(const nccl_operation *operation) {
    return operation->call == NCCL_SEND || operation->call == NCCL_RECEIVE;
}

static nccl_result check_message(const nccl_operation *operations, size_t count, size_t index) {
    const nccl_operation *one = &operations[index], *other = counterpart(operations, count, index);
    const char *function = one->call == NCCL_SEND ? "ncclSend" : "ncclRecv";
    const char *missing = one->call == NCCL_SEND ? "ncclRecv" : "ncclSend";
    if (other == NULL) {
        return nccl_fail(NCCL_INVALID_USAGE, "%s to the own rank %d without a matching %s in the same group", function,
                         one->peer, missing);
    }
    size_t bytes = one->count * nccl_type_size(one->type), other_bytes = other->count * nccl_type_size(other->type);
    if (bytes != other_bytes) {
        return nccl_fail(NCCL_INVALID_USAGE, "%s of %zu bytes to the own rank meets %s of %zu bytes", function, bytes,
                         missing, other_bytes);
    }
    if (one->stream != other->stream) {
        maya_unsupported_detail(function, "a message to the own rank whose two ends are on different streams");
        return nccl_fail(NCCL_INVALID_USAGE, "%s and its %s are on different streams", function, missing);
    }
    return NCCL_SUCCESS;
}

nccl_result nccl_rendezvous_post(const nccl_operation *operations, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!is_message(&operations[i])) continue;
        nccl_result result = check_message(operations, count, i);
        if (result != NCCL_SUCCESS) return result;
    }
    for (size_t i = 0; i < count; i++) {
        const void *source = operations[i].send;
        if (operations[i].call == NCCL_RECEIVE) source = counterpart(operations, count, i)->send;
        nccl_result result = submit(&operations[i], source);
        if (result != NCCL_SUCCESS) return result;
    }
    return NCCL_SUCCESS;
}
