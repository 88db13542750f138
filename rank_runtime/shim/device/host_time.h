/* What the program itself takes on the processor, for --host-time measured.
 *
 * In: where Maya's own code begins and ends on a thread (MAYA_OWN_TIME). Out: for each record that a replay heeds, the
 * processor time that its thread has spent since the last one, without Maya's. Off unless the settings say so, and then all
 * that is left of it is the look at a flag.
 *
 * The program's stretches between two calls into Maya are timed by the clock of this machine, which costs next to nothing to
 * read. Where a stretch is long, the thread may have waited, or another may have had the processor: then the thread's processor
 * time, which only the kernel knows, says how much of it was the thread's. What happens inside of Maya, waiting included, does
 * not matter. */
#pragma once

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

MAYA_API extern bool maya_measures_host;
MAYA_API void maya_own_time_begins(void);
MAYA_API void maya_own_time_ends(void);
/* From Maya's own code: of what the thread has spent so far, this was not the program's. */
MAYA_API void maya_discount(uint64_t ns);

static inline bool maya_enter_own_code(void) {
    if (__builtin_expect(!maya_measures_host, 1)) return false;
    maya_own_time_begins();
    return true;
}

static inline void maya_leave_own_code(const bool *entered) {
    if (__builtin_expect(*entered, 0)) maya_own_time_ends();
}

/* From here to the end of the block time is Maya's own. Blocks may be inside of others. */
#define MAYA_OWN_TIME const bool maya_own_time __attribute__((cleanup(maya_leave_own_code), unused)) = maya_enter_own_code()

/* The rest is the recorder's. */

/* The process begins to record. */
void maya_host_time_begin(void);
/* In a process that is a child of a rank, or becomes a rank. */
void maya_host_time_off(void);
/* What the calling thread has spent since it was asked last; called with the recorder's lock held. `thread` is its own. */
uint64_t maya_take_host_time(const maya_thread *thread);

#ifdef __cplusplus
}
#endif
