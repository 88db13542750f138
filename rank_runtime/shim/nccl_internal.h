/* What the files of the fake libnccl.so.2 share.
 *
 * nccl.c              communicators: life cycle, configuration, queries
 * nccl_memory.c       memory, registered buffers, windows
 * nccl_collective.c   the collectives and point-to-point (P2P) calls: argument checks
 * nccl_group.c        groups: calls inside a group take effect at its end
 * nccl_rendezvous.c   the rendezvous of a communicator's members (init), and leaving it
 * nccl_post.c         operations among several ranks: posts to the coordinator, in stream order, and its answers
 * nccl_bytes.c        the contents of send and receive buffers
 * nccl_one_rank.c     operations on communicators whose only member is this process
 * nccl_record.c       the trace records of operations and communicators
 * nccl_arithmetic.c   element arithmetic on NCCL's data types
 * nccl_debug.c        the lines of NCCL_DEBUG
 *
 * One lock, nccl_lock, guards the communicators and the tables of requests and operations that the coordinator has not answered
 * yet. It is held for bookkeeping and while messages to the coordinator are added to a batch; never during a wait, a copy of
 * memory, or a call into the stream engine. The coordinator client's thread takes it as well, so a thread that waits for an
 * answer waits on nccl_changed. */
#pragma once

#include "device/coordinator_client.h"
#include "device/faults.h"
#include "device/internal.h"

#include <pthread.h>

#ifndef MAYA_NCCL_VERSION
#define MAYA_NCCL_VERSION 22703
#endif
#ifndef MAYA_CUDA_VERSION
#define MAYA_CUDA_VERSION 13000
#endif

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

/* Messages to the coordinator use NCCL's numbers for data types and reductions. */
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

/* Reduction operators; operators that a program creates have the numbers after the built-in ones. */
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

/* The operator "multiply each input by a scalar, then sum" (ncclRedOpCreatePreMulSum). */
typedef struct {
    bool used;
    const void *device_scalar; /* read when the operation runs; NULL: host_scalar was read at creation */
    unsigned char host_scalar[8];
} nccl_scaled_sum;

#define NCCL_MAX_SCALED_SUMS 64

typedef struct nccl_communicator {
    uint32_t magic;
    uint32_t number;      /* its name in records: 1, 2, ... in the order of this process's init calls */
    const char *function; /* the NCCL function that made it */
    int device;
    bool blocking;
    bool shares_buffers; /* uses the buffers of the communicator that it was split from */
    int channel_limit;   /* maxCTAs of the configuration; 0: not set */
    nccl_scaled_sum scaled_sums[NCCL_MAX_SCALED_SUMS];

    /* guarded by nccl_lock */
    int references;            /* one for the handle, and one for each operation that is outstanding or captured */
    nccl_result state;         /* NCCL_IN_PROGRESS during init; later the first error, if there was one */
    char error[512];           /* the text of that error */
    int ranks, rank;           /* -1 during the init of a communicator that was split or shrunk from another */
    int64_t identifier;        /* the coordinator's number of it; 0: the coordinator does not know it */
    int64_t *members;          /* the members' ranks in the job; NULL for a communicator of one rank */
    uint64_t key;              /* made from the unique id; 0: split or shrunk from another */
    char *description;         /* the coordinator's answer to Describe, until it is logged */
    int64_t instance;          /* tells communicators of the same members apart, equally on all ranks */
    bool init_finished;        /* its record is written and its memory charged */
    int64_t charged;           /* bytes of device memory charged for its buffers */
    bool finalized;            /* no further operations */
    bool gone;                 /* destroyed, aborted or revoked: outstanding operations are dropped */
    bool destroyed;            /* destroyed after its last operation; only a graph launch can bring another one */
    bool abandoned;            /* the program has ended, and a member left without joining an operation */
    int outstanding;           /* operations submitted to a stream and not complete */
    int delivering;            /* answers that are being written to memory at the moment */
    int64_t children;          /* number of splits and shrinks so far */
    uint64_t collectives;      /* number of collectives so far */
    uint64_t *sent, *received; /* numbers of sends and receives per peer; NULL before the first */
} nccl_communicator;

/* One collective or P2P call of the program. */
typedef struct {
    nccl_call call;
    nccl_communicator *communicator;
    void *stream;
    const void *send;
    void *receive;
    size_t count; /* elements; per rank for all-gather, reduce-scatter, all-to-all, gather and scatter */
    nccl_type type;
    int operator;                 /* reductions only */
    nccl_scaled_sum scaling;      /* .used: an operator that the program made; a copy, because the program may destroy it */
    int peer;                     /* root of a rooted collective, peer of a P2P call */
    uint64_t sequence;            /* assigned when the operation is submitted to its stream */
    bool routed;                  /* it moves rows that a choice by rule has picked (device/routing.h) */
    bool grouped;                 /* not the first operation of its group on its stream */
    maya_call_fault fault;        /* injected by --inject */
    const maya_python_site *site; /* where the program made the call; NULL: unknown */
    int64_t shared_bytes; /* P2P: total bytes of its group's P2P calls that use the same route out of, or into, the rank */
} nccl_operation;

extern pthread_mutex_t nccl_lock;
extern pthread_cond_t nccl_changed; /* used with nccl_lock: the state or the operations of a communicator have changed */

/* ---- nccl.c ---- */

/* Stores the text for ncclGetLastError() and returns `result`. */
nccl_result nccl_fail(nccl_result result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Stores the text of an asynchronous error for ncclGetLastError(). Call with nccl_lock held. */
void nccl_keep_late_error(const char *text);
/* NCCL_SUCCESS if `communicator` is a communicator. */
nccl_result nccl_check_communicator(const nccl_communicator *communicator, const char *function);
/* NCCL_SUCCESS if `communicator` is a communicator whose init is complete and that has no error. */
nccl_result nccl_check_ready(nccl_communicator *communicator, const char *function);
/* Waits until the communicator's init is complete. If it fails, the communicator is freed and the handle set to NULL. */
nccl_result nccl_wait_for_init(nccl_communicator **handle);

/* ---- nccl_group.c ---- */

void nccl_group_open(void);
nccl_result nccl_group_close(void);
bool nccl_group_is_open(void);
/* Makes `result` the result of the group, unless an earlier call was refused. */
void nccl_group_refuse(nccl_result result);
void nccl_group_add_operation(const nccl_operation *operation);
void nccl_group_add_init(nccl_communicator **handle);

/* ---- nccl_collective.c ---- */

bool nccl_is_p2p(const nccl_operation *operation);
bool nccl_is_reduction(const nccl_operation *operation);
/* Whether the call has a peer or a root. */
bool nccl_has_peer(const nccl_operation *operation);
/* Bytes that this rank sends (receives) in this call; 0: the call does not read (write) that buffer. */
size_t nccl_send_bytes(const nccl_operation *operation);
size_t nccl_receive_bytes(const nccl_operation *operation);

/* ---- nccl_rendezvous.c ---- */

/* Begin the rendezvous with the other members. The state is NCCL_IN_PROGRESS until it is complete. */
nccl_result nccl_join(nccl_communicator *communicator, const void *identifiers, size_t identifier_bytes);
/* `communicator` NULL: the caller is a member of none of the new communicators. */
nccl_result nccl_split(nccl_communicator *parent, nccl_communicator *communicator, int color, int key);
nccl_result nccl_shrink(nccl_communicator *parent, nccl_communicator *communicator, const int *excluded, int count);
/* Writes the record of a communicator whose rendezvous is complete and charges its memory, once. Returns the state. */
nccl_result nccl_finish_init(nccl_communicator *communicator);
/* Cancels the outstanding operations, so that their streams continue, and refuses later ones. */
void nccl_cancel_operations(nccl_communicator *communicator);
/* Leaves the communicator and releases the handle's reference. */
void nccl_leave(nccl_communicator *communicator, bool aborted);
/* Call these with nccl_lock held. */
void nccl_drop_reference(nccl_communicator *communicator);
void nccl_note_error(nccl_communicator *communicator, nccl_result result, const char *text, size_t length);
bool nccl_coordinator_is_lost(void);

/* A device's PCI address as NCCL writes it. */
int64_t nccl_bus_id(int device);
/* Asks the coordinator what NCCL would log about the communicator. The caller frees the text; NULL: there is no answer. */
char *nccl_describe(nccl_communicator *communicator, int seconds);

/* ---- nccl_debug.c ---- */

void nccl_debug_init_begins(const nccl_communicator *communicator);
void nccl_debug_init_ends(nccl_communicator *communicator);
void nccl_debug_warn(const char *text, size_t length);

/* ---- nccl_post.c ---- */

/* Submits a closed group in the order of its calls; they may belong to several communicators and streams. */
nccl_result nccl_post(nccl_operation *operations, size_t count);
/* The coordinator's answers to posts, in the coordinator client's thread. */
void nccl_operation_done(const maya_done *message, const void *payload, size_t payload_bytes);
void nccl_operation_failed(const maya_failed *message);
void nccl_operation_abandoned(const maya_abandoned *message);
/* Drops the unanswered operations of `communicator` (NULL: of all), so that their streams continue. `why`, unless NULL, becomes
 * the communicators' error. */
void nccl_drop_operations(nccl_communicator *communicator, const char *why);
/* In a forked child: forgets the outstanding operations, which are the parent's. */
void nccl_operations_after_fork(void);

/* ---- nccl_bytes.c ---- */

typedef struct {
    void *bytes; /* from malloc; NULL: nothing is sent */
    size_t size;
    int64_t *known; /* from malloc; offsets as in maya_values_known_parts */
    size_t known_count;
    bool guessed; /* `known` includes placeholders */
    bool lost;    /* the send buffer holds a pickled object that is too large to be carried */
} nccl_contribution;

/* Reads the operation's contribution from its send buffer. */
void nccl_read_contribution(nccl_contribution *given, const nccl_operation *operation);
/* Write the received bytes, or placeholders, to the receive buffer. false: it was a pickled object that could not be kept. */
bool nccl_write_result(const nccl_operation *operation, const void *bytes, size_t size, maya_numbers known, bool guessed);
void nccl_write_placeholders(const nccl_operation *operation);

/* ---- nccl_memory.c ---- */

/* Device memory that NCCL allocates for the buffers of a communicator. */
int64_t nccl_buffer_bytes(const nccl_communicator *communicator);

/* ---- nccl_one_rank.c ---- */

/* `source` is the send buffer of the call or, for a receive, of the matching send. */
nccl_result nccl_post_one_rank(const nccl_operation *operation, const void *source);

/* ---- nccl_record.c ---- */

uint32_t nccl_signature(const nccl_operation *operation);
uint8_t nccl_record_flags(const nccl_operation *operation);
void nccl_record_init(const nccl_communicator *communicator);

/* ---- nccl_arithmetic.c ---- */

size_t nccl_type_size(nccl_type type);
/* target[i] = source[i] * scalar; target may be source. */
void nccl_scale(void *target, const void *source, const void *scalar, size_t count, nccl_type type);
