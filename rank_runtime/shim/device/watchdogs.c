/* torch's NCCL watchdogs in virtual time.
 *
 * The thread "pt_nccl_watchdg" of every process group polls its collectives ten times a second. When it finds one complete that
 * no thread has waited for, torch frees its tensors at the group's next call, so memory depends on when the watchdog polls. To
 * make that deterministic, watchdogs find what they would have found at their last poll in virtual time, at a multiple of a
 * tenth of a second: the collectives that the host had synchronized with by then (clock_unsynced.c). When the host has passed
 * such a time and comes to a collective, it waits until the watchdogs have polled.
 *
 * In: the waits of these threads between two polls (housekeeping.c), their queries, and calls of NCCL. Out: when the waits end,
 * and the answers. In between they still poll in real time, because timeouts are real. In a rank that makes no progress, and
 * for a watchdog that is shutting down and polls without waiting, the answers are the real ones. */
#define _GNU_SOURCE
#include "watchdogs.h"

#include "process.h"
#include "vector.h"
#include "virtual_clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NS_PER_MS = 1000000, NS_PER_SECOND = 1000000000 };

static const uint64_t POLL_NS = 100 * NS_PER_MS; /* torch's interval, in virtual time */
static const int64_t MARGIN_NS = NS_PER_MS;      /* torch reads another clock, and would continue to wait */
static const int64_t SELDOM_NS =
    900 * NS_PER_MS; /* after torch's deadline: a watchdog that polls all the time could not be asked to */
static const int64_t LONGEST_POLL_NS = 10LL * NS_PER_SECOND; /* a longer poll means that the thread is stuck */
static const uint64_t STANDSTILL_NS = 5ULL * NS_PER_SECOND;  /* a rank without news for this long makes no progress ... */
enum { RANKS_PER_PROCESSOR = 4 };                            /* ... if at most this many share a processor */

typedef struct watchdog {
    struct watchdog *next;
    pthread_cond_t *condition; /* what it waits on; NULL: it polls */
    uint64_t begun, ended;     /* the last request before its current poll, and the last request that is served */
    bool is_stuck;             /* a poll took too long, so the host no longer waits for it */
    const void *first;         /* the event it queried first since its last wait ... */
    uint32_t times;            /* ... and how often */
    bool is_busy;              /* since its last wait it has polled more often than once */
} watchdog;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of the following; no other lock is taken under it */
static pthread_cond_t polled = PTHREAD_COND_INITIALIZER;
static watchdog *watchdogs;
static uint64_t requests;
static pthread_key_t own_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void leave(void *ended) {
    pthread_mutex_lock(&lock);
    watchdog **at = &watchdogs;
    while (*at && *at != ended) at = &(*at)->next;
    if (*at) *at = (*at)->next;
    pthread_cond_broadcast(&polled);
    pthread_mutex_unlock(&lock);
    free(ended);
}

static void make_key(void) {
    if (pthread_key_create(&own_key, leave)) abort();
}

/* NULL: the calling thread is not a watchdog. A watchdog has its name before its first wait. */
static watchdog *this_watchdog(void) {
    pthread_once(&once, make_key);
    return pthread_getspecific(own_key);
}

static watchdog *join(void) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (strcmp(name, "pt_nccl_watchdg") != 0) return NULL;
    watchdog *made = must_alloc(calloc(1, sizeof *made));
    if (pthread_setspecific(own_key, made)) abort();
    pthread_mutex_lock(&lock);
    made->begun = made->ended = requests;
    made->next = watchdogs;
    watchdogs = made;
    pthread_mutex_unlock(&lock);
    return made;
}

/* ---- waits of a watchdog ---- */

static bool stands_still(void) {
    uint64_t last = maya_clock_last_news_ns(), now = maya_now_ns(); /* `last` may be slightly later */
    uint64_t ranks = (uint64_t)maya_get_settings()->processes, enough = RANKS_PER_PROCESSOR * (uint64_t)maya_processors();
    return now > last + (ranks > enough ? STANDSTILL_NS * ranks / enough : STANDSTILL_NS);
}

static struct timespec later(const struct timespec *time, int64_t ns) {
    int64_t sum = time->tv_nsec + ns;
    return (struct timespec){.tv_sec = time->tv_sec + sum / NS_PER_SECOND, .tv_nsec = sum % NS_PER_SECOND};
}

static bool is_before(const struct timespec *one, const struct timespec *other) {
    return one->tv_sec != other->tv_sec ? one->tv_sec < other->tv_sec : one->tv_nsec < other->tv_nsec;
}

static bool is_past(const struct timespec *time) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return !is_before(&now, time);
}

bool maya_watchdog_waits(maya_timed_wait wait, pthread_cond_t *condition, pthread_mutex_t *held,
                         const struct timespec *deadline, const struct timespec *latest, int *error) {
    if (!maya_clock_runs()) return false;
    watchdog *own = this_watchdog();
    if (own == NULL) own = join();
    if (own == NULL) return false;
    struct timespec earliest = later(deadline, MARGIN_NS), seldom = later(deadline, SELDOM_NS);
    if (is_before(latest, &seldom) && !stands_still()) latest = &seldom;
    pthread_mutex_lock(&lock);
    own->ended = own->begun;
    own->condition = condition;
    own->first = NULL;
    own->is_busy = false;
    bool is_asked = own->begun < requests;
    pthread_cond_broadcast(&polled);
    pthread_mutex_unlock(&lock);
    *error = wait(condition, held, is_asked ? &earliest : latest);
    pthread_mutex_lock(&lock);
    own->condition = NULL;
    if (is_past(&earliest)) own->begun = requests; /* torch polls now; otherwise it continues to wait, or ends */
    pthread_mutex_unlock(&lock);
    return true;
}

/* ---- queries of a watchdog ---- */

/* A poll queries an event a few times, and torch acts on one of the answers. So once a watchdog is known to poll without
 * waiting, all its queries have the real answer, until it waits again. */
static bool polls_without_waiting(watchdog *own, const void *event) {
    enum { TIMES = 8 }; /* more than in one poll */
    if (own->first == NULL) {
        own->first = event;
        own->times = 0;
    }
    if (own->first == event && ++own->times > TIMES) own->is_busy = true;
    return own->is_busy;
}

bool maya_watchdog_sees(const void *event, uint32_t number) {
    watchdog *own = maya_clock_runs() ? this_watchdog() : NULL;
    if (own == NULL) return true;
    bool is_seen = polls_without_waiting(own, event) || stands_still() || maya_clock_event_is_noticed(number);
    /* It will not query this event again, so another event must reveal whether it polls without waiting. */
    if (is_seen && own->first == event) own->first = NULL;
    return is_seen;
}

/* ---- polls in virtual time ---- */

void maya_watchdogs_poll(void) {
    if (watchdogs == NULL || !maya_clock_passes(POLL_NS)) return;
    struct timespec begun, turn;
    clock_gettime(CLOCK_REALTIME, &begun);
    struct timespec last = later(&begun, LONGEST_POLL_NS);
    pthread_mutex_lock(&lock);
    requests++;
    for (;;) {
        bool all = true, give_up = is_past(&last);
        for (watchdog *each = watchdogs; each; each = each->next) {
            if (each->ended >= requests || each->is_stuck) continue;
            each->is_stuck = give_up;
            all = false;
            if (each->condition) pthread_cond_broadcast(each->condition); /* valid, because the thread waits on it */
        }
        if (all || give_up) break;
        clock_gettime(CLOCK_REALTIME, &turn); /* wake it again in case it was just about to wait */
        turn = later(&turn, 5 * NS_PER_MS);
        pthread_cond_timedwait(&polled, &lock, &turn);
    }
    pthread_mutex_unlock(&lock);
}

void maya_watchdogs_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&polled, NULL);
    watchdogs = NULL;
    requests = 0;
}
