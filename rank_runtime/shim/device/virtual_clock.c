/* The virtual clock (virtual_clock.h): host threads.
 *
 * Every record costs its thread the time in the settings; its work goes to its stream (clock_streams.c). Each thread of the
 * program has a cursor of its own, except that autograd's threads share the first thread's, which waits for them. */

#define _GNU_SOURCE
#include "clock_internal.h"
#include "vector.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_QUEUED = 4096 };

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* with the recorder's lock: some time became known */
static uint32_t waiters;
static MAYA_VECTOR(clock_host_time) groups; /* host cursors; the first is that of thread 1 */
static _Atomic size_t most_queued;
static _Atomic uint64_t last_news_ns; /* in real time */

static const maya_clock_costs *costs(void) { return &maya_get_settings()->costs; }

bool maya_clock_runs(void) { return maya_clock_listener != NULL; }

/* Releases the lock and runs the callbacks of futures whose time became known. */
static void unlock(void) {
    clock_future *due = clock_take_due();
    pthread_mutex_unlock(&maya_recorder_lock);
    clock_tell(due);
}

/* ---- threads ---- */

static uint32_t new_group(clock_host_time begins) {
    if (begins.after) begins.after->references++;
    *maya_vector_add(&groups) = begins;
    return (uint32_t)groups.count - 1;
}

bool maya_clock_shares_first_cursor(const maya_thread *thread) {
    static const char autograd[] = "pt_autograd";
    char name[16] = "";
    if (thread->number == 1) return true;
    pthread_getname_np(pthread_self(), name, sizeof name);
    return strncmp(name, autograd, sizeof autograd - 1) == 0;
}

/* At the first record of a thread. */
static void join_group(maya_thread *thread) {
    thread->clock_group = 1 + (maya_clock_shares_first_cursor(thread) ? 0 : new_group(groups.items[0]));
}

/* A thread that has recorded nothing yet sees the first cursor. */
static const clock_host_time *cursor_of(const maya_thread *thread) {
    return &groups.items[thread->clock_group ? thread->clock_group - 1 : 0];
}

/* The time, assuming that unknown waits end at once. */
static uint64_t value_of(clock_host_time time) {
    uint64_t ns = time.ns;
    for (const maya_clock_wait *wait = time.after; wait; wait = wait->before.after) {
        if (wait->known) return ns + wait->ns;
        ns += wait->before.ns;
    }
    return ns;
}

static uint64_t now_of(const maya_thread *thread) {
    return value_of(*cursor_of(thread)) + thread->ops_uncounted * costs()->op + thread->delay_ns;
}

void clock_release_wait(maya_clock_wait *wait) {
    if (wait == NULL || --wait->references > 0) return;
    clock_release_wait(wait->before.after);
    for (size_t i = 0; i < wait->pending.count; i++) clock_release(wait->pending.items[i]);
    clock_unsynced_release(wait->unsynced);
    free(wait->pending.items);
    free(wait);
}

/* ---- records ---- */

static bool costs_nothing(const maya_trace_record *record) {
    if (record->kind == MAYA_RECORD_COLLECTIVE && record->flags & MAYA_FLAG_GROUPED) return true;
    return record->flags & MAYA_FLAG_FROM_GRAPH || record->kind >= sizeof costs()->calls / sizeof *costs()->calls;
}

static void add_collective(maya_thread *thread, const maya_trace_record *record, clock_host_time ready) {
    if (thread->collective == MAYA_COLLECTIVE_NONE) return;
    bool is_local = thread->collective == MAYA_COLLECTIVE_LOCAL;
    thread->ticket = clock_add_collective(record->stream, ready, record->flags & MAYA_FLAG_GROUPED,
                                          is_local ? clock_duration_of(thread, record) : NULL);
}

static void listen(maya_thread *thread, const maya_trace_record *record) {
    if (thread->clock_group == 0) join_group(thread);
    thread->clock_reads = thread->queries = thread->all_queries = 0;
    atomic_store_explicit(&last_news_ns, record->host_ns, memory_order_relaxed);
    clock_host_time *host = &groups.items[thread->clock_group - 1];
    clock_is_known(host); /* a thread that began during a wait of the first one starts at the end of that wait */
    host->ns += record->ops * costs()->op;
    if (record->kind == MAYA_RECORD_OP || record->kind == MAYA_RECORD_ANNOTATION) return; /* their flags have other meanings */
    if (!costs_nothing(record)) host->ns += costs()->calls[record->kind];
    clock_host_time ready = {host->after, host->ns + costs()->latency};
    switch ((maya_record_kind)record->kind) {
        case MAYA_RECORD_KERNEL:
        case MAYA_RECORD_LIBRARY:
        case MAYA_RECORD_MEMSET: clock_add_work(record->stream, ready, clock_duration_of(thread, record), true); break;
        case MAYA_RECORD_MEMCPY: clock_add_work(record->stream, ready, clock_duration_of(thread, record), false); break;
        case MAYA_RECORD_HOST_FUNCTION: clock_add_work(record->stream, ready, &clock_nothing, false); break;
        case MAYA_RECORD_EVENT_RECORD: clock_add_event(record->stream, ready, (uint32_t)record->value); break;
        case MAYA_RECORD_STREAM_WAIT: clock_add_wait(record->stream, (uint32_t)record->value); break;
        case MAYA_RECORD_COLLECTIVE: add_collective(thread, record, ready); break;
        case MAYA_RECORD_HOST_DELAY: host->ns += record->value; break;
        default: break;
    }
}

void maya_clock_stream_created(uint32_t stream, bool blocking, uint32_t home) {
    if (!maya_clock_runs()) return;
    pthread_mutex_lock(&maya_recorder_lock);
    clock_stream_created(stream, blocking, home);
    pthread_mutex_unlock(&maya_recorder_lock);
}

void maya_clock_begin(void) {
    if (!maya_get_settings()->virtual_clock) return;
    clock_unsynced_begin();
    clock_futures_begin();
    clock_streams_begin();
    clock_durations_begin();
    groups.count = waiters = 0;
    most_queued = MOST_QUEUED;
    new_group((clock_host_time){0});
    maya_clock_listener = listen;
}

/* ---- synchronization ---- */

/* Holds back a thread that is far ahead: queues take memory, and a thousand ranks may share this machine. CUDA also blocks a
 * thread that is a thousand launches ahead. The wait is bounded, in case the program can progress in another way. */
static void hold_back(void) {
    enum { SECONDS = 30 };
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += SECONDS;
    clock_ask();
    pthread_mutex_lock(&maya_recorder_lock);
    waiters++;
    int error = 0;
    while (error == 0 && clock_queued > most_queued / 2) {
        error = pthread_cond_timedwait(&changed, &maya_recorder_lock, &deadline);
    }
    waiters--;
    if (error != 0) most_queued *= 2;
    pthread_mutex_unlock(&maya_recorder_lock);
}

void maya_clock_after_record(void) {
    if (clock_has_questions()) clock_ask();
    if (atomic_load_explicit(&clock_queued, memory_order_relaxed) > most_queued) hold_back();
}

static void wait_for_future(maya_clock_wait *wait, clock_future *future) { *maya_vector_add(&wait->pending) = future; }

static void wait_for_stream(maya_clock_wait *wait, uint32_t number) {
    uint64_t ns;
    clock_unsynced_join(&wait->unsynced, clock_stream_unsynced(number));
    clock_future *future = clock_stream_future(number, &ns);
    if (future) wait_for_future(wait, future);
    else if (ns > wait->reached) wait->reached = ns;
}

static void wait_for_event(maya_clock_wait *wait, uint32_t number) {
    const clock_event *event = clock_find_event(number);
    if (event) clock_unsynced_join(&wait->unsynced, event->unsynced);
    clock_future *future = event ? event->future : NULL;
    if (future && !future->known) {
        future->references++;
        wait_for_future(wait, future);
    } else if (future && future->ns > wait->reached) {
        wait->reached = future->ns;
    }
}

/* Marks the collectives of the wait as synchronized. Only the first thread's waits count: when another thread passes on what it
 * knows cannot be told. */
static void see(maya_clock_wait *wait) {
    if (wait->group == 0) clock_host_syncs(wait->unsynced);
    clock_unsynced_release(wait->unsynced);
    wait->unsynced = NULL;
}

static uint64_t end_of(uint64_t before, uint64_t reached) { return reached > before ? reached + costs()->wake : before; }

maya_clock_wait *maya_clock_begin_wait(maya_wait_kind kind, uint32_t number) {
    if (!maya_clock_runs()) return NULL;
    uint32_t group = maya_this_thread()->clock_group - 1;
    maya_clock_wait wait = {.group = group, .references = 2}; /* one for the cursor, one for the thread */
    if (kind == MAYA_WAIT_STREAM) wait_for_stream(&wait, number);
    if (kind == MAYA_WAIT_EVENT) wait_for_event(&wait, number);
    bool others = kind == MAYA_WAIT_DEVICE || (kind == MAYA_WAIT_STREAM && clock_home_of(number) == number);
    for (uint32_t i = 0; others && i < clock_stream_count(); i++) {
        bool is_meant = kind == MAYA_WAIT_DEVICE || clock_stream_is_blocking(i);
        if (is_meant && clock_home_of(i) == number) wait_for_stream(&wait, i);
    }
    clock_host_time *host = &groups.items[group];
    if (wait.pending.count == 0 && host->after == NULL) {
        host->ns = end_of(host->ns, wait.reached);
        see(&wait);
        return NULL;
    }
    wait.before = *host;
    maya_clock_wait *kept = must_alloc(malloc(sizeof *kept));
    *kept = wait;
    *host = (clock_host_time){.after = kept};
    return kept;
}

/* Sends all questions, because a thread is about to wait. Releases the lock meanwhile. */
static void ask_now(void) {
    unlock();
    clock_ask();
    pthread_mutex_lock(&maya_recorder_lock);
}

static void sleep_until_news(void) {
    waiters++;
    pthread_cond_wait(&changed, &maya_recorder_lock);
    waiters--;
}

static bool is_over(maya_clock_wait *wait) {
    while (wait->pending.count > 0 && wait->pending.items[wait->pending.count - 1]->known) {
        clock_future *future = wait->pending.items[--wait->pending.count];
        if (future->ns > wait->reached) wait->reached = future->ns;
        clock_release(future);
    }
    return wait->pending.count == 0 && (wait->before.after == NULL || wait->before.after->known);
}

static void news(void) {
    clock_advance();
    atomic_store_explicit(&last_news_ns, maya_now_ns(), memory_order_relaxed);
    if (waiters > 0) pthread_cond_broadcast(&changed);
}

void maya_clock_end_wait(maya_clock_wait *wait) {
    if (wait == NULL) return;
    pthread_mutex_lock(&maya_recorder_lock);
    if (!is_over(wait)) ask_now();
    while (!is_over(wait)) sleep_until_news();
    wait->ns = end_of(value_of(wait->before), wait->reached);
    wait->known = true;
    see(wait);
    clock_host_time *host = &groups.items[wait->group];
    if (host->after == wait) { /* no thread that shares the cursor has begun another wait */
        *host = (clock_host_time){NULL, host->ns + wait->ns};
        clock_release_wait(wait);
    }
    clock_release_wait(wait);
    news();
    unlock();
}

/* ---- queries ---- */

/* Fewer queries, of one event or of several in turn, may be an allocator that checks which blocks it can reuse. */
enum { POLLS = 4, ALL_POLLS = 64 };

bool maya_clock_is_seen(void) {
    if (!maya_clock_runs()) return false;
    const maya_thread *thread = maya_this_thread();
    if (thread->inspects) return false;
    return thread->clock_group == 1 || (thread->clock_group == 0 && maya_clock_shares_first_cursor(thread));
}

/* Waits for the time; the lock is held. The time of a completed event is known once the durations before it are. */
static uint64_t time_of(clock_future *future) {
    future->references++;
    if (!future->known) ask_now();
    while (!future->known) sleep_until_news();
    uint64_t ns = future->ns;
    clock_release(future);
    return ns;
}

bool maya_clock_event_is_past(uint32_t number) {
    pthread_mutex_lock(&maya_recorder_lock);
    const clock_event *event = clock_find_event(number);
    bool is_past =
        event == NULL || (clock_host_has_synced(event->unsynced) && time_of(event->future) <= now_of(maya_this_thread()));
    unlock();
    return is_past;
}

bool maya_clock_event_is_noticed(uint32_t number) {
    pthread_mutex_lock(&maya_recorder_lock);
    const clock_event *event = clock_find_event(number);
    bool is_noticed = event == NULL || clock_watchdogs_have_polled(event->unsynced);
    pthread_mutex_unlock(&maya_recorder_lock);
    return is_noticed;
}

bool maya_clock_passes(uint64_t interval_ns) {
    static uint64_t intervals;
    if (!maya_clock_is_seen()) return false;
    pthread_mutex_lock(&maya_recorder_lock);
    uint64_t now = now_of(maya_this_thread()) / interval_ns;
    bool is_news = now != intervals && clock_watchdogs_poll();
    intervals = now;
    pthread_mutex_unlock(&maya_recorder_lock);
    return is_news;
}

uint64_t maya_clock_last_news_ns(void) { return atomic_load_explicit(&last_news_ns, memory_order_relaxed); }

bool maya_clock_stream_is_past(uint32_t stream) {
    uint64_t now, reached = 0;
    bool is_seen = true;
    pthread_mutex_lock(&maya_recorder_lock);
    for (uint32_t i = 0; i < clock_stream_count(); i++) {
        if (i != stream && !(clock_home_of(i) == stream && clock_stream_is_blocking(i))) continue;
        is_seen = clock_host_has_synced(clock_stream_unsynced(i));
        if (!is_seen) break;
        uint64_t ns;
        clock_future *future = clock_stream_future(i, &ns);
        if (future) ns = time_of(future);
        if (future) clock_release(future);
        if (ns > reached) reached = ns;
    }
    now = now_of(maya_this_thread());
    unlock();
    return is_seen && reached <= now;
}

bool maya_clock_is_polling(const void *asked_for) {
    maya_thread *thread = maya_this_thread();
    if (thread->queried != asked_for) thread->queries = 0;
    thread->queried = asked_for;
    thread->all_queries++;
    return ++thread->queries >= POLLS || thread->all_queries >= ALL_POLLS;
}

void maya_clock_forget_event(uint32_t event) {
    if (!maya_clock_runs()) return;
    pthread_mutex_lock(&maya_recorder_lock);
    clock_forget_event(event);
    pthread_mutex_unlock(&maya_recorder_lock);
}

bool maya_clock_elapsed(uint32_t start, uint32_t end, int64_t *ns) {
    if (!maya_clock_runs()) return false;
    pthread_mutex_lock(&maya_recorder_lock);
    clock_future *first = clock_event_future(start), *last = clock_event_future(end);
    bool known = first != NULL && last != NULL;
    if (known) {
        last->references++;
        uint64_t from = time_of(first);
        *ns = (int64_t)(time_of(last) - from);
        clock_release(last);
    }
    unlock();
    return known;
}

uint64_t clock_sum(const clock_duration *const *durations, size_t count) {
    uint64_t ns = 0;
    pthread_mutex_lock(&maya_recorder_lock);
    for (size_t i = 0; i < count; i++) {
        if (!durations[i]->known) ask_now();
        while (!durations[i]->known) sleep_until_news();
        ns += durations[i]->ns;
    }
    unlock();
    return ns;
}

/* ---- collectives ---- */

void maya_clock_when_arrived(maya_ticket *ticket, void (*then)(void *argument, uint64_t ns), void *argument) {
    if (ticket == NULL || !maya_clock_runs()) {
        then(argument, 0);
        return;
    }
    pthread_mutex_lock(&maya_recorder_lock);
    clock_future *arrival = ticket->arrival;
    bool known = arrival->known;
    uint64_t ns = arrival->ns;
    if (!known) {
        arrival->then = then;
        arrival->argument = argument;
    }
    pthread_mutex_unlock(&maya_recorder_lock);
    if (known) then(argument, ns);
    else clock_ask();
}

static void end_collective(maya_ticket *ticket, bool dropped, uint64_t started_ns, uint64_t ended_ns) {
    if (ticket == NULL || !maya_clock_runs()) return;
    pthread_mutex_lock(&maya_recorder_lock);
    ticket->started = dropped ? ticket->arrival->ns : started_ns;
    ticket->ended = dropped ? ticket->arrival->ns : ended_ns;
    ticket->is_over = true;
    news();
    unlock();
}

void maya_clock_ended(maya_ticket *ticket, uint64_t started_ns, uint64_t ended_ns) {
    end_collective(ticket, false, started_ns, ended_ns);
}

void maya_clock_dropped(maya_ticket *ticket) { end_collective(ticket, true, 0, 0); }

/* ---- the coordinator ---- */

void maya_clock_times(const int64_t *numbers, const int64_t *ns, size_t count) {
    pthread_mutex_lock(&maya_recorder_lock);
    clock_set_durations(numbers, ns, count);
    news();
    unlock();
}

void maya_clock_lost(void) {
    pthread_mutex_lock(&maya_recorder_lock);
    clock_durations_lost();
    news();
    unlock();
}

uint64_t maya_clock_rank_ns(void) {
    if (!maya_clock_runs()) return 0;
    pthread_mutex_lock(&maya_recorder_lock);
    uint64_t ns = groups.count ? value_of(groups.items[0]) : 0;
    pthread_mutex_unlock(&maya_recorder_lock);
    return ns;
}

/* The process may end in a signal handler that interrupted the thread which holds the lock. */
uint64_t maya_clock_last_ns(void) {
    if (!maya_clock_runs()) return 0;
    for (int attempt = 0; pthread_mutex_trylock(&maya_recorder_lock); attempt++) {
        if (attempt == 1000) return 0;
        usleep(1000);
    }
    maya_record_delay_locked();
    uint64_t ns = value_of(groups.items[0]);
    pthread_mutex_unlock(&maya_recorder_lock);
    return ns;
}

/* ---- the program's own clocks ---- */

int maya_clock_is_virtual(void) { return maya_is_recording() && maya_clock_runs(); }

uint64_t maya_clock_host_ns(void) {
    MAYA_OWN_TIME;
    enum { PATIENCE = 100, IMPATIENT_NS = 10000 }; /* a loop that only reads the clock waits for a time */
    if (!maya_clock_is_virtual()) return maya_now_ns();
    maya_thread *thread = maya_this_thread();
    pthread_mutex_lock(&maya_recorder_lock);
    thread->delay_ns += ++thread->clock_reads > PATIENCE ? IMPATIENT_NS : costs()->clock_read;
    uint64_t ns = now_of(thread);
    pthread_mutex_unlock(&maya_recorder_lock);
    return ns;
}

void maya_clock_delay(uint64_t ns) { maya_this_thread()->delay_ns += ns; }
