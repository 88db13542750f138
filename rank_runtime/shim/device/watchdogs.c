/* Torch's NCCL watchdogs by virtual time.
 *
 * The thread "pt_nccl_watchdg" of every process group looks ten times a second which collectives are complete. Of those that
 * nobody has waited for it lets torch free the tensors, with the next call of the group: memory depends on when it looks. So
 * what it is told is what it would have found when it looked last by the rank's clock, at a multiple of a tenth of a second, of
 * what the host has seen by then (clock_unsynced.c). When the host has passed such a time and comes to a collective, it waits
 * until the watchdogs have looked.
 *
 * In: the waits of these threads between two looks (housekeeping.c), what they ask for, calls of NCCL. Out: when the waits end,
 * and what is to be answered. In between they look by the time of this machine, as ever, because timeouts are real: a rank
 * that does not go on is told what is so, and so is a watchdog that is to end, which looks without waiting. */
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

static const uint64_t LOOK_NS = 100 * NS_PER_MS;  /* torch's interval, in the rank's time */
static const int64_t MARGIN_NS = NS_PER_MS;       /* torch goes by another clock, and would go on waiting */
static const int64_t SELDOM_NS = 900 * NS_PER_MS; /* after torch's deadline: who has just looked cannot be asked to */
static const int64_t LONGEST_LOOK_NS = 10LL * NS_PER_SECOND; /* after that something is wrong with the thread */
static const uint64_t STANDSTILL_NS = 5ULL * NS_PER_SECOND;  /* a rank without news for so long does not go on ... */
enum { RANKS_PER_PROCESSOR = 4 };                            /* ... if no more than these share a processor */

typedef struct watchdog {
    struct watchdog *next;
    pthread_cond_t *condition; /* that it waits for; NULL: it looks */
    uint64_t begun, ended;     /* the number of the request after which its last look began, and of the last that is over */
    bool is_stuck;             /* a look took too long: nobody waits for it any more */
    const void *first;         /* what it asked for first since it waited ... */
    uint32_t times;            /* ... and how often */
} watchdog;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all of this; no other lock is taken under it */
static pthread_cond_t looked = PTHREAD_COND_INITIALIZER;
static watchdog *watchdogs;
static uint64_t requests;
static pthread_key_t own_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void leave(void *ended) {
    pthread_mutex_lock(&lock);
    watchdog **at = &watchdogs;
    while (*at && *at != ended) at = &(*at)->next;
    if (*at) *at = (*at)->next;
    pthread_cond_broadcast(&looked);
    pthread_mutex_unlock(&lock);
    free(ended);
}

static void make_key(void) {
    if (pthread_key_create(&own_key, leave)) abort();
}

/* NULL: the thread is none. It has its name before it waits for the first time. */
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
    uint64_t last = maya_clock_last_news_ns(), now = maya_now_ns(); /* which may be later by a moment */
    uint64_t ranks = (uint64_t)maya_get_settings()->world_size, enough = RANKS_PER_PROCESSOR * (uint64_t)maya_processors();
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
    bool is_asked = own->begun < requests;
    pthread_cond_broadcast(&looked);
    pthread_mutex_unlock(&lock);
    *error = wait(condition, held, is_asked ? &earliest : latest);
    pthread_mutex_lock(&lock);
    own->condition = NULL;
    if (is_past(&earliest)) own->begun = requests; /* torch looks now; otherwise it goes on waiting, or ends */
    pthread_mutex_unlock(&lock);
    return true;
}

/* ---- what it asks for ---- */

static bool looks_without_waiting(watchdog *own, const void *event) {
    enum { TIMES = 8 }; /* one look asks for an event a few times at the most */
    if (own->first == NULL) {
        own->first = event;
        own->times = 0;
    }
    if (own->first == event) own->times++;
    return own->times > TIMES;
}

bool maya_watchdog_sees(const void *event, uint32_t number) {
    watchdog *own = maya_clock_runs() ? this_watchdog() : NULL;
    if (own == NULL) return true;
    bool is_seen = looks_without_waiting(own, event) || stands_still() || maya_clock_event_is_noticed(number);
    /* It will not ask for this one again, so that another one must tell whether it looks without waiting. */
    if (is_seen && own->first == event) own->first = NULL;
    return is_seen;
}

/* ---- looks by the rank's time ---- */

void maya_watchdogs_poll(void) {
    if (watchdogs == NULL || !maya_clock_passes(LOOK_NS)) return;
    struct timespec begun, turn;
    clock_gettime(CLOCK_REALTIME, &begun);
    struct timespec last = later(&begun, LONGEST_LOOK_NS);
    pthread_mutex_lock(&lock);
    requests++;
    for (;;) {
        bool all = true, give_up = is_past(&last);
        for (watchdog *each = watchdogs; each; each = each->next) {
            if (each->ended >= requests || each->is_stuck) continue;
            each->is_stuck = give_up;
            all = false;
            if (each->condition) pthread_cond_broadcast(each->condition); /* the thread waits, so it is there */
        }
        if (all || give_up) break;
        clock_gettime(CLOCK_REALTIME, &turn); /* it may have been about to wait: it is woken up again */
        turn = later(&turn, 5 * NS_PER_MS);
        pthread_cond_timedwait(&looked, &lock, &turn);
    }
    pthread_mutex_unlock(&lock);
}

void maya_watchdogs_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&looked, NULL);
    watchdogs = NULL;
    requests = 0;
}
