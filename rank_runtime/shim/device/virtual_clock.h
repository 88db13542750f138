/* The virtual clock: what time it would be for this rank on its cluster, while the program runs.
 *
 * In: the records of the trace, in their order; from the coordinator, how long work takes and when collectives start and end.
 * Out: the host's time for the program's own clocks, the times of events, and when the rank comes to its collectives. What is
 * computed depends on nothing else, so that maya/replay, which has the trace, computes the same (docs/timeline.md says
 * what). All times are ns since the rank began.
 *
 * virtual_clock.c     host threads: their cursors, and when they wait or ask
 * clock_streams.c     what is in the streams, and how far the time of each has been worked out
 * clock_futures.c     times that may not be known yet, and events
 * clock_unsynced.c      collectives of which the host does not know yet that they are over
 * clock_durations.c   how long work takes: what is known, and questions to the coordinator
 *
 * All state is guarded by the recorder's lock: the clock is told of a record when that is written. Nobody waits for the
 * coordinator with the lock held. */
#pragma once

#include "device.h"

/* A thread that waits for the device. */
typedef struct maya_clock_wait maya_clock_wait;
/* A collective whose record has been written, and that is going to be posted. */
typedef struct maya_ticket maya_ticket;

/* What maya_thread.collective says of the COLLECTIVE record that a thread writes. */
typedef enum {
    MAYA_COLLECTIVE_NONE,   /* it is the birth of a communicator */
    MAYA_COLLECTIVE_LOCAL,  /* it concerns this rank alone: how long it takes is asked for */
    MAYA_COLLECTIVE_POSTED, /* it is going to be posted; the thread finds the ticket in maya_thread.ticket */
} maya_clock_collective;

/* ---- recorder.c ---- */

/* The process begins to record: the clock runs from now on if the settings say so. */
void maya_clock_begin(void);
/* Does the first thread wait while the calling one, whose `thread` is, goes on for it? */
bool maya_clock_shares_first_cursor(const maya_thread *thread);
/* After a record, without the lock: questions go out when there are enough of them, and a thread that is far ahead of what is
 * known is held back for a while. */
void maya_clock_after_record(void);

/* ---- stream.c ---- */

bool maya_clock_runs(void);
/* `home` is the default stream of its device; a stream that is its own home is one. */
void maya_clock_stream_created(uint32_t stream, bool blocking, uint32_t home);
typedef enum { MAYA_WAIT_STREAM, MAYA_WAIT_EVENT, MAYA_WAIT_DEVICE } maya_wait_kind;
/* Of the SYNCHRONIZE that was just recorded; the lock is held. NULL: the thread has its time. Otherwise it waits until the
 * device has done the work, and then until its times are known. `number` is that of the stream, the event, or the
 * device's default stream. */
maya_clock_wait *maya_clock_begin_wait(maya_wait_kind kind, uint32_t number);
void maya_clock_end_wait(maya_clock_wait *wait);
/* Does the calling thread see virtual time when it asks for events and streams? Others see what is done. */
bool maya_clock_is_seen(void);
/* Is it past by the clock of the calling thread, and has the host seen the end of all collectives before it? */
bool maya_clock_event_is_past(uint32_t event);
bool maya_clock_stream_is_past(uint32_t stream);
/* true if the thread asks for one thing, or several, again and again without anything in between. */
bool maya_clock_is_polling(const void *asked_for);
void maya_clock_forget_event(uint32_t event);
/* Between two events that are done; false: the clock does not know them. */
bool maya_clock_elapsed(uint32_t start, uint32_t end, int64_t *ns);

/* ---- watchdogs.c ---- */

/* Have torch's watchdogs seen the end of all collectives before it? */
bool maya_clock_event_is_noticed(uint32_t event);
/* The calling thread's clock has passed a multiple of the interval since the last call, and from now on the watchdogs see more.
 */
bool maya_clock_passes(uint64_t interval_ns);
/* When the rank recorded something or a collective ended last, by the time of this machine (maya_now_ns). */
uint64_t maya_clock_last_news_ns(void);

/* ---- nccl_post.c ---- */

/* Calls then(argument, ns) with the time when the rank comes to the collective: at once, or when it is known. */
MAYA_API void maya_clock_when_arrived(maya_ticket *ticket, void (*then)(void *argument, uint64_t ns), void *argument);
/* It is complete, or will never be; then the ticket is gone. Not with nccl_lock held. */
MAYA_API void maya_clock_ended(maya_ticket *ticket, uint64_t started_ns, uint64_t ended_ns);
MAYA_API void maya_clock_dropped(maya_ticket *ticket);

/* ---- coordinator_client.c ---- */

void maya_clock_times(const int64_t *numbers, const int64_t *ns, size_t count);
/* No answers will come any more: what is not known takes no time. */
void maya_clock_lost(void);
/* The host's time, for the coordinator. */
uint64_t maya_clock_rank_ns(void);
/* The same when the process ends: with what the calling thread has not recorded yet. */
uint64_t maya_clock_last_ns(void);

/* ---- for Python ---- */

MAYA_API int maya_clock_is_virtual(void);
/* The calling thread's time; reading it takes time, too. */
MAYA_API uint64_t maya_clock_host_ns(void);
/* The calling thread has slept. */
MAYA_API void maya_clock_delay(uint64_t ns);
