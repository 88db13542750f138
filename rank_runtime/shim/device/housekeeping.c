/* Housekeeping: torch's threads that poll communicators at fixed intervals.
 *
 * Every process group has a watchdog, which wakes up ten times a second, and a monitor of the watchdog. That costs nothing in a
 * process with a processor of its own, but a thousand ranks on two processors spend a fourth of all time on it: each poll finds
 * cold caches, and a step of some milliseconds on a real cluster, too short for a single poll, takes long enough here for a
 * hundred. So if many ranks share a processor, these threads poll less often, in proportion.
 *
 * In: calls of pthread_cond_timedwait, as std::condition_variable makes them; this library is loaded before the C library, so
 * its function of that name is called. Out: the same calls, with a later deadline for housekeeping threads. Waking such a
 * thread, to end it, works as before. */
#define _GNU_SOURCE
#include "internal.h"
#include "process.h"
#include "watchdogs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum {
    RANKS_PER_PROCESSOR = 16, /* up to this many need no longer intervals */
    NS_PER_SECOND = 1000000000,
};

static const int64_t LONGEST_INTERVAL_NS = NS_PER_SECOND; /* a longer wait is a timeout, which stays real */
static const int64_t LATEST_NS = 5LL * NS_PER_SECOND;     /* the longest interval, on the fullest machine */

/* glibc has two versions of this function; programs use the one for the current layout of pthread_cond_t. */
static maya_timed_wait real_wait(void) {
    static _Atomic(maya_timed_wait) real;
    if (real == NULL) {
        void *found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        real = (maya_timed_wait)(found ? found : dlsym(RTLD_NEXT, "pthread_cond_timedwait"));
    }
    return real;
}

/* "pt_nccl_watchdg", "pt_nccl_heartbt": these threads set their names before their first wait. */
static bool is_housekeeping(void) {
    static __thread enum { UNKNOWN, NO, YES } known;
    if (known == UNKNOWN) {
        char name[16] = "";
        pthread_getname_np(pthread_self(), name, sizeof name);
        known = strncmp(name, "pt_nccl_", 8) == 0 ? YES : NO;
    }
    return known == YES;
}

int maya_processors(void) {
    cpu_set_t usable;
    int count = sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 0;
    return count > 0 ? count : 1;
}

static int64_t stretched(int64_t interval_ns) {
    int64_t enough = (int64_t)RANKS_PER_PROCESSOR * maya_processors(), ranks = maya_get_settings()->processes;
    if (interval_ns <= 0 || interval_ns > LONGEST_INTERVAL_NS || ranks <= enough) return interval_ns;
    int64_t longer_ns = interval_ns * ranks / enough;
    return longer_ns < LATEST_NS ? longer_ns : LATEST_NS;
}

MAYA_API int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *deadline) {
    if (!is_housekeeping()) return real_wait()(condition, lock, deadline);
    struct timespec later;
    clock_gettime(CLOCK_REALTIME, &later);
    int64_t now_ns = (int64_t)later.tv_sec * NS_PER_SECOND + later.tv_nsec;
    int64_t end_ns = now_ns + stretched((int64_t)deadline->tv_sec * NS_PER_SECOND + deadline->tv_nsec - now_ns);
    later = (struct timespec){.tv_sec = end_ns / NS_PER_SECOND, .tv_nsec = end_ns % NS_PER_SECOND};
    int error;
    if (maya_watchdog_waits(real_wait(), condition, lock, deadline, &later, &error)) return error;
    return real_wait()(condition, lock, &later);
}
