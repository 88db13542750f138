/* A set of byte ranges as a sorted array: look-ups are binary searches, changes move the tail. */

#include "intervals.h"
#include "vector.h"

#include <stdlib.h>
#include <string.h>

/* Index of the first item that ends after `address`. */
static size_t first_ending_after(maya_intervals *set, uintptr_t address) {
    size_t low = 0, high = set->count, recent = set->recent;
    if (recent <= high && (recent == high || set->items[recent].end > address) &&
        (recent == 0 || set->items[recent - 1].end <= address)) {
        return recent;
    }
    for (size_t left = high; left > 0;) { /* without data-dependent branches, which would be mispredicted */
        size_t half = (left + 1) / 2;
        low = set->items[low + half - 1].end <= address ? low + half : low;
        left -= half;
    }
    set->recent = low;
    return low;
}

/* Replace items [from, to) by `count` items of `with`. */
static void splice(maya_intervals *set, size_t from, size_t to, const maya_interval *with, size_t count) {
    size_t wanted = set->count - (to - from) + count;
    maya_vector_reserve(set, wanted);
    for (size_t i = from; i < to; i++) set->total -= set->items[i].end - set->items[i].start;
    memmove(set->items + from + count, set->items + to, (set->count - to) * sizeof *set->items);
    for (size_t i = 0; i < count; i++) {
        set->items[from + i] = with[i];
        set->total += with[i].end - with[i].start;
    }
    set->count = wanted;
}

void maya_intervals_add(maya_intervals *set, uintptr_t start, uintptr_t end) {
    if (start >= end) return;
    /* items that merely touch [start, end) are merged as well */
    size_t from = first_ending_after(set, start - 1), to = from;
    maya_interval merged = {start, end};
    while (to < set->count && set->items[to].start <= end) {
        if (set->items[to].start < merged.start) merged.start = set->items[to].start;
        if (set->items[to].end > merged.end) merged.end = set->items[to].end;
        to++;
    }
    splice(set, from, to, &merged, 1);
}

void maya_intervals_remove(maya_intervals *set, uintptr_t start, uintptr_t end) {
    size_t from = first_ending_after(set, start), to = from;
    if (start >= end || from == set->count || set->items[from].start >= end) return;
    maya_interval rest[2];
    size_t kept = 0;
    if (set->items[from].start < start) rest[kept++] = (maya_interval){set->items[from].start, start};
    while (to < set->count && set->items[to].start < end) to++;
    if (set->items[to - 1].end > end) rest[kept++] = (maya_interval){end, set->items[to - 1].end};
    splice(set, from, to, rest, kept);
}

bool maya_intervals_cover(maya_intervals *set, uintptr_t start, uintptr_t end) {
    if (start >= end) return true;
    size_t index = first_ending_after(set, start);
    return index < set->count && set->items[index].start <= start && set->items[index].end >= end;
}

bool maya_intervals_next(maya_intervals *set, uintptr_t start, uintptr_t end, maya_interval *part) {
    size_t index = first_ending_after(set, start);
    if (start >= end || index == set->count || set->items[index].start >= end) return false;
    *part = set->items[index];
    if (part->start < start) part->start = start;
    if (part->end > end) part->end = end;
    return true;
}

uintptr_t maya_intervals_end(maya_intervals *set, uintptr_t address) {
    return set->items[first_ending_after(set, address)].end;
}
