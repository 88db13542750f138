/* Declarations shared by the files of the virtual clock (virtual_clock.h). Call these with the recorder's lock held. */
#pragma once

#include "internal.h"
#include "process.h"
#include "recorder.h"
#include "vector.h"
#include "virtual_clock.h"

/* A time that may not be known yet. */
typedef struct clock_future {
    uint64_t ns;
    uint32_t references;
    bool known;
    void (*then)(void *argument, uint64_t ns); /* NULL, or called once the time is known ... */
    void *argument;
    struct clock_future *next_due; /* ... after the lock is released */
} clock_future;

/* A time of the host: absolute, or relative to the end of a wait that is still unknown. */
typedef struct {
    maya_clock_wait *after;
    uint64_t ns;
} clock_host_time;

struct maya_clock_wait {
    uint32_t references;
    bool known;
    uint64_t ns; /* when it ended */
    uint32_t group;
    clock_host_time before;              /* when it began */
    uint64_t reached;                    /* the latest known time that the thread waits for ... */
    MAYA_VECTOR(clock_future *) pending; /* ... and the times that are not known yet */
    struct clock_unsynced *unsynced;     /* the collectives that the thread has synchronized with afterwards */
};

void clock_release_wait(maya_clock_wait *wait);
/* true if the time is known; then it is absolute. */
bool clock_is_known(clock_host_time *time);

/* The duration of a kernel, copy or local collective. */
typedef struct {
    uint64_t ns, size;
    uint32_t signature, op;
    uint8_t kind;
    bool known;
} clock_duration;

/* ---- clock_durations.c ---- */

extern const clock_duration clock_nothing; /* takes no time */
const clock_duration *clock_duration_of(maya_thread *thread, const maya_trace_record *record);
void clock_durations_begin(void);
void clock_set_durations(const int64_t *numbers, const int64_t *ns, size_t count);
void clock_durations_lost(void);
/* Without the lock: whether there are enough questions to send. */
bool clock_has_questions(void);
/* Without the lock: sends all questions that have not been sent yet. */
void clock_ask(void);

/* ---- virtual_clock.c ---- */

/* Without the lock: waits until all these durations are known, and adds them up. */
uint64_t clock_sum(const clock_duration *const *durations, size_t count);

/* ---- clock_unsynced.c ---- */

/* The collectives with other ranks that precede a point in a stream and that the host has not synchronized with. NULL: none. */
typedef struct clock_unsynced clock_unsynced;
void clock_unsynced_begin(void);
clock_unsynced *clock_unsynced_keep(clock_unsynced *set);
void clock_unsynced_release(clock_unsynced *set);
/* Orders later work after the first `collectives` collectives of `stream`, or after a set of others. */
void clock_unsynced_add(clock_unsynced **set, uint32_t stream, uint64_t collectives);
void clock_unsynced_join(clock_unsynced **set, clock_unsynced *others);
bool clock_host_has_synced(const clock_unsynced *set);
void clock_host_syncs(const clock_unsynced *set);
bool clock_watchdogs_have_polled(const clock_unsynced *set);
/* Shows the watchdogs every collective that the host has synchronized with. false: nothing is new to them. */
bool clock_watchdogs_poll(void);

/* ---- clock_futures.c ---- */

/* An event that has been recorded. */
typedef struct {
    uint32_t number, stream; /* the stream on which it was recorded last ... */
    uint64_t collectives;    /* ... and how many collectives that stream had then */
    clock_unsynced *unsynced;
    clock_future *future;
} clock_event;

void clock_futures_begin(void);
/* The caller owns one reference. */
clock_future *clock_new_future(void);
clock_future *clock_keep(clock_future *future);
void clock_release(clock_future *future);
void clock_set(clock_future *future, uint64_t ns);
/* Futures with a `then` whose time became known. The caller releases the lock and calls clock_tell with them. */
clock_future *clock_take_due(void);
/* Without the lock. */
void clock_tell(clock_future *due);
/* NULL: it has not been recorded. Valid until the next one is made or forgotten. */
clock_event *clock_find_event(uint32_t number);
clock_event *clock_make_event(uint32_t number);
void clock_forget_event(uint32_t number);
/* The time of the event's last record, without a reference; NULL: it has not been recorded. */
clock_future *clock_event_future(uint32_t number);

/* ---- clock_streams.c ---- */

struct maya_ticket {
    clock_future *arrival;
    bool is_over;
    uint64_t started, ended;
};

extern _Atomic size_t clock_queued; /* entries in the queues of all streams */
void clock_streams_begin(void);
void clock_stream_created(uint32_t stream, bool blocking, uint32_t home);
/* `counts`: it slows down while a collective runs beside it. */
void clock_add_work(uint32_t stream, clock_host_time ready, const clock_duration *duration, bool counts);
void clock_add_event(uint32_t stream, clock_host_time ready, uint32_t event);
void clock_add_wait(uint32_t stream, uint32_t event);
/* `duration` NULL: it will be posted, and the ticket is returned. */
maya_ticket *clock_add_collective(uint32_t stream, clock_host_time ready, bool grouped, const clock_duration *duration);

/* The unsynchronized collectives before the end of the stream, without a reference. */
clock_unsynced *clock_stream_unsynced(uint32_t stream);
/* The end of the stream's work so far. NULL: it is known, in *ns; otherwise the caller owns a reference. */
clock_future *clock_stream_future(uint32_t stream, uint64_t *ns);
uint32_t clock_stream_count(void);
bool clock_stream_is_blocking(uint32_t stream);
/* The default stream of its device. */
uint32_t clock_home_of(uint32_t stream);

/* Advances all streams as far as the known times allow. */
void clock_advance(void);
