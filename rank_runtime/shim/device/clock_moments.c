/* Times that may not be known yet, and events, which have such times (clock_internal.h).
 *
 * In: what is set, kept and let go by the other files of the clock. Out: who is to be told that a time has become known. */

#include "clock_internal.h"
#include "table.h"

#include <stdlib.h>

static clock_moment *due;

/* ---- moments ---- */

clock_moment *clock_new_moment(void) {
    clock_moment *moment = must_alloc(calloc(1, sizeof *moment));
    moment->references = 1;
    return moment;
}

clock_moment *clock_keep(clock_moment *moment) {
    moment->references++;
    return moment;
}

void clock_release(clock_moment *moment) {
    if (moment && --moment->references == 0) free(moment);
}

void clock_set(clock_moment *moment, uint64_t ns) {
    moment->ns = ns;
    moment->known = true;
    if (moment->then == NULL) return;
    moment->next_due = due;
    due = clock_keep(moment);
}

clock_moment *clock_take_due(void) {
    clock_moment *taken = due;
    due = NULL;
    return taken;
}

void clock_tell(clock_moment *told) {
    while (told) {
        clock_moment *next = told->next_due;
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
    clock_release(gone->moment);
    clock_unseen_release(gone->unseen);
    event_table_remove(&events, gone);
}

clock_moment *clock_event_moment(uint32_t number) {
    const clock_event *found = clock_find_event(number);
    return found ? found->moment : NULL;
}

void clock_moments_begin(void) {
    event_table_clear(&events);
    due = NULL;
}
