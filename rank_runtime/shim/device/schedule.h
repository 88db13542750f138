/* Perturbs the order of events (--schedule-seed) by delays in real time, at points where CUDA and NCCL guarantee no order
 * between threads, streams and ranks.
 *
 * In: MAYA_SCHEDULE_SEED, and the event that is about to happen. Out: its delay. The delay depends only on the seed, the rank
 * and the event, never on a clock or on the order of threads. Virtual time is not affected. Most events are not delayed; the
 * others are delayed so long (tenths of a second) that all events they race with come first, even on a busy machine. */
#pragma once

#include "device.h"

typedef enum {
    MAYA_RANK_BEGINS = 1,
    MAYA_CALL_BEGINS, /* the host makes a call of NCCL */
    MAYA_CALL_ENDS,   /* its stream goes on */
    MAYA_HOST_FUNCTION_BEGINS,
} maya_scheduled;

/* The delay in ns of event number `which` of its kind; 0 without a seed. */
MAYA_API uint64_t maya_schedule_ns(maya_scheduled what, uint64_t which);
/* The calling thread sleeps, in real time. */
MAYA_API void maya_sleep_ns(uint64_t ns);
/* Mixes another number into the number of an event. */
MAYA_API uint64_t maya_schedule_mix(uint64_t which, uint64_t number);
