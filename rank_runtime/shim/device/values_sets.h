/* What values.c and contents.c note about device memory: sets of ranges. The lock is held around all of it. */
#pragma once

#include "intervals.h"

#include <pthread.h>

extern maya_intervals maya_known; /* written by the host or by a computation that was really done on known inputs */
extern maya_intervals maya_dirty; /* may differ from zero: known, or what tiny ops computed from made-up inputs */
extern maya_intervals
    maya_objects; /* copied from a uint8 vector on the host, kept or not; sending one that is not is an error */
extern maya_intervals
    maya_given_up; /* contents that the program wrote and that are not kept; for reports of placeholder reads */

/* Taken to write by who gives up contents (tried only), to read by maya_values_hold. */
extern pthread_rwlock_t maya_hold_lock;

/* Into the set, with what finds it without the lock. */
void maya_values_mark(maya_intervals *set, uintptr_t start, uintptr_t end);
/* Real bytes are there now, which are always kept. */
void maya_values_mark_known(uintptr_t start, uintptr_t end);
/* Nothing is there any more: zeros, in none of the sets. */
void maya_values_forget(uintptr_t start, uintptr_t end);
