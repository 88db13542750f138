/* What the files of the fake libnccl.so.2 share.
 *
 * nccl.c              communicators: life cycle, configuration, queries, registration, memory
 * nccl_collective.c   the collectives and point-to-point calls: argument checks and group semantics
 * nccl_one_rank.c     the rendezvous: how the members of a communicator meet and what an operation does to memory
 * nccl_arithmetic.c   element arithmetic on NCCL's data types
 *
 * The seam is `rendezvous`: the API side checks arguments as NCCL does, collects a group, and hands it over in one
 * piece. Only nccl_one_rank.c knows that all members are this process; several ranks need another file behind the same
 * three calls. */
#pragma once

#include "device/device.h"

typedef enum {
    NCCL_SUCCESS = 0,
    NCCL_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
    NCCL_TIMEOUT = 8,
} nccl_result;

typedef enum {
    NCCL_INT8,
    NCCL_UINT8,
    NCCL_INT32,
    NCCL_UINT32,
    NCCL_INT64,
    NCCL_UINT64,
    NCCL_FLOAT16,
    NCCL_FLOAT32,
    NCCL_FLOAT64,
    NCCL_BFLOAT16,
    NCCL_FLOAT8_E4M3,
    NCCL_FLOAT8_E5M2,
    NCCL_TYPES,
} nccl_type;

/* Reduction operators; those a program makes itself follow the built-in ones. */
enum { NCCL_SUM, NCCL_PRODUCT, NCCL_MAXIMUM, NCCL_MINIMUM, NCCL_AVERAGE, NCCL_BUILT_IN_OPERATORS };

/* "Multiply each input by a scalar, then sum" (ncclRedOpCreatePreMulSum). */
typedef struct {
    bool used;
    const void *device_scalar; /* read when the operation runs; NULL: host_scalar was read at creation */
    unsigned char host_scalar[8];
} nccl_scaled_sum;

#define NCCL_MAX_SCALED_SUMS 64

typedef struct nccl_communicator {
    uint32_t magic;
    uint32_t number; /* by which records name it: 1, 2, ... in the order in which this process joined */
    int ranks, rank, device;
    uint64_t collectives, messages; /* operations posted so far; point-to-point calls count apart */
    nccl_scaled_sum scaled_sums[NCCL_MAX_SCALED_SUMS];
} nccl_communicator;

typedef enum {
    NCCL_ALL_REDUCE,
    NCCL_REDUCE,
    NCCL_REDUCE_SCATTER,
    NCCL_BROADCAST,
    NCCL_ALL_GATHER,
    NCCL_ALL_TO_ALL,
    NCCL_GATHER,
    NCCL_SCATTER,
    NCCL_SEND,
    NCCL_RECEIVE,
} nccl_call;

/* One call, as the program made it. */
typedef struct {
    nccl_call call;
    nccl_communicator *communicator;
    void *stream;
    const void *send;
    void *receive;
    size_t count; /* as the call counts: per rank for all-gather, reduce-scatter, all-to-all, gather and scatter */
    nccl_type type;
    int operator;            /* of the reductions */
    nccl_scaled_sum scaling; /* .used: the program's own operator; a copy, as it may be destroyed meanwhile */
    int peer;                /* root of a rooted collective, peer of a point-to-point call */
    uint64_t sequence;
} nccl_operation;

/* Says what was wrong to ncclGetLastError() and returns `result`. */
nccl_result nccl_fail(nccl_result result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* NCCL_SUCCESS if `communicator` is one of ours. */
nccl_result nccl_check_communicator(const nccl_communicator *communicator, const char *function);

size_t nccl_type_size(nccl_type type);
/* target[i] = source[i] * scalar; target may be source. false: this type has no arithmetic here. */
bool nccl_scale(void *target, const void *source, const void *scalar, size_t count, nccl_type type);

/* ---- the seam ---- */

/* The members of a communicator meet; fills in `number`. `identifiers`: from ncclGetUniqueId on one or more ranks. */
nccl_result nccl_rendezvous_join(nccl_communicator *communicator, const void *identifiers, int identifier_count);
/* One closed group, in the order of the calls; its operations may belong to several communicators and streams. */
nccl_result nccl_rendezvous_post(const nccl_operation *operations, size_t count);
void nccl_rendezvous_leave(nccl_communicator *communicator);
