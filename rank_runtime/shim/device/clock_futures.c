/* Futures (times that may not be known yet), and events, which have such times (clock_internal.h).
 *
 * In: futures that the other files of the clock make, set and release. Out: the callbacks that are due because a time became
 * known. */

#include "clock_internal.h"
#include "table.h"

#include <stdlib.h>

static clock_future *due;

/* ---- futures ---- */

clock_future *clock_new_future(void) {
    clock_future *future = must_alloc(calloc(1, sizeof *future));
    future->references = 1;
    return future;
}

clock_future *clock_keep(clock_future *future) {
    future->references++;
    return future;
}

void clock_release(clock_future *future) {
    if (future && --future->references == 0) free(future);
}

void clock_set(clock_future *future, uint64_t ns) {
    future->ns = ns;
    future->known = true;
    if (future->then == NULL) return;
    future->next_due = due;
    due = clock_keep(future);
}

clock_future *clock_take_due(void) {
    clock_future *taken = due;
    due = NULL;
    return taken;
}

void clock_tell(clock_future *told) {
    while (told) {
        clock_future *next = told->next_due;
        told->then(told->argument, told->ns);
        pthread_mutex_lock(&maya_recorder_lock);
        clock_release(told);
        pthread_mutex_unlock(&maya_recorder_lock);
        told = next;
    }
}

/* ---- events, by number ---- */

static inline bool event_table_is_used(const clock_event *event) { return event->number != 0; }

static inline uint32_t event_table_key(const clock_event *event) { return event->number; }

static inline uint64_t event_table_hash(uint32_t number) { return number * 0x9E3779B1u >> 8; }

static inline bool event_table_is_same(uint32_t one, uint32_t other) { return one == other; }

MAYA_DEFINE_TABLE(event_table, clock_event, uint32_t, 64)

static event_table events;

clock_event *clock_find_event(uint32_t number) { return event_table_find(&events, number); }

clock_event *clock_make_event(uint32_t number) {
    clock_event *made = event_table_place(&events, number);
    made->number = number;
    return made;
}

void clock_forget_event(uint32_t number) {
    clock_event *gone = clock_find_event(number);
    if (gone == NULL) return;
    clock_release(gone->future);
    clock_unsynced_release(gone->unsynced);
    event_table_remove(&events, gone);
}

clock_future *clock_event_future(uint32_t number) {
    const clock_event *found = clock_find_event(number);
    return found ? found->future : NULL;
}

void clock_futures_begin(void) {
    event_table_clear(&events);
    due = NULL;
}
