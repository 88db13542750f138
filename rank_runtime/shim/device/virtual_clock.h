/* The virtual clock: the time on this rank's cluster, computed while the program runs.
 *
 * In: the records of the trace, in order; from the coordinator, the durations of kernels and copies, and when collectives start
 * and end. Out: the host's time for the program's own clocks, the times of events, and when the rank arrives at its
 * collectives. All times are ns since the rank began.
 *
 * The same rules exist twice: here, and in Python in the replay of a finished run, which sees only the trace. docs/timeline.md
 * specifies both; a change must be made there, here and in the replay, and tests/jobs/test_virtual_clock.py compares
 * the two. The result must therefore depend on nothing but the inputs above.
 *
 * virtual_clock.c     host threads: their cursors, synchronizations and queries
 * clock_streams.c     streams: queued work, and the time up to which each is simulated
 * clock_futures.c     futures: times that may not be known yet; events
 * clock_unsynced.c      collectives of which the host does not know yet that they are over
 * clock_durations.c   durations of kernels and copies: known ones, and questions to the coordinator
 *
 * The recorder's lock guards all state: the clock processes a record when it is written. No thread waits for the coordinator
 * with the lock held. */
#pragma once

#include "device.h"

/* A thread that waits for the device. */
typedef struct maya_clock_wait maya_clock_wait;
/* A collective that has been recorded and is going to be posted. */
typedef struct maya_ticket maya_ticket;

/* maya_thread.collective: which kind of COLLECTIVE record the thread writes. */
typedef enum {
    MAYA_COLLECTIVE_NONE,   /* the init of a communicator */
    MAYA_COLLECTIVE_LOCAL,  /* on a communicator of one rank: its duration is asked for */
    MAYA_COLLECTIVE_POSTED, /* it is going to be posted; maya_thread.ticket receives the ticket */
} maya_clock_collective;

/* ---- recorder.c ---- */

/* The process begins to record: the clock runs from now on if the settings say so. */
void maya_clock_begin(void);
/* Whether the first thread waits while the calling one, which is `thread`, works for it (autograd's threads). */
bool maya_clock_shares_first_cursor(const maya_thread *thread);
/* After a record, without the lock: sends questions if there are enough of them, and holds back a thread that is far ahead of
 * the known times. */
void maya_clock_after_record(void);

/* ---- stream.c ---- */

bool maya_clock_runs(void);
/* `home` is the default stream of its device; a stream that is its own home is one. */
void maya_clock_stream_created(uint32_t stream, bool blocking, uint32_t home);
typedef enum { MAYA_WAIT_STREAM, MAYA_WAIT_EVENT, MAYA_WAIT_DEVICE } maya_wait_kind;
/* Begins the wait of the SYNCHRONIZE that was just recorded; the lock is held. NULL: its end is known already. Otherwise the
 * thread first waits until the work is done, and then calls maya_clock_end_wait, which waits until the times are known.
 * `number` is that of the stream, the event, or the device's default stream. */
maya_clock_wait *maya_clock_begin_wait(maya_wait_kind kind, uint32_t number);
void maya_clock_end_wait(maya_clock_wait *wait);
/* Whether the calling thread's queries of events and streams are answered by virtual time. Other threads see real progress. */
bool maya_clock_is_seen(void);
/* Whether it is past by the calling thread's clock, and the host has synchronized with all collectives before it. */
bool maya_clock_event_is_past(uint32_t event);
bool maya_clock_stream_is_past(uint32_t stream);
/* true if the thread polls one or several events or streams in turn without doing anything else. */
bool maya_clock_is_polling(const void *asked_for);
void maya_clock_forget_event(uint32_t event);
/* The time between two completed events; false: the clock does not know them. */
bool maya_clock_elapsed(uint32_t start, uint32_t end, int64_t *ns);

/* ---- watchdogs.c ---- */

/* Whether torch's watchdogs have polled since the end of all collectives before it. */
bool maya_clock_event_is_noticed(uint32_t event);
/* true if the calling thread's clock has passed a multiple of the interval since the last call and a poll of the watchdogs
 * would find something new. They are told it from now on. */
bool maya_clock_passes(uint64_t interval_ns);
/* When the rank last recorded something or a collective last ended, in real time (maya_now_ns). */
uint64_t maya_clock_last_news_ns(void);

/* ---- nccl_post.c ---- */

/* Calls then(argument, ns) with the time at which the rank arrives at the collective: now, or once it is known. */
MAYA_API void maya_clock_when_arrived(maya_ticket *ticket, void (*then)(void *argument, uint64_t ns), void *argument);
/* The collective is complete, or never will be. Frees the ticket. Not with nccl_lock held. */
MAYA_API void maya_clock_ended(maya_ticket *ticket, uint64_t started_ns, uint64_t ended_ns);
MAYA_API void maya_clock_dropped(maya_ticket *ticket);

/* ---- coordinator_client.c ---- */

void maya_clock_times(const int64_t *numbers, const int64_t *ns, size_t count);
/* No further answers will come: unknown durations become 0. */
void maya_clock_lost(void);
/* The host's time, for the coordinator. */
uint64_t maya_clock_rank_ns(void);
/* The same at the end of the process, including the calling thread's unrecorded delay. */
uint64_t maya_clock_last_ns(void);

/* ---- for Python ---- */

MAYA_API int maya_clock_is_virtual(void);
/* The calling thread's time. Reading the clock also takes virtual time. */
MAYA_API uint64_t maya_clock_host_ns(void);
/* The calling thread has slept. */
MAYA_API void maya_clock_delay(uint64_t ns);
