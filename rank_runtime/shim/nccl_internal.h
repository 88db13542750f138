/* What the files of the fake libnccl.so.2 share.
 *
 * nccl.c              communicators: life cycle, configuration, queries
 * nccl_memory.c       memory, registered buffers, windows
 * nccl_collective.c   the collectives and point-to-point calls: argument checks
 * nccl_group.c        groups: what is called inside one happens at its end
 * nccl_rendezvous.c   how the members of a communicator meet, and part
 * nccl_post.c         operations among several ranks: posts to the coordinator, in stream order, and its answers
 * nccl_bytes.c        their bytes: what is sent and what is received
 * nccl_one_rank.c     operations on communicators whose only member is this process
 * nccl_record.c       what is written into the trace
 * nccl_arithmetic.c   element arithmetic on NCCL's data types
 *
 * One lock, nccl_lock, guards the communicators and the tables of what the coordinator has not answered yet. It is held for
 * bookkeeping and while messages are added to a batch; never while anybody waits, memory is copied, or the stream engine is
 * called. The thread of the connection takes it, too, so a thread that waits for an answer waits on nccl_changed. */
#pragma once

#include "device/coordinator_client.h"
#include "device/faults.h"
#include "device/internal.h"

#include <pthread.h>

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

/* The messages to the coordinator number data types and reductions as NCCL does. */
typedef enum {
    NCCL_INT8 = MAYA_DATA_TYPE_INT8,
    NCCL_UINT8 = MAYA_DATA_TYPE_UINT8,
    NCCL_INT32 = MAYA_DATA_TYPE_INT32,
    NCCL_UINT32 = MAYA_DATA_TYPE_UINT32,
    NCCL_INT64 = MAYA_DATA_TYPE_INT64,
    NCCL_UINT64 = MAYA_DATA_TYPE_UINT64,
    NCCL_FLOAT16 = MAYA_DATA_TYPE_FLOAT16,
    NCCL_FLOAT32 = MAYA_DATA_TYPE_FLOAT32,
    NCCL_FLOAT64 = MAYA_DATA_TYPE_FLOAT64,
    NCCL_BFLOAT16 = MAYA_DATA_TYPE_BFLOAT16,
    NCCL_FLOAT8_E4M3 = MAYA_DATA_TYPE_FLOAT8_E4M3,
    NCCL_FLOAT8_E5M2 = MAYA_DATA_TYPE_FLOAT8_E5M2,
    NCCL_TYPES,
} nccl_type;
_Static_assert(NCCL_INT8 == 0 && NCCL_UINT8 == 1 && NCCL_INT32 == 2 && NCCL_UINT32 == 3 && NCCL_INT64 == 4 &&
                   NCCL_UINT64 == 5 && NCCL_FLOAT16 == 6 && NCCL_FLOAT32 == 7 && NCCL_FLOAT64 == 8 && NCCL_BFLOAT16 == 9 &&
                   NCCL_FLOAT8_E4M3 == 10 && NCCL_FLOAT8_E5M2 == 11,
               "ncclDataType_t");

/* Reduction operators; those a program makes itself follow the built-in ones. */
enum {
    NCCL_SUM = MAYA_REDUCTION_SUM,
    NCCL_PRODUCT = MAYA_REDUCTION_PROD,
    NCCL_MAXIMUM = MAYA_REDUCTION_MAX,
    NCCL_MINIMUM = MAYA_REDUCTION_MIN,
    NCCL_AVERAGE = MAYA_REDUCTION_AVG,
    NCCL_BUILT_IN_OPERATORS = MAYA_REDUCTION_PREMULSUM,
};
_Static_assert(NCCL_SUM == 0 && NCCL_PRODUCT == 1 && NCCL_MAXIMUM == 2 && NCCL_MINIMUM == 3 && NCCL_AVERAGE == 4 &&
                   NCCL_BUILT_IN_OPERATORS == 5,
               "ncclRedOp_t");

typedef enum {
    NCCL_ALL_REDUCE = MAYA_CALL_ALL_REDUCE,
    NCCL_REDUCE = MAYA_CALL_REDUCE,
    NCCL_REDUCE_SCATTER = MAYA_CALL_REDUCE_SCATTER,
    NCCL_BROADCAST = MAYA_CALL_BROADCAST,
    NCCL_ALL_GATHER = MAYA_CALL_ALL_GATHER,
    NCCL_ALL_TO_ALL = MAYA_CALL_ALL_TO_ALL,
    NCCL_GATHER = MAYA_CALL_GATHER,
    NCCL_SCATTER = MAYA_CALL_SCATTER,
    NCCL_SEND = MAYA_CALL_SEND,
    NCCL_RECEIVE = MAYA_CALL_RECEIVE,
} nccl_call;

/* "Multiply each input by a scalar, then sum" (ncclRedOpCreatePreMulSum). */
typedef struct {
    bool used;
    const void *device_scalar; /* read when the operation runs; NULL: host_scalar was read at creation */
    unsigned char host_scalar[8];
} nccl_scaled_sum;

#define NCCL_MAX_SCALED_SUMS 64

typedef struct nccl_communicator {
    uint32_t magic;
    uint32_t number;      /* by which records name it: 1, 2, ... in the order in which this process asked for them */
    const char *function; /* that made it */
    int device;
    bool blocking;
    bool shares_buffers; /* with the communicator that it was split from */
    int channel_limit;   /* of the configuration; 0: none */
    nccl_scaled_sum scaled_sums[NCCL_MAX_SCALED_SUMS];

    /* guarded by nccl_lock */
    int references;     /* the handle's, and one for each operation under way or captured */
    nccl_result state;  /* NCCL_IN_PROGRESS until the members have met; what has gone wrong since */
    char error[512];    /* the same in words */
    int ranks, rank;    /* -1 until the members have met, for one that was made from another */
    int64_t identifier; /* the coordinator's; 0: it does not know of it */
    int64_t *members;   /* ranks of the job; NULL for a communicator of one rank that met nobody */
    int64_t instance;
    bool settled;              /* recorded and paid for ... */
    int64_t charged;           /* ... with so many bytes of device memory */
    bool finalized;            /* no further operations */
    bool gone;                 /* destroyed, aborted or revoked: what is still under way is dropped */
    bool destroyed;            /* after all its operations; only a graph can come with others */
    bool abandoned;            /* the program has ended, and a member left before it had joined an operation */
    int outstanding;           /* operations handed to a stream that are not complete */
    int delivering;            /* answers that are just being written to memory */
    int64_t offspring;         /* splits and shrinks so far */
    uint64_t collectives;      /* operations so far */
    uint64_t *sent, *received; /* the same per peer; NULL before the first */
} nccl_communicator;

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
    uint64_t sequence;       /* given when the operation is handed to its stream */
    bool grouped;            /* not the first of its group on its stream */
    maya_call_fault fault;   /* made on purpose */
    int64_t shared_bytes;    /* of a message: of those in its group that share its way out of, or into, the rank */
} nccl_operation;

extern pthread_mutex_t nccl_lock;
extern pthread_cond_t nccl_changed; /* with nccl_lock: the state or the operations of some communicator */

/* ---- nccl.c ---- */

/* Says what was wrong to ncclGetLastError() and returns `result`. */
nccl_result nccl_fail(nccl_result result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* An error that no call returns, for ncclGetLastError(), too. nccl_lock is held. */
void nccl_keep_late_error(const char *text);
/* NCCL_SUCCESS if `communicator` is one of ours. */
nccl_result nccl_check_communicator(const nccl_communicator *communicator, const char *function);
/* The same, and its members have met and nothing has gone wrong. */
nccl_result nccl_check_ready(nccl_communicator *communicator, const char *function);
/* Waits until the members have met. A communicator that could not be made is gone afterwards, and the handle NULL. */
nccl_result nccl_wait_for_birth(nccl_communicator **handle);

/* ---- nccl_group.c ---- */

void nccl_group_open(void);
nccl_result nccl_group_close(void);
bool nccl_group_is_open(void);
/* The first refusal is the result of the group. */
void nccl_group_refuse(nccl_result result);
nccl_result nccl_group_add_operation(const nccl_operation *operation);
nccl_result nccl_group_add_birth(nccl_communicator **handle);

/* ---- nccl_collective.c ---- */

bool nccl_is_message(const nccl_operation *operation);
bool nccl_is_reduction(const nccl_operation *operation);
/* Is there a peer or a root? */
bool nccl_has_peer(const nccl_operation *operation);
/* Bytes that this rank sends (receives) in this call; 0: it does not read (write) that buffer. */
size_t nccl_send_bytes(const nccl_operation *operation);
size_t nccl_receive_bytes(const nccl_operation *operation);

/* ---- nccl_rendezvous.c ---- */

/* Begin to meet the other members: state becomes NCCL_IN_PROGRESS, and something else when they have met. */
nccl_result nccl_join(nccl_communicator *communicator, const void *identifiers, size_t identifier_bytes);
/* `communicator` NULL: the caller takes no part in the new ones. */
nccl_result nccl_split(nccl_communicator *parent, nccl_communicator *communicator, int color, int key);
nccl_result nccl_shrink(nccl_communicator *parent, nccl_communicator *communicator, const int *excluded, int count);
/* Records and pays for a communicator whose members have met; once. The state. */
nccl_result nccl_settle(nccl_communicator *communicator);
/* The operations under way are given up: their streams go on. No others follow. */
void nccl_give_up(nccl_communicator *communicator);
/* Nobody uses the handle any more. */
void nccl_leave(nccl_communicator *communicator, bool aborted);
/* with nccl_lock held */
void nccl_drop_reference(nccl_communicator *communicator);
void nccl_note_error(nccl_communicator *communicator, nccl_result result, const char *text, size_t length);
bool nccl_coordinator_is_lost(void);

/* ---- nccl_post.c ---- */

/* One closed group, in the order of the calls; its operations may belong to several communicators and streams. */
nccl_result nccl_post(nccl_operation *operations, size_t count);
/* What arrives for operations; in the thread of the connection. */
void nccl_operation_done(const maya_done *message, const void *payload, size_t payload_bytes);
void nccl_operation_failed(const maya_failed *message);
void nccl_operation_abandoned(const maya_abandoned *message);
/* No answer comes any more for the operations of `communicator` (NULL: of any); their streams go on. `why` is noted as an
 * error of the communicators; NULL: it is none. */
void nccl_drop_operations(nccl_communicator *communicator, const char *why);
/* In a forked child: those are the parent's. */
void nccl_operations_after_fork(void);

/* ---- nccl_bytes.c ---- */

typedef struct {
    void *bytes; /* from malloc; NULL: nothing is sent */
    size_t size;
    int64_t *known; /* from malloc, as in maya_values_known_parts */
    size_t known_count;
    bool guessed; /* what is called known is partly made up */
    bool lost;    /* there is an object in the send buffer, and it is too large to be carried */
} nccl_contribution;

/* What the operation sends, as its send buffer is now. */
void nccl_read_contribution(nccl_contribution *given, const nccl_operation *operation);
/* What it has received, or that nothing has come. false: it was an object, and there was no room for it. */
bool nccl_write_result(const nccl_operation *operation, const void *bytes, size_t size, maya_numbers known, bool guessed);
void nccl_write_nothing(const nccl_operation *operation);

/* ---- nccl_memory.c ---- */

/* Device memory that NCCL takes for the buffers of a communicator. */
int64_t nccl_buffer_bytes(const nccl_communicator *communicator);

/* ---- nccl_one_rank.c ---- */

/* `source` is where the bytes come from: the send buffer of the call itself or, for a receive, of the matching send. */
nccl_result nccl_post_to_oneself(const nccl_operation *operation, const void *source);

/* ---- nccl_record.c ---- */

uint32_t nccl_signature(const nccl_operation *operation);
void nccl_record_birth(const nccl_communicator *communicator);

/* ---- nccl_arithmetic.c ---- */

size_t nccl_type_size(nccl_type type);
/* target[i] = source[i] * scalar; target may be source. */
void nccl_scale(void *target, const void *source, const void *scalar, size_t count, nccl_type type);
