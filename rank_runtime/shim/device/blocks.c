/* Blocks: memory that PyTorch's caching allocator allocates and frees.
 *
 * The allocator reports every block to the profiler through one exported function of libc10.so, whose name and signature are
 * the same from torch 2.8 to 2.15. This library is loaded before libc10.so, so its function of that name is called; it records
 * the block and passes the call on. */

#define _GNU_SOURCE
#include "internal.h"
#include "intervals.h"
#include "process.h"
#include "vector.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "recorder.h"
#include "routing.h"

typedef struct {
    int8_t type, index;
} c10_device;

enum { C10_CUDA = 1, RECENT_BITS = 7 };

static const uint64_t UNRECORDED = UINT64_MAX;

#define REPORT_MEMORY_USAGE _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE

typedef void (*report_function)(void *, int64_t, size_t, size_t, c10_device);

static report_function real_report(void) {
    static report_function real;
    if (real == NULL) {
        void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
        real = library ? (report_function)dlsym(library, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE") : NULL;
    }
    return real;
}

/* ---- blocks in use: number by address ---- */

/* Most blocks are freed soon. The newest blocks are in a small table that fits into the cache, one block per slot; a block that
 * loses its slot to a newer one moves to the open-addressing table that has room for all. */

typedef struct {
    uintptr_t address; /* 0: never used */
    uint64_t number;   /* 0: freed; UNRECORDED: allocated in a trial */
    uint64_t bytes;
} block;

/* All under the recorder's lock. */
static block *blocks;
static size_t capacity;
static size_t occupied; /* slots that were ever used since the table was made */
static uint64_t block_count;
static block recent[1 << RECENT_BITS];

static uint64_t hash_of(uintptr_t address) { return (address >> 9) * 0x9E3779B97F4A7C15u; }

static block *recent_slot_of(uintptr_t address) { return &recent[hash_of(address) >> (64 - RECENT_BITS)]; }

static size_t first_slot_of(uintptr_t address) { return hash_of(address) >> 20 & (capacity - 1); }

static block *slot_of(uintptr_t address) {
    block *table = blocks;
    size_t slot = first_slot_of(address), last = capacity - 1;
    while (table[slot].address != 0 && table[slot].address != address) slot = (slot + 1) & last;
    return &table[slot];
}

static void make_room(void) {
    if (occupied * 2 < capacity) return;
    block *old = blocks;
    size_t old_capacity = capacity, in_use = 0;
    for (size_t i = 0; i < old_capacity; i++) in_use += old[i].number != 0;
    size_t wanted = old_capacity ? old_capacity : 1024;
    while (wanted < in_use * 4 + 1024) wanted *= 2;
    block *table = must_alloc(calloc(wanted, sizeof *table));
    blocks = table;
    capacity = wanted;
    occupied = in_use;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i].number != 0) *slot_of(old[i].address) = old[i];
    }
    free(old);
}

static void move_to_table(block moved) {
    make_room();
    block *slot = slot_of(moved.address);
    if (slot->address == 0) occupied++;
    *slot = moved;
}

static uint64_t number_of_next(uintptr_t address, size_t bytes) {
    block *slot = recent_slot_of(address);
    if (slot->number != 0) move_to_table(*slot);
    *slot = (block){address, maya_this_thread()->memory_trials > 0 ? UNRECORDED : ++block_count, bytes};
    return slot->number;
}

/* NULL: it was allocated before recording began. */
static block *block_at(uintptr_t address) {
    block *slot = recent_slot_of(address);
    if (slot->address != address || slot->number == 0) slot = capacity ? slot_of(address) : NULL;
    return slot && slot->number ? slot : NULL;
}

static uint64_t number_of_last(uintptr_t address) {
    block *last = block_at(address);
    if (last == NULL) return 0;
    uint64_t number = last->number;
    last->number = 0;
    return number;
}

uint64_t maya_block_bytes(const void *address) {
    pthread_mutex_lock(&maya_recorder_lock);
    const block *found = block_at((uintptr_t)address);
    uint64_t bytes = found ? found->bytes : 0;
    pthread_mutex_unlock(&maya_recorder_lock);
    return bytes;
}

void maya_record_block(const void *address, size_t size, bool handed_out, uint32_t stream_number) {
    if (!maya_is_recording()) return;
    uint32_t signature = maya_bytes_signature(size);
    pthread_mutex_lock(&maya_recorder_lock);
    uint64_t number = handed_out ? number_of_next((uintptr_t)address, size) : number_of_last((uintptr_t)address);
    if (number != UNRECORDED)
        maya_record_locked(handed_out ? MAYA_RECORD_BLOCK_ALLOC : MAYA_RECORD_BLOCK_FREE, stream_number, signature, number, 0);
    pthread_mutex_unlock(&maya_recorder_lock);
}

pthread_mutex_t maya_blocks_lock = PTHREAD_MUTEX_INITIALIZER; /* guards `given_back` in forget_values */

/* A block has no known bytes when it is allocated and when it is freed. While streams have queued work, that work may still use
 * the bytes: then a freed block is cleared only when no work is queued any more, and a newly allocated one keeps the bytes of
 * its previous owner until they are overwritten in stream order. */
static void forget_values(void *address, size_t bytes, bool handed_out) {
    static maya_intervals given_back; /* freed while work was queued */
    static _Atomic bool any;          /* is there something in it? */
    uintptr_t start = (uintptr_t)address;
    if (!any && !maya_commands_are_queued()) {
        maya_values_set_placeholder(address, bytes);
        return;
    }
    pthread_mutex_lock(&maya_blocks_lock);
    if (maya_commands_are_queued()) {
        if (handed_out) maya_intervals_remove(&given_back, start, start + bytes);
        else maya_intervals_add(&given_back, start, start + bytes);
    } else {
        for (size_t i = 0; i < given_back.count; i++) {
            maya_interval part = given_back.items[i];
            maya_values_set_placeholder((void *)part.start, part.end - part.start);
        }
        given_back.count = 0;
        given_back.total = 0;
        maya_values_set_placeholder(address, bytes);
    }
    any = given_back.count > 0;
    pthread_mutex_unlock(&maya_blocks_lock);
}

static void note_block(void *address, int64_t size) {
    MAYA_OWN_TIME;
    size_t bytes = (size_t)(size < 0 ? -size : size);
    forget_values(address, bytes, size >= 0);
    if (size >= 0) {
        maya_routing_mark(address, bytes, 0);
        maya_thread *thread = maya_this_thread();
        uint32_t slot = thread->blocks++ % MAYA_RECENT_BLOCKS;
        thread->recent_blocks[slot].address = address;
        thread->recent_blocks[slot].size = bytes;
    }
    maya_record_block(address, bytes, size >= 0, 0);
}

MAYA_API void REPORT_MEMORY_USAGE(void *address, int64_t size, size_t allocated, size_t reserved, c10_device device) {
    if (device.type == C10_CUDA && !maya_get_settings()->bare) note_block(address, size);
    report_function real = real_report();
    if (real) real(address, size, allocated, reserved, device);
}
