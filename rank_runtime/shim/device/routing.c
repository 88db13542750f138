/* Marks on device memory that follows from choices by rule (routing.h): ranges in a sorted array. */

#include "routing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "vector.h"

typedef struct {
    uintptr_t start, end;
    uint32_t marks;
} marked_range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static MAYA_VECTOR(marked_range) ranges; /* sorted, disjoint */
static _Atomic bool exists;
static maya_routing_listener listener;
static _Atomic uint32_t proven = UINT32_C(1) << MAYA_ROUTING_OTHERS;

bool maya_routing_exists(void) { return atomic_load_explicit(&exists, memory_order_relaxed); }

void maya_routing_begins(void) { atomic_store_explicit(&exists, true, memory_order_relaxed); }

void maya_set_routing_listener(maya_routing_listener set) { listener = set; }

void maya_routing_choices_route(uint32_t choices) {
    if (choices != 0 && listener != NULL) listener(choices);
}

uint32_t maya_routing_prove(uint32_t choices) {
    return choices & ~atomic_fetch_or_explicit(&proven, choices, memory_order_relaxed);
}

bool maya_routing_is_work(uint32_t marks) {
    return (marks & (MAYA_ROUTED_ROWS | atomic_load_explicit(&proven, memory_order_relaxed))) != 0;
}

/* Index of the first range that ends after `address`. */
static size_t first_ending_after(uintptr_t address) {
    size_t low = 0, high = ranges.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges.items[middle].end <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

uint32_t maya_routing_marks(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    uint32_t marks = 0;
    if (!maya_routing_exists()) return 0;
    pthread_mutex_lock(&lock);
    for (size_t i = first_ending_after(start); i < ranges.count && ranges.items[i].start < end; i++)
        marks |= ranges.items[i].marks;
    pthread_mutex_unlock(&lock);
    return marks;
}

void maya_routing_mark(const void *address, size_t size, uint32_t marks) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    if (!maya_routing_exists() || size == 0) return;
    pthread_mutex_lock(&lock);
    size_t from = first_ending_after(start), to = from, count = 0;
    while (to < ranges.count && ranges.items[to].start < end) to++;
    if (to > from || marks != 0) {
        marked_range with[3];
        if (to > from && ranges.items[from].start < start)
            with[count++] = (marked_range){ranges.items[from].start, start, ranges.items[from].marks};
        if (marks != 0) with[count++] = (marked_range){start, end, marks};
        if (to > from && ranges.items[to - 1].end > end)
            with[count++] = (marked_range){end, ranges.items[to - 1].end, ranges.items[to - 1].marks};
        size_t wanted = ranges.count - (to - from) + count;
        maya_vector_reserve(&ranges, wanted);
        memmove(ranges.items + from + count, ranges.items + to, (ranges.count - to) * sizeof *ranges.items);
        memcpy(ranges.items + from, with, count * sizeof *with);
        ranges.count = wanted;
    }
    pthread_mutex_unlock(&lock);
}
