/* Facts about device memory that values.c and contents.c share: sets of ranges, all under maya_values_lock. */
#pragma once

#include "intervals.h"

#include <pthread.h>

extern maya_intervals maya_known; /* written by the host or by a computation that was really done on known inputs */
extern maya_intervals maya_dirty; /* may differ from zero: known, or computed from placeholders by a tiny op */
extern maya_intervals
    maya_objects; /* copied from a uint8 tensor on the host, kept or not; sending one that was not kept is an error */
extern maya_intervals
    maya_assumed; /* the part of the known bytes that follows from an assumed choice (observer/choices.h) */
extern maya_intervals
    maya_given_up; /* contents that the program wrote and that are not kept; for reports of placeholder reads */

/* Read-locked by maya_values_hold; write-locked (by trying only) to give up contents. */
extern pthread_rwlock_t maya_hold_lock;

/* Adds the range to the set and to the filter that is read without the lock. */
void maya_values_mark(maya_intervals *set, uintptr_t start, uintptr_t end);
/* Known bytes are there now, which are always kept. */
void maya_values_mark_known(uintptr_t start, uintptr_t end);
/* The range becomes placeholders: zeros, in none of the sets. */
void maya_values_forget(uintptr_t start, uintptr_t end);
