/* What the files of the virtual clock share (virtual_clock.h). Everything here is called with the recorder's lock held. */
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
    void (*then)(void *argument, uint64_t ns); /* NULL, or who is told ... */
    void *argument;
    struct clock_future *next_due; /* ... when the lock is let go */
} clock_future;

/* A time of the host: `ns` after the end of a wait, if there is one that has not ended. */
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
    uint64_t reached;                    /* what the thread waits for, as far as that is known ... */
    MAYA_VECTOR(clock_future *) pending; /* ... and what is not */
    struct clock_unsynced *unsynced;     /* what the thread has seen the end of then */
};

void clock_release_wait(maya_clock_wait *wait);
/* true if the time is known; then it is absolute. */
bool clock_is_known(clock_host_time *time);

/* How long something takes. */
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
/* Without the lock: are there enough questions to be asked? */
bool clock_has_questions(void);
/* Without the lock: asks what nobody has asked yet. */
void clock_ask(void);

/* ---- clock_unsynced.c ---- */

/* Collectives with other ranks whose end the host has not seen, as far as they come before something. NULL: none. */
typedef struct clock_unsynced clock_unsynced;
void clock_unsynced_begin(void);
clock_unsynced *clock_unsynced_keep(clock_unsynced *set);
void clock_unsynced_release(clock_unsynced *set);
/* What follows comes after the stream's first so many collectives, too, or after others. */
void clock_unsynced_add(clock_unsynced **set, uint32_t stream, uint64_t collectives);
void clock_unsynced_join(clock_unsynced **set, clock_unsynced *others);
bool clock_host_has_synced(const clock_unsynced *set);
void clock_host_syncs(const clock_unsynced *set);
bool clock_watchdogs_have_polled(const clock_unsynced *set);
/* What the host has seen so far. false: they have seen it already. */
bool clock_watchdogs_poll(void);

/* ---- clock_futures.c ---- */

/* An event that has been recorded. */
typedef struct {
    uint32_t number, stream; /* the stream on which it was recorded last ... */
    uint64_t collectives;    /* ... which had been given so many */
    clock_unsynced *unsynced;
    clock_future *future;
} clock_event;

void clock_futures_begin(void);
/* One reference is the caller's. */
clock_future *clock_new_future(void);
clock_future *clock_keep(clock_future *future);
void clock_release(clock_future *future);
void clock_set(clock_future *future, uint64_t ns);
/* Those to be told that `then` came true. The caller lets the lock go and calls clock_tell with them. */
clock_future *clock_take_due(void);
/* Without the lock. */
void clock_tell(clock_future *due);
/* NULL: it has not been recorded. Valid until the next one is made or forgotten. */
clock_event *clock_find_event(uint32_t number);
clock_event *clock_make_event(uint32_t number);
void clock_forget_event(uint32_t number);
/* Of the event's last record; NULL: there is none. No reference. */
clock_future *clock_event_future(uint32_t number);

/* ---- clock_streams.c ---- */

struct maya_ticket {
    clock_future *arrival;
    bool is_over;
    uint64_t started, ended;
};

extern _Atomic size_t clock_queued; /* entries in all streams that stand still */
void clock_streams_begin(void);
void clock_stream_created(uint32_t stream, bool blocking, uint32_t home);
/* `counts`: it takes longer beside a collective. */
void clock_add_work(uint32_t stream, clock_host_time ready, const clock_duration *duration, bool counts);
void clock_add_event(uint32_t stream, clock_host_time ready, uint32_t event);
void clock_add_wait(uint32_t stream, uint32_t event);
/* `duration` NULL: it is posted, and the ticket is returned. */
maya_ticket *clock_add_collective(uint32_t stream, clock_host_time ready, bool grouped, const clock_duration *duration);

/* What comes before the end of that. No reference. */
clock_unsynced *clock_stream_unsynced(uint32_t stream);
/* When the stream has done what it was given so far. NULL: *ns is the time; otherwise the caller has a reference. */
clock_future *clock_stream_future(uint32_t stream, uint64_t *ns);
uint32_t clock_stream_count(void);
bool clock_stream_is_blocking(uint32_t stream);
/* The default stream of its device. */
uint32_t clock_home_of(uint32_t stream);

/* Works out what has become possible to work out. */
void clock_advance(void);
