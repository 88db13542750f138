/* The program's own time (host_time.h). */

#define _GNU_SOURCE
#include "host_time.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "recorder_clock.h"
#include "virtual_clock.h"

/* Longer intervals are checked against the thread's processor time. That is read again when the last reading is older than
 * this, so that a long interval begins at most this long after a reading. A thread that loses the processor loses it for
 * longer. */
enum { LONG_NS = 20000 };

typedef struct {
    uint32_t depth;                           /* of Maya's own code */
    uint64_t spent_ns;                        /* not yet taken */
    uint64_t left_ns;                         /* when Maya's own code was left last; 0: never */
    uint64_t processor_ns, processor_read_ns; /* the thread's processor time, and when it was that */
} host_time;

bool maya_measures_host;
static __thread host_time this_thread;
static uint64_t bias_ns; /* the measured time of an empty interval */

/* The first thread waits while autograd's threads work for it, so the time it spent before precedes their work. Guarded by the
 * recorder's lock, except for `*of`, which the first thread changes itself while it runs. */
static struct {
    host_time *of; /* NULL: it has recorded nothing yet */
    clockid_t clock;
    bool recorded_last; /* the last record was the first thread's, not one of autograd's */
} first;

static uint64_t processor_time(clockid_t clock) {
    struct timespec now;
    if (clock_gettime(clock, &now) != 0) return 0;
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void read_processor_time(host_time *thread, clockid_t clock) {
    thread->processor_ns = processor_time(clock);
    thread->processor_read_ns = maya_clock_ns();
}

/* The thread's share of the interval since Maya's code was left. */
static uint64_t stretch(host_time *thread, uint64_t now_ns, clockid_t clock) {
    uint64_t ns = now_ns > thread->left_ns + bias_ns ? now_ns - thread->left_ns - bias_ns : 0;
    if (ns <= LONG_NS) return ns;
    uint64_t before_ns = thread->processor_ns + (thread->left_ns - thread->processor_read_ns);
    read_processor_time(thread, clock);
    uint64_t used_ns = thread->processor_ns > before_ns ? thread->processor_ns - before_ns : 0;
    return used_ns < ns ? used_ns : ns;
}

void maya_own_time_begins(void) {
    host_time *thread = &this_thread;
    if (thread->depth++ == 0 && thread->left_ns) thread->spent_ns += stretch(thread, maya_clock_ns(), CLOCK_THREAD_CPUTIME_ID);
}

void maya_own_time_ends(void) {
    host_time *thread = &this_thread;
    if (--thread->depth > 0) return;
    uint64_t now_ns = maya_clock_ns();
    if (now_ns - thread->processor_read_ns > LONG_NS) {
        read_processor_time(thread, CLOCK_THREAD_CPUTIME_ID);
        now_ns = thread->processor_read_ns;
    }
    thread->left_ns = now_ns;
}

void maya_discount(uint64_t ns) { this_thread.spent_ns -= ns < this_thread.spent_ns ? ns : this_thread.spent_ns; }

/* The minimum of many attempts, because other processes share the processor. */
static void find_bias(void) {
    enum { ATTEMPTS = 1000 };
    bias_ns = 0;
    uint64_t least = LONG_NS;
    for (int i = 0; i < ATTEMPTS; i++) {
        this_thread.spent_ns = 0;
        maya_own_time_begins();
        if (i > 0 && this_thread.spent_ns < least) least = this_thread.spent_ns;
        maya_own_time_ends();
    }
    bias_ns = least;
}

void maya_host_time_begin(void) {
    if (!maya_get_settings()->measure_host) return;
    this_thread = (host_time){0};
    first.of = NULL;
    find_bias();
    this_thread = (host_time){0};
    maya_measures_host = true;
}

void maya_host_time_off(void) {
    maya_measures_host = false;
    this_thread = (host_time){0};
}

/* The time that the first thread spent before it began to wait for the calling one. */
static uint64_t take_from_first(void) {
    first.recorded_last = false;
    if (first.of == NULL || first.of->depth > 0) return 0;
    uint64_t ns = first.of->spent_ns + stretch(first.of, maya_clock_ns(), first.clock);
    first.of->spent_ns = 0;
    first.of->left_ns = maya_clock_ns();
    return ns;
}

uint64_t maya_take_host_time(const maya_thread *thread) {
    uint64_t ns = this_thread.spent_ns;
    this_thread.spent_ns = 0;
    if (thread->number == 1) {
        if (first.of == NULL && pthread_getcpuclockid(pthread_self(), &first.clock) == 0) first.of = &this_thread;
        first.recorded_last = true;
    } else if (first.recorded_last && maya_clock_shares_first_cursor(thread)) {
        ns += take_from_first();
    }
    return ns;
}
