/* Collectives that the host has not synchronized with (clock_internal.h).
 *
 * A program that queries an event acts on the answer: torch's allocator, for one, reuses memory. The real time at which the end
 * of a collective becomes known depends on this machine, so an answer based on it would differ from run to run. Therefore the
 * answer is "not ready" until the host has waited for work that comes after the collective. In: the collectives of streams, and
 * what streams and the host wait for, in program order. Out: the sets of unsynchronized collectives before a stream's end or an
 * event; whether the host has synchronized with a whole set, and whether torch's watchdogs, which poll at multiples of an
 * interval of virtual time (watchdogs.c), have found it complete. */

#include "clock_internal.h"
#include "vector.h"

#include <stdlib.h>
#include <string.h>

/* For each of some streams, its first `collectives` collectives. Sets are shared and never change. */
struct clock_unsynced {
    uint32_t references, count;
    struct {
        uint32_t stream;
        uint64_t collectives;
    } parts[];
};

/* By stream: how many of its collectives the host has synchronized with, and how many the watchdogs have found complete. */
typedef MAYA_VECTOR(uint64_t) counts;
static counts seen, noticed;
static bool is_unnoticed; /* a poll of the watchdogs would find something new */

static bool is_seen(const counts *by, uint32_t stream, uint64_t collectives) {
    return stream < by->count && by->items[stream] >= collectives;
}

static bool are_seen(const counts *by, const clock_unsynced *set) {
    for (uint32_t i = 0; set && i < set->count; i++) {
        if (!is_seen(by, set->parts[i].stream, set->parts[i].collectives)) return false;
    }
    return true;
}

clock_unsynced *clock_unsynced_keep(clock_unsynced *set) {
    if (set) set->references++;
    return set;
}

void clock_unsynced_release(clock_unsynced *set) {
    if (set && --set->references == 0) free(set);
}

/* An empty set with room for `most` streams. */
static clock_unsynced *new_set(uint32_t most) {
    clock_unsynced *made = must_alloc(malloc(sizeof *made + most * sizeof *made->parts));
    *made = (clock_unsynced){.references = 1};
    return made;
}

static void add(clock_unsynced *set, uint32_t stream, uint64_t collectives) {
    if (is_seen(&seen, stream, collectives)) return; /* and will stay so */
    uint32_t i = 0;
    while (i < set->count && set->parts[i].stream != stream) i++;
    if (i == set->count) {
        set->parts[set->count].stream = stream;
        set->parts[set->count++].collectives = 0;
    }
    if (set->parts[i].collectives < collectives) set->parts[i].collectives = collectives;
}

static void add_all(clock_unsynced *set, const clock_unsynced *others) {
    for (uint32_t i = 0; others && i < others->count; i++) add(set, others->parts[i].stream, others->parts[i].collectives);
}

void clock_unsynced_add(clock_unsynced **set, uint32_t stream, uint64_t collectives) {
    clock_unsynced *made = new_set((*set ? (*set)->count : 0) + 1);
    add_all(made, *set);
    add(made, stream, collectives);
    clock_unsynced_release(*set);
    *set = made;
}

void clock_unsynced_join(clock_unsynced **set, clock_unsynced *others) {
    if (others == NULL || others == *set || are_seen(&seen, others)) return;
    if (*set == NULL) {
        *set = clock_unsynced_keep(others);
        return;
    }
    clock_unsynced *made = new_set((*set)->count + others->count);
    add_all(made, *set);
    add_all(made, others);
    clock_unsynced_release(*set);
    *set = made;
}

bool clock_host_has_synced(const clock_unsynced *set) { return are_seen(&seen, set); }

void clock_host_syncs(const clock_unsynced *set) {
    for (uint32_t i = 0; set && i < set->count; i++) {
        uint32_t stream = set->parts[i].stream;
        maya_vector_extend(&seen, stream + 1);
        if (seen.items[stream] >= set->parts[i].collectives) continue;
        seen.items[stream] = set->parts[i].collectives;
        is_unnoticed = true;
    }
}

bool clock_watchdogs_have_polled(const clock_unsynced *set) { return are_seen(&noticed, set); }

bool clock_watchdogs_poll(void) {
    if (!is_unnoticed) return false;
    maya_vector_extend(&noticed, seen.count);
    memcpy(noticed.items, seen.items, seen.count * sizeof *seen.items);
    is_unnoticed = false;
    return true;
}

void clock_unsynced_begin(void) {
    maya_vector_clear(&seen);
    maya_vector_clear(&noticed);
    is_unnoticed = false;
}
