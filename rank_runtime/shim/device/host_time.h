/* The processor time of the program itself, for --host-time measured.
 *
 * In: where Maya's own code begins and ends on a thread (MAYA_OWN_TIME). Out: for each record that affects the replay, the
 * processor time that its thread has spent since the previous one, without Maya's own. Off by default; then each MAYA_OWN_TIME
 * only tests a flag.
 *
 * The program's intervals between two calls into Maya are timed by the clock of this machine, which is cheap to read. During a
 * long interval the thread may have waited or lost the processor; then the thread's processor time, which only the kernel
 * knows, tells how much of the interval was the thread's. Time inside Maya, waiting included, does not count. */
#pragma once

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

MAYA_API extern bool maya_measures_host;
MAYA_API void maya_own_time_begins(void);
MAYA_API void maya_own_time_ends(void);
/* From Maya's own code: subtracts time that was counted as the program's but was not. */
MAYA_API void maya_discount(uint64_t ns);

static inline bool maya_enter_own_code(void) {
    if (__builtin_expect(!maya_measures_host, 1)) return false;
    maya_own_time_begins();
    return true;
}

static inline void maya_leave_own_code(const bool *entered) {
    if (__builtin_expect(*entered, 0)) maya_own_time_ends();
}

/* From here to the end of the block, time is Maya's own. Blocks may nest. */
#define MAYA_OWN_TIME const bool maya_own_time __attribute__((cleanup(maya_leave_own_code), unused)) = maya_enter_own_code()

/* For the recorder: */

/* The process begins to record. */
void maya_host_time_begin(void);
/* In a process that is a child of a rank, or becomes a rank. */
void maya_host_time_off(void);
/* The program's time on the calling thread since the previous call; with the recorder's lock held. `thread` is its own. */
uint64_t maya_take_host_time(const maya_thread *thread);

#ifdef __cplusplus
}
#endif
