/* Allocations by address: binary search to find, first fit to place. */

#include "regions.h"
#include "vector.h"

#include <stdlib.h>
#include <string.h>

/* Index of the first region that ends after `address`. */
static size_t first_ending_after(const maya_regions *regions, uintptr_t address) {
    size_t low = 0, high = regions->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (regions->items[middle].start + regions->items[middle].size > address) high = middle;
        else low = middle + 1;
    }
    return low;
}

void maya_regions_insert(maya_regions *regions, maya_region region) {
    maya_vector_reserve(regions, regions->count + 1);
    size_t index = first_ending_after(regions, region.start);
    memmove(regions->items + index + 1, regions->items + index, (regions->count - index) * sizeof region);
    regions->items[index] = region;
    regions->count++;
}

void maya_regions_remove(maya_regions *regions, maya_region *region) {
    size_t index = (size_t)(region - regions->items);
    regions->count--;
    memmove(region, region + 1, (regions->count - index) * sizeof *region);
}

maya_region *maya_regions_containing(maya_regions *regions, uintptr_t address) {
    size_t index = first_ending_after(regions, address);
    return index < regions->count && regions->items[index].start <= address ? &regions->items[index] : NULL;
}

maya_region *maya_regions_at(maya_regions *regions, uintptr_t start) {
    maya_region *region = maya_regions_containing(regions, start);
    return region != NULL && region->start == start ? region : NULL;
}

bool maya_regions_overlap(maya_regions *regions, uintptr_t start, size_t size) {
    size_t index = first_ending_after(regions, start);
    return index < regions->count && regions->items[index].start < start + size;
}

uintptr_t maya_regions_find_gap(maya_regions *regions, uintptr_t low, uintptr_t high, size_t size, size_t alignment) {
    uintptr_t candidate = (low + alignment - 1) / alignment * alignment;
    for (size_t index = first_ending_after(regions, low);; index++) {
        uintptr_t gap_end = index < regions->count ? regions->items[index].start : high;
        if (gap_end > high) gap_end = high;
        if (candidate < gap_end && gap_end - candidate >= size) return candidate;
        if (index >= regions->count || regions->items[index].start >= high) return 0;
        candidate = (regions->items[index].start + regions->items[index].size + alignment - 1) / alignment * alignment;
    }
}
