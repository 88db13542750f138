/* The virtual GPU, as the fake CUDA libraries see it.
 *
 * Every fake library (cudart.c, cuda.c, cublas.c, ...) translates its own interface into the calls declared here. All state
 * lives behind them, in libmaya_device.so, once per process.
 *
 * Rules for this code, because it runs inside the user's program:
 *   - no CUDA toolkit or NVIDIA header; layouts and constants are written down where they are used;
 *   - nothing happens when a library is merely loaded, because LD_PRELOAD also reaches ptxas, gcc and every other child;
 *   - host calls return at once; only the synchronize and query functions may wait or poll;
 *   - a call that is not emulated goes through maya_unsupported() and returns its library's "not supported";
 *   - nothing is printed except through maya_message(), which names the rank;
 *   - a device address is a host address, so bytes can be read and written directly.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Generated from declarations that C and Python share, in rank_runtime/: */
#include "device_properties.h"
#include "host_costs.h"
#include "trace_format.h"
#include "variables.h"

#define MAYA_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- settings.c: the launcher's choices, read once from MAYA_* variables ---- */

typedef struct {
    int rank;
    int node_devices; /* devices of the node */
    maya_device_properties device;
    maya_compute_choice compute;
    int64_t compute_bytes; /* an op is small when its tensors together are no larger */
    int64_t small_bytes;   /* contents up to this size are always kept and carried, whatever the limits below: every op's
                            * possible inputs, and at least 64 KiB */
    int64_t copy_bytes;    /* the largest copy whose bytes are kept ... */
    maya_host_tensors_choice host_tensors;
    int64_t host_tensor_bytes; /* a host tensor is large from this size on */
    int64_t kept_bytes;        /* ... while all large contents together stay below this */
    int64_t collective_bytes;  /* a collective carries the contents of buffers up to this size */
    int64_t object_bytes;      /* uint8 tensors (pickled objects) keep and carry theirs up to this size */
    char coordinator[256];     /* its ZeroMQ endpoint; empty: there are no other ranks */
    char coordinator_secret[256];
    char coordinator_keys[256]; /* CURVE: the server's public key, this side's public and secret key; empty: not encrypted */
    char zmq_path[4096]; /* the ZeroMQ library */
    bool observe_all;    /* RecordFunction callbacks also for ops that launch nothing (torch.profiler) */
    bool strict_values;  /* reading a placeholder value is an error */
    int64_t moe_skew;    /* how often the most frequent choice is made, in thousandths of the mean */
    int64_t moe_seed;    /* decides which choice that is */
    int world_size;      /* 0: unknown */
    int processes;       /* ranks that are processes; the others are absent */
    int ranks_per_node;
    bool virtual_clock;        /* the program's clocks show the time on its cluster (virtual_clock.h) ... */
    maya_clock_costs costs;    /* ... with these host costs */
    bool measure_host;         /* the trace holds the program's own processor time (host_time.h) */
    bool bare;                 /* benchmark baseline: every call succeeds, nothing is recorded or computed */
    char trace_path[4096];     /* empty: no trace */
    char observer_path[4096];  /* libmaya_observer.so; empty: ops are not observed */
    int64_t stop_after;        /* end the program after this many optimizer steps; 0: never */
    int64_t record_steps;      /* end the trace after this many optimizer steps; 0: never */
    int64_t record_operations; /* ... or after this many operations without such a step */
    int64_t schedule_seed;     /* perturbs the order of events (schedule.h); -1: none */
    bool late_ranks;           /* the process becomes a rank when it first uses a GPU (late_rank.c) */
    int debug;                 /* 1: report which ops could not be computed, and why */
} maya_settings;

MAYA_API extern const maya_settings *maya_known_settings; /* NULL: they have not been read yet */
MAYA_API const maya_settings *maya_read_settings(void);

/* Asked several times per op. */
static inline const maya_settings *maya_get_settings(void) {
    const maya_settings *known = __atomic_load_n(&maya_known_settings, __ATOMIC_ACQUIRE);
    return known ? known : maya_read_settings();
}

/* ---- visible.c: the devices of the node that the program sees ---- */

typedef struct {
    int count;
    int physical[MAYA_MAX_DEVICES]; /* numbers of the node's devices */
} maya_devices;

MAYA_API extern const maya_devices *maya_known_devices; /* NULL: CUDA has not been used yet */
MAYA_API const maya_devices *maya_find_devices(void);

static inline const maya_devices *maya_visible_devices(void) {
    const maya_devices *known = __atomic_load_n(&maya_known_devices, __ATOMIC_ACQUIRE);
    return known ? known : maya_find_devices();
}

/* ---- report.c ---- */

/* One line on stderr, "maya: [rank N] ...". */
MAYA_API void maya_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reports once per process that `function` is not emulated. The caller returns its library's "not supported". */
MAYA_API void maya_unsupported(const char *function);
/* The same with a detail: maya_unsupported_detail("cudnnBackendFinalize", "operation %d", 9). */
MAYA_API void maya_unsupported_detail(const char *function, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* This rank has failed: write standard error to a file from now on, from which the launcher shows equal lines of ranks once. */
MAYA_API void maya_fold_errors(void);

/* ---- recorder.c: the trace of this rank ----
 * rank_runtime/trace_format.py declares the kinds of records (MAYA_RECORD_...) and their flags (MAYA_FLAG_...). */

/* Number of an interned text (JSON for signatures); the same text always gives the same number. */
MAYA_API uint32_t maya_intern(const char *text, size_t length);
/* Append one record with the calling thread's current op. */
MAYA_API void maya_record(maya_record_kind kind, uint32_t stream_number, uint32_t signature, uint64_t value, uint8_t flags);
/* Nanoseconds since this process's trace began. */
MAYA_API uint64_t maya_now_ns(void);

enum { MAYA_RECENT_BLOCKS = 32 };

/* A Python stack that calls collectives (observer/call_sites.cpp); it lives as long as the process. */
typedef struct {
    int64_t number;   /* 1, 2, ... in this process */
    const char *text; /* as in the message CallSite */
    size_t size;
    bool sent; /* the coordinator knows the text; accessed atomically */
} maya_python_site;

/* The state of one host thread that the op observer, the recorder and the virtual clock share. */
typedef struct {
    uint32_t number;        /* 1, 2, ... in the order in which threads first touched the device */
    uint32_t current_op;    /* the innermost ATen op running on this thread; 0: none */
    uint32_t ops_uncounted; /* ops begun on this thread since its last record; goes into the next record's `ops` column */
    uint32_t device_work;   /* kernels and library calls so far on this thread; an op that launched finds it changed */
    void *work_stream;      /* the stream of the last of them */
    bool waits_unrecorded;  /* synchronizing leaves no record, because the program did not ask for it */
    uint32_t trials;        /* trials that it is in (trial.c), and ... */
    uint32_t memory_trials; /* ... those whose memory is not recorded */
    void *trial_durations;  /* of the kernels of the present trial */
    bool debugs;            /* runs a debugger, which must not wait for a stream that hangs */
    bool inspects;          /* Maya itself reads torch's state: queries answer in real time and leave no record */
    void *observer;         /* the op observer's own state of the thread */
    bool is_recorded;       /* the trace has its name */
    bool routed;            /* the work that it launches hangs on a choice by rule (routing.h) */
    uint32_t op_signature;  /* the op around the launch that is being recorded, for the clock; 0: none */
    uint8_t collective;     /* maya_clock_collective: what the COLLECTIVE that is being recorded is */
    void *ticket;           /* out: the clock's ticket for that collective */
    uint32_t clock_group;   /* 1 + the index of its host cursor; 0: not decided */
    uint32_t clock_reads;   /* since its last record */
    uint64_t delay_ns;      /* time asleep or reading the clock since its last record */
    const void *queried;    /* the event or stream that it polls ... */
    uint32_t queries;       /* ... how often since its last record ... */
    uint32_t all_queries;   /* ... and all queries since then */
    void *ops_in_parts;     /* launch_part.c: ops that take several launches */
    uint32_t blocks;        /* blocks that PyTorch's allocator has given to this thread, and the last of them: */
    struct {
        void *address;
        size_t size;
    } recent_blocks[MAYA_RECENT_BLOCKS]; /* number n (from 0) at n % MAYA_RECENT_BLOCKS */
    maya_python_site *call_site;         /* of the collective that the thread is in; NULL: unknown */
} maya_thread;

MAYA_API maya_thread *maya_this_thread(void);
/* A new op number (1, 2, ...), unique in this process. */
MAYA_API uint32_t maya_next_op(void);
/* Record an op that ended: OP or ANNOTATION. sequence: autograd's number, UINT32_MAX for none. */
MAYA_API void maya_record_op(maya_record_kind kind, uint32_t op, uint32_t parent, uint32_t signature, uint64_t start_ns,
                             uint64_t duration_ns, uint32_t sequence);
/* Returns the number of the signature of the calling thread's op; set by the op observer, for the virtual clock. */
typedef uint32_t (*maya_op_signer)(void);
MAYA_API void maya_set_op_signer(maya_op_signer signer);
/* Counts the steps of an optimizer. Ends the trace if `steps` are those to be recorded, and all optimizers have made them. */
MAYA_API void maya_record_steps(uint64_t steps, bool all_optimizers);
/* Write the buffered records, as at exit. */
MAYA_API void maya_record_flush(void);

/* ---- stream.c: streams, events and the order in which work happens ----
 *
 * Handles are those of the CUDA API: NULL or 1 is the legacy default stream of the current device, 2 the per-thread default
 * stream, anything else a pointer made by maya_stream_create. Work runs at once, in the calling thread, if the stream is idle;
 * otherwise it queues and a worker thread runs it in its turn. While a stream is captured, work goes into the graph instead and
 * runs at every launch of that graph. */

typedef struct maya_stream maya_stream;
typedef struct maya_event maya_event;

/* A command of a stream, in the sense of the CUDA programming guide: a kernel, copy, collective, event record, ... */
typedef struct maya_command {
    void (*run)(void *argument); /* the effect on memory; may be NULL */
    /* Instead of run, for an asynchronous command: starts it without waiting. The stream is blocked until
     * maya_command_done(stream) is called, from any thread, possibly before start returns. */
    void (*start)(void *argument, maya_stream *stream);
    void (*release)(void *argument); /* frees the argument after its last run; may be NULL */
    /* For a captured command that differs from one graph launch to the next: called at each launch, in the launching thread.
     * Puts this launch's argument, its release and its value into a copy of the command. */
    void (*renew)(struct maya_command *command);
    void *argument;
    maya_record_kind kind;
    uint32_t signature;
    uint64_t value;
    uint8_t flags;
    bool on_host_thread; /* run is the user's own function: never in the calling thread */
    bool unrecorded;     /* leaves no record (the effect of something already recorded) */
    void **ticket;       /* for a posted COLLECTIVE: receives the clock's ticket */
} maya_command;

/* Take over `command` (its argument is released in every case). 0 or a cudaError_t. */
MAYA_API int maya_submit(void *stream, const maya_command *command);
/* The asynchronous command at the head of `stream` is complete, and the stream continues. Releases its argument. */
MAYA_API void maya_command_done(maya_stream *stream);
/* The same, `ns` of real time later. */
MAYA_API void maya_command_done_after(maya_stream *stream, uint64_t ns);
/* library_call.c: a call of a library that occupies the device. `format` makes its signature: one JSON object, whose first key
 * is "call", e.g. {"call":"cublasGemmEx","m":4096,...}. Returns 0 or a cudaError_t. */
MAYA_API int maya_library_call(void *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* true while work submitted to `stream` is captured into a graph. */
MAYA_API bool maya_stream_is_capturing(void *stream);
/* The stream's number in the trace. */
MAYA_API uint32_t maya_stream_number(void *stream);
MAYA_API int maya_stream_synchronize(void *stream);
MAYA_API int maya_current_device(void);

/* ---- coordinator_client.c; its other functions are declared in coordinator_client.h ---- */

/* Counts one optimizer step. The client reports the count to the coordinator from time to time. */
MAYA_API void maya_count_step(void);

/* ---- memory.c ---- */

/* Device memory of `device`; 0, or cudaErrorMemoryAllocation (2) when its capacity is exceeded. */
MAYA_API int maya_device_malloc(int device, size_t size, void **address);
MAYA_API int maya_device_free(void *address);
/* The device an address belongs to, or -1 for host memory. */
MAYA_API int maya_address_device(const void *address);
MAYA_API void maya_memory_info(int device, size_t *free_bytes, size_t *total_bytes);
/* Memory that a process holds on a device of the node; `device` counts without CUDA_VISIBLE_DEVICES. */
typedef struct {
    int process, device;
    uint64_t bytes;
} maya_memory_use;
/* Memory of this process and, unless it is a rank, of the node's ranks (node_memory.c). Returns how many entries there are. */
MAYA_API int maya_node_memory(maya_memory_use *uses, int capacity);
/* Whether this process is a rank that answers questions (stacks.c). */
MAYA_API bool maya_is_rank(void);

/* ---- values.c, contents.c: which bytes of device memory are known ----
 * Known bytes came from the host or were really computed. All others are placeholders and read as zero, unless a tiny op was
 * computed from placeholders. */

/* Kinds of contents. If there is no room for all large contents, floating-point ones are given up first. */
typedef enum {
    MAYA_CONTENT_FLOATING,
    MAYA_CONTENT_OTHER,  /* integers, or unknown */
    MAYA_CONTENT_OBJECT, /* a uint8 vector: how torch sends pickled objects */
    MAYA_CONTENTS,
} maya_content;

/* Large contents are not given up while any thread is between these two calls. A thread must be there while it computes from
 * known bytes, or writes bytes and then marks them as known. Held for a short time, by any number of threads. */
MAYA_API void maya_values_hold(void);
MAYA_API void maya_values_release(void);
MAYA_API void maya_values_known(const void *address, size_t size); /* just written for real */
MAYA_API void maya_values_set_placeholder(const void *address,
                                          size_t size); /* the result of an op that was not computed: zeros */
MAYA_API bool maya_values_are_known(const void *address, size_t size);
/* Writes the known parts of a range into `offsets`: start, end, start, end, ..., at most `room` numbers. Returns how many
 * numbers it wrote. If there is no room for all parts, the largest are written. */
MAYA_API size_t maya_values_known_parts(const void *address, size_t size, int64_t *offsets, size_t room);
/* Writes contents received from another rank: its known parts, as above, and their bytes, one part after the other. The rest
 * becomes placeholders. false: there was no room for all parts. */
MAYA_API bool maya_values_receive(void *address, size_t size, const void *bytes, const int64_t *parts, size_t count,
                                  maya_content content);
/* Some of these bytes may differ from zero. */
MAYA_API bool maya_values_are_dirty(const void *address, size_t size);
/* Whether some of these bytes were copied from a uint8 tensor on the host (how torch sends pickled objects), and whether any of
 * those were not kept. */
typedef enum { MAYA_NO_OBJECT, MAYA_OBJECT, MAYA_LOST_OBJECT } maya_object;
MAYA_API maya_object maya_values_find_object(const void *address, size_t size);
/* Copy between any two addresses, device or host: known bytes stay known, placeholders stay placeholders. */
MAYA_API void maya_values_copy(void *destination, const void *source, size_t size);

#ifdef __cplusplus
}
#endif
