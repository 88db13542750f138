/* NCCL's records in the trace. The signature of an operation is
 *
 * {"call":"ncclAllReduce","communicator":1,"ranks":8,"rank":3,"count":1024,"dtype":"bf16","op":"sum"}
 *
 * (with "root", or "peer" and "shared_bytes", where the call has them). The record's value is the sequence number: of a
 * collective on its communicator, of a P2P call among those from its sender to its receiver. It is not part of the signature,
 * because signatures are interned and a training step repeats the same few. "communicator" is the communicator's number in this
 * process; one record describes the communicator when its init is complete:
 *
 * {"call":"ncclCommInitRankConfig","communicator":1,"ranks":8,"rank":3,"members":"0-56:8","instance":0}
 *
 * "members" are the job's ranks in the order of the communicator, as ranges first-last:step. "instance" tells communicators of
 * the same members apart, equally on all ranks. */

#include "nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>

uint32_t nccl_signature(const nccl_operation *operation) {
    static const char *const calls[] = {
        [NCCL_ALL_REDUCE] = "ncclAllReduce", [NCCL_REDUCE] = "ncclReduce",        [NCCL_REDUCE_SCATTER] = "ncclReduceScatter",
        [NCCL_BROADCAST] = "ncclBroadcast",  [NCCL_ALL_GATHER] = "ncclAllGather", [NCCL_ALL_TO_ALL] = "ncclAlltoAll",
        [NCCL_GATHER] = "ncclGather",        [NCCL_SCATTER] = "ncclScatter",      [NCCL_SEND] = "ncclSend",
        [NCCL_RECEIVE] = "ncclRecv",
    };
    static const char *const types[NCCL_TYPES] = {"int8", "uint8", "int32", "uint32", "int64",    "uint64",
                                                  "fp16", "fp32",  "fp64",  "bf16",   "fp8_e4m3", "fp8_e5m2"};
    static const char *const operators[] = {"sum", "prod", "max", "min", "avg", "premulsum"};

    const nccl_communicator *communicator = operation->communicator;
    char operator[32] = "", peer[64] = "", text[320];
    if (nccl_is_reduction(operation)) {
        int index = operation->scaling.used ? NCCL_BUILT_IN_OPERATORS : operation->operator;
        snprintf(operator, sizeof operator, ",\"op\":\"%s\"", operators[index]);
    }
    if (nccl_is_p2p(operation)) {
        snprintf(peer, sizeof peer, ",\"peer\":%d,\"shared_bytes\":%lld", operation->peer, (long long)operation->shared_bytes);
    } else if (nccl_has_peer(operation)) {
        snprintf(peer, sizeof peer, ",\"root\":%d", operation->peer);
    }
    int length = snprintf(text, sizeof text,
                          "{\"call\":\"%s\",\"communicator\":%u,\"ranks\":%d,\"rank\":%d,"
                          "\"count\":%zu,\"dtype\":\"%s\"%s%s}",
                          calls[operation->call], communicator->number, communicator->ranks, communicator->rank,
                          operation->count, types[operation->type], operator, peer);
    return maya_intern(text, (size_t)length);
}

uint8_t nccl_record_flags(const nccl_operation *operation) {
    return (operation->grouped ? MAYA_FLAG_GROUPED : 0) | (operation->routed ? MAYA_FLAG_ROUTED : 0);
}

/* How many of `ranks` are first, first + step, first + 2 * step, ... with a step of at least 1. */
static size_t run_length(const int64_t *ranks, size_t count) {
    if (count < 2 || ranks[1] <= ranks[0]) return 1;
    size_t length = 2;
    while (length < count && ranks[length] - ranks[length - 1] == ranks[1] - ranks[0]) length++;
    return length;
}

/* Prints "0-7", "0-56:8", "0-7,64-71"; two ranks form a range only if they are neighbours. */
static void print_ranges(FILE *text, const int64_t *ranks, size_t count) {
    for (size_t i = 0; i < count;) {
        size_t run = run_length(ranks + i, count - i);
        int64_t step = run > 1 ? ranks[i + 1] - ranks[i] : 0;
        if (run == 2 && step > 1) run = 1;
        fprintf(text, "%s%lld", i ? "," : "", (long long)ranks[i]);
        if (run > 1) fprintf(text, "-%lld", (long long)ranks[i + run - 1]);
        if (run > 1 && step > 1) fprintf(text, ":%lld", (long long)step);
        i += run;
    }
}

void nccl_record_init(const nccl_communicator *communicator) {
    int64_t own_rank = maya_get_settings()->rank;
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (stream == NULL) return;
    fprintf(stream, "{\"call\":\"%s\",\"communicator\":%u,\"ranks\":%d,\"rank\":%d,\"members\":\"", communicator->function,
            communicator->number, communicator->ranks, communicator->rank);
    print_ranges(stream, communicator->members ? communicator->members : &own_rank, (size_t)communicator->ranks);
    fprintf(stream, "\",\"instance\":%lld}", (long long)communicator->instance);
    if (fclose(stream) == 0) maya_record(MAYA_RECORD_COLLECTIVE, 0, maya_intern(text, length), 0, 0);
    free(text);
}
