/* Times that may not be known yet, and events, which have such times (clock_internal.h).
 *
 * In: what is set, kept and let go by the other files of the clock. Out: who is to be told that a time has become known. */

#include "clock_internal.h"

#include <stdlib.h>

static clock_moment *due;

/* ---- moments ---- */

clock_moment *clock_new_moment(void) {
    clock_moment *moment = calloc(1, sizeof *moment);
    if (moment == NULL) abort();
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

/* ---- events: by number, in an open hash table ---- */

static clock_event *events;
static size_t event_slots, event_count;

static size_t event_home(uint32_t number) { return (number * 0x9E3779B1u >> 8) & (event_slots - 1); }

static clock_event *event_slot(uint32_t number) {
    size_t slot = event_home(number);
    while (events[slot].number && events[slot].number != number) slot = (slot + 1) & (event_slots - 1);
    return &events[slot];
}

clock_event *clock_find_event(uint32_t number) {
    clock_event *found = event_slots ? event_slot(number) : NULL;
    return found && found->number ? found : NULL;
}

clock_event *clock_make_event(uint32_t number) {
    if (2 * event_count >= event_slots) {
        clock_event *old = events;
        size_t old_slots = event_slots;
        event_slots = event_slots ? 2 * event_slots : 64;
        events = calloc(event_slots, sizeof *events);
        if (events == NULL) abort();
        for (size_t i = 0; i < old_slots; i++) {
            if (old[i].number) *event_slot(old[i].number) = old[i];
        }
        free(old);
    }
    clock_event *made = event_slot(number);
    if (made->number == 0) {
        made->number = number;
        event_count++;
    }
    return made;
}

void clock_forget_event(uint32_t number) {
    clock_event *gone = clock_find_event(number);
    if (gone == NULL) return;
    clock_release(gone->moment);
    clock_unseen_release(gone->unseen);
    event_count--;
    size_t hole = (size_t)(gone - events), slot = hole;
    for (;;) { /* those behind it that would not be found any more move up */
        events[hole] = (clock_event){0};
        do {
            slot = (slot + 1) & (event_slots - 1);
            if (events[slot].number == 0) return;
        } while (((slot - event_home(events[slot].number)) & (event_slots - 1)) < ((slot - hole) & (event_slots - 1)));
        events[hole] = events[slot];
        hole = slot;
    }
}

clock_moment *clock_event_moment(uint32_t number) {
    const clock_event *found = clock_find_event(number);
    return found ? found->moment : NULL;
}

void clock_moments_begin(void) {
    free(events);
    events = NULL;
    event_slots = event_count = 0;
    due = NULL;
}
