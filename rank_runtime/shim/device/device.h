/* The virtual GPU, as the fake CUDA libraries see it.
 *
 * Every library emulated (cudart.c, cuda.c, cublas.c, ...) is a thin translation of its own interface into the calls
 * declared here; all state lives behind them, in libmaya_device.so, once per process.
 *
 * Rules for code in this folder, because it runs inside somebody else's program:
 *   - no CUDA toolkit or NVIDIA header; layouts and constants are written down where they are used;
 *   - nothing happens when a library is merely loaded: the preload reaches ptxas, gcc and every other child, too;
 *   - host calls return at once: only the synchronize and query functions may wait or look;
 *   - a call that is not emulated goes through maya_unsupported() and returns its library's "not supported";
 *   - nothing is printed except through maya_message(), which names the rank;
 *   - a device address is a host address (contract 2 of the design), so bytes can be read and written directly.
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

/* ---- settings.c: what the launcher asked for, read once from MAYA_* variables ---- */

typedef struct {
    int rank;
    int node_devices; /* devices of the node */
    maya_device_properties device;
    maya_compute_choice compute;
    int64_t compute_bytes;    /* an op is small when its tensors together are no larger */
    int64_t small_bytes;      /* contents up to this size are always kept and carried, whatever the limits below say: all that
                               * an op could be computed from, and at least 64 KiB */
    int64_t copy_bytes;       /* a copy keeps its bytes up to this size ... */
    int64_t kept_bytes;       /* ... and while no more than this is kept of large contents in all */
    int64_t collective_bytes; /* a collective carries the contents of buffers up to this size */
    int64_t object_bytes;     /* uint8 tensors (pickled objects) keep and carry theirs up to this size */
    char coordinator[256];    /* where the ranks meet; empty: there are no others */
    char coordinator_secret[256];
    char zmq_path[4096]; /* the ZeroMQ library */
    bool observe_all;    /* also ops that cannot launch anything are announced to observers (torch.profiler) */
    bool strict_values;  /* reading a made-up value is an error */
    int world_size;      /* 0: not said */
    int ranks_per_node;
    bool virtual_clock;       /* the program is shown the time that its cluster would have (virtual_clock.h) ... */
    maya_clock_costs costs;   /* ... whose host takes this long */
    bool measure_host;        /* the trace says what the program took on the processor (host_time.h) */
    bool bare;                /* benchmark baseline: every call succeeds, nothing is recorded or computed */
    char trace_path[4096];    /* empty: no trace */
    char observer_path[4096]; /* libmaya_observer.so; empty: ops are not observed */
    int64_t schedule_seed;    /* by which the order of events is another one (schedule.h); -1: none */
    int debug;                /* MAYA_DEBUG: 1 says which ops could not be computed, and why */
} maya_settings;

MAYA_API extern const maya_settings *maya_known_settings; /* NULL: they have not been read yet */
MAYA_API const maya_settings *maya_read_settings(void);

/* Asked several times per op. */
static inline const maya_settings *maya_get_settings(void) {
    const maya_settings *known = __atomic_load_n(&maya_known_settings, __ATOMIC_ACQUIRE);
    return known ? known : maya_read_settings();
}

/* ---- visible.c: the node's devices that the program sees ---- */

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
/* Says once per process that `function` is not emulated; the caller returns its library's "not supported". */
MAYA_API void maya_unsupported(const char *function);
/* The same, with what exactly is not emulated: maya_unsupported_detail("cudnnBackendFinalize", "operation %d", 9). */
MAYA_API void maya_unsupported_detail(const char *function, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- recorder.c: the trace of this rank ----
 * rank_runtime/trace_format.py declares the kinds of records (MAYA_RECORD_...) and their flags (MAYA_FLAG_...). */

/* Number of an interned text (JSON for signatures); the same text always gives the same number. */
MAYA_API uint32_t maya_intern(const char *text, size_t length);
/* Append one record with the calling thread's current op. */
MAYA_API void maya_record(maya_record_kind kind, uint32_t stream_number, uint32_t signature, uint64_t value, uint8_t flags);
/* Nanoseconds since this process's trace began. */
MAYA_API uint64_t maya_now_ns(void);

enum { MAYA_RECENT_BLOCKS = 32 };

/* What the op observer and the recorder share about one host thread. */
typedef struct {
    uint32_t number;        /* 1, 2, ... in the order in which threads first touched the device */
    uint32_t current_op;    /* the innermost ATen op running on this thread; 0: none */
    uint32_t ops_uncounted; /* ops begun on this thread since its last record; goes into the next record's `ops` column */
    uint32_t device_work;   /* kernels and library calls so far on this thread: how an op knows that it launched */
    void *work_stream;      /* the stream of the last of them */
    bool waits_unrecorded;  /* synchronising leaves no record: the program did not ask for it */
    bool debugs;            /* runs a debugger, which must not wait for what never comes */
    void *observer;         /* what the op observer keeps about the thread */
    bool is_recorded;       /* the trace has its name */
    uint32_t op_signature;  /* of the op around the launch that is being recorded, for the clock; 0: none */
    uint8_t collective;     /* of the COLLECTIVE that is being recorded: maya_clock_collective */
    void *ticket;           /* out: by which the clock knows it */
    uint32_t clock_group;   /* whose host cursor it has, plus 1; 0: not decided */
    uint32_t clock_reads;   /* since its last record */
    uint64_t delay_ns;      /* what it slept, and spent reading the clock, since its last record */
    const void *queried;    /* the event or stream that it asks for again and again ... */
    uint32_t queries;       /* ... how often since its last record ... */
    uint32_t all_queries;   /* ... and how often for any */
    void *ops_in_parts;     /* what launch_part.c keeps about ops that take several launches */
    uint32_t blocks;        /* blocks that PyTorch's allocator has handed out to this thread, and the last of them: */
    struct {
        void *address;
        size_t size;
    } recent_blocks[MAYA_RECENT_BLOCKS]; /* number n (from 0) at n % MAYA_RECENT_BLOCKS */
} maya_thread;

MAYA_API maya_thread *maya_this_thread(void);
/* A new op number (1, 2, ...), unique in this process. */
MAYA_API uint32_t maya_next_op(void);
/* Record an op that ended: OP or ANNOTATION. sequence: autograd's number, UINT32_MAX for none. */
MAYA_API void maya_record_op(maya_record_kind kind, uint32_t op, uint32_t parent, uint32_t signature, uint64_t start_ns,
                             uint64_t duration_ns, uint32_t sequence);
/* Number of the signature of the op that the calling thread is in; set by the op observer, for the virtual clock. */
typedef uint32_t (*maya_op_signer)(void);
MAYA_API void maya_set_op_signer(maya_op_signer signer);
/* Write what is buffered, as at exit. */
MAYA_API void maya_record_flush(void);

/* ---- stream.c: streams, events and the order in which work happens ----
 *
 * Handles are what the CUDA API passes: NULL or 1 is the legacy default stream of the current device, 2 the per-thread
 * one, anything else a pointer made by maya_stream_create. Work runs at once, in the calling thread, when nothing stands
 * before it; otherwise it queues and a worker thread runs it when its turn comes. While a stream is captured, work goes
 * into the graph instead and runs at every launch of that graph. */

typedef struct maya_stream maya_stream;
typedef struct maya_event maya_event;

typedef struct maya_work {
    void (*run)(void *argument); /* what happens to memory; may be NULL */
    /* Instead of run, for asynchronous work: starts it, without waiting for anything. The stream stands still until
     * maya_work_done(stream), from any thread, also before start returns. */
    void (*start)(void *argument, maya_stream *stream);
    void (*release)(void *argument); /* frees the argument after its last run; may be NULL */
    /* For work that is not the same at every launch of a graph that has captured it: called at each, in the launching
     * thread; puts the argument, its release and the value of this launch into a copy of the work. */
    void (*renew)(struct maya_work *work);
    void *argument;
    maya_record_kind kind;
    uint32_t signature;
    uint64_t value;
    uint8_t flags;
    bool on_host_thread; /* run is the user's own function: never in the calling thread */
    bool unrecorded;     /* leaves no record (the effect of something already recorded) */
    void **ticket;       /* of a COLLECTIVE that is posted: where to put the clock's ticket for it */
} maya_work;

/* Take over `work` (its argument is released in every case). 0 or a cudaError_t. */
MAYA_API int maya_submit(void *stream, const maya_work *work);
/* The asynchronous work that `stream` stands at is complete: it goes on. Releases the work's argument. */
MAYA_API void maya_work_done(maya_stream *stream);
/* The same, so many ns of real time later. */
MAYA_API void maya_work_done_after(maya_stream *stream, uint64_t ns);
/* library_call.c: a call of a library that occupies the device. `format` makes its signature: one JSON object, whose first key
 * is "call", e.g. {"call":"cublasGemmEx","m":4096,...}. Returns 0 or a cudaError_t. */
MAYA_API int maya_library_call(void *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* true while work submitted to `stream` is captured into a graph instead of done. */
MAYA_API bool maya_stream_is_capturing(void *stream);
/* The number by which the trace knows a stream. */
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

/* ---- values.c, contents.c: which bytes of device memory are known ----
 * Known bytes came from the host or were really computed. All others are made up and read as zero, unless a tiny op was
 * computed from made-up inputs. */

/* The kind of what is written: where there is no room for all large contents, floating-point ones are given up first. */
typedef enum {
    MAYA_CONTENT_FLOATING,
    MAYA_CONTENT_OTHER,  /* integers, or nobody said what */
    MAYA_CONTENT_OBJECT, /* a uint8 vector: how torch sends pickled objects */
    MAYA_CONTENTS,
} maya_content;

/* Large contents are given up only while nobody is between these two. Who computes from known bytes, or writes bytes and then
 * says that they are known, is. Held for a short time, by any number of threads. */
MAYA_API void maya_values_hold(void);
MAYA_API void maya_values_release(void);
MAYA_API void maya_values_known(const void *address, size_t size);           /* just written for real */
MAYA_API void maya_values_set_placeholder(const void *address, size_t size); /* overwritten by something not computed: zeroed */
MAYA_API bool maya_values_are_known(const void *address, size_t size);
/* Which of these bytes are known, as offsets: start, end, start, end, ... into `offsets`, which has room for that many
 * numbers; the number of numbers. Where there is no room for all parts, these are the largest. */
MAYA_API size_t maya_values_known_parts(const void *address, size_t size, int64_t *offsets, size_t room);
/* What these bytes hold came from elsewhere: the parts that are known there, as above, and their bytes, one part after the
 * other. The rest is made up. false: there was not room for all of them. */
MAYA_API bool maya_values_receive(void *address, size_t size, const void *bytes, const int64_t *parts, size_t count,
                                  maya_content content);
/* Some of these bytes may differ from zero. */
MAYA_API bool maya_values_are_dirty(const void *address, size_t size);
/* Some of these bytes were copied from a uint8 vector on the host, as objects are before they travel; and whether any of those
 * were not kept. */
typedef enum { MAYA_NO_OBJECT, MAYA_OBJECT, MAYA_LOST_OBJECT } maya_object;
MAYA_API maya_object maya_values_find_object(const void *address, size_t size);
/* Copy between any two addresses, device or host: known bytes stay known, made-up ones stay made up. */
MAYA_API void maya_values_copy(void *destination, const void *source, size_t size);

#ifdef __cplusplus
}
#endif
