/* Allocations by address: a sorted array of disjoint regions. Not thread-safe; its owner (memory.c) locks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    MAYA_REGION_DEVICE,     /* cudaMalloc */
    MAYA_REGION_MANAGED,    /* cudaMallocManaged */
    MAYA_REGION_HOST,       /* cudaHostAlloc */
    MAYA_REGION_REGISTERED, /* cudaHostRegister */
    MAYA_REGION_RESERVED,   /* cuMemAddressReserve: parts are mapped and unmapped by vmm.c */
    MAYA_REGION_IMPORTED,   /* cudaIpcOpenMemHandle */
} maya_region_kind;

typedef struct {
    uintptr_t start;
    size_t size;      /* as occupied */
    size_t requested; /* as asked for */
    maya_region_kind kind;
    int device;
    int file_descriptor; /* of the memory file behind a shared region; -1 for a private one */
    uint64_t number;
} maya_region;

typedef struct {
    maya_region *items;
    size_t count, capacity;
} maya_regions;

void maya_regions_insert(maya_regions *regions, maya_region region);
void maya_regions_remove(maya_regions *regions, maya_region *region);
maya_region *maya_regions_at(maya_regions *regions, uintptr_t start);
maya_region *maya_regions_containing(maya_regions *regions, uintptr_t address);
bool maya_regions_overlap(maya_regions *regions, uintptr_t start, size_t size);
/* Lowest start of `size` free bytes in [low, high), aligned; 0 when there is none. */
uintptr_t maya_regions_find_gap(maya_regions *regions, uintptr_t low, uintptr_t high, size_t size, size_t alignment);
