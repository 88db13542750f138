/* Another order of events (--schedule-seed): delays in real time at points where the order between threads, streams and ranks
 * is nobody's promise.
 *
 * In: MAYA_SCHEDULE_SEED, and what is about to happen. Out: how long it waits. The seed, the rank and what it is decide, and
 * nothing else: no clock, and no counter that depends on who came first. Virtual time does not know of it. Most things do not
 * wait; the others wait for so long (tenths of a second) that whatever they race with has come first, on a busy machine, too.
 */
#pragma once

#include "device.h"

typedef enum {
    MAYA_RANK_BEGINS = 1,
    MAYA_CALL_BEGINS, /* the host makes a call of NCCL */
    MAYA_CALL_ENDS,   /* its stream goes on */
    MAYA_HOST_FUNCTION_BEGINS,
} maya_scheduled;

/* ns that it waits, `which` of its kind; 0 without a seed. */
MAYA_API uint64_t maya_schedule_ns(maya_scheduled what, uint64_t which);
/* The calling thread sleeps, in real time. */
MAYA_API void maya_sleep_ns(uint64_t ns);
/* Mixes another number into what tells one thing from another of its kind. */
MAYA_API uint64_t maya_schedule_mix(uint64_t which, uint64_t number);
