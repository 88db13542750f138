/* A set of byte ranges: sorted, disjoint, never touching. Not thread-safe; its owner locks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uintptr_t start, end; /* [start, end) */
} maya_interval;

typedef struct {
    maya_interval *items;
    size_t count, capacity;
    uint64_t total; /* bytes in the set */
    size_t recent;  /* where the last search ended; the next one often ends at the same place */
} maya_intervals;

void maya_intervals_add(maya_intervals *set, uintptr_t start, uintptr_t end);
void maya_intervals_remove(maya_intervals *set, uintptr_t start, uintptr_t end);
bool maya_intervals_cover(maya_intervals *set, uintptr_t start, uintptr_t end);
/* Where the range that contains `address` ends. */
uintptr_t maya_intervals_end(maya_intervals *set, uintptr_t address);
/* The first part of the set inside [start, end), clipped to it; false when there is none. */
bool maya_intervals_next(maya_intervals *set, uintptr_t start, uintptr_t end, maya_interval *part);
