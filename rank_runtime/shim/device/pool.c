/* Stream-ordered allocation: the default memory pool of each device, behind cudaMallocAsync and cudaFreeAsync.
 *
 * Freed blocks stay in the pool up to its release threshold and serve later requests of nearly their size. The real driver
 * carves blocks out of larger chunks in an undocumented way, so the memory that the pool holds beyond the blocks in use is an
 * estimate. */

#include "internal.h"
#include "process.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct block {
    void *address;
    size_t size;
    int device;
    bool cached;
    struct block *next;
} block;

pthread_mutex_t maya_pool_lock = PTHREAD_MUTEX_INITIALIZER;
static maya_pool_state pools[MAYA_MAX_DEVICES];
static block *blocks;

maya_pool_state *maya_pool_of(int device) { return &pools[device]; }

static void count(maya_pool_state *pool, int64_t reserved, int64_t used) {
    pool->reserved += (uint64_t)reserved;
    pool->used += (uint64_t)used;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
}

/* Smallest cached block that fits without wasting more than an eighth. */
static block *reuse(int device, size_t size) {
    block *best = NULL;
    for (block *candidate = blocks; candidate; candidate = candidate->next) {
        if (!candidate->cached || candidate->device != device || candidate->size < size) continue;
        if (candidate->size - size > size / 8) continue;
        if (best == NULL || candidate->size < best->size) best = candidate;
    }
    return best;
}

/* Takes cached blocks out of the pool until no more than `keep` is left. */
static block *take_cached(int device, uint64_t keep) {
    block *taken = NULL;
    for (block **link = &blocks; *link && pools[device].reserved > keep;) {
        block *candidate = *link;
        if (!candidate->cached || candidate->device != device) {
            link = &candidate->next;
            continue;
        }
        *link = candidate->next;
        count(&pools[device], -(int64_t)candidate->size, 0);
        candidate->next = taken;
        taken = candidate;
    }
    return taken;
}

/* Frees without the pool's lock: freeing waits for the device, whose streams may have work that needs the lock. */
void maya_pool_trim(int device, uint64_t keep) {
    pthread_mutex_lock(&maya_pool_lock);
    block *taken = take_cached(device, keep);
    pthread_mutex_unlock(&maya_pool_lock);
    while (taken) {
        block *next = taken->next;
        maya_device_free(taken->address);
        free(taken);
        taken = next;
    }
}

static block *new_block(int device, size_t size) {
    void *address;
    int status = maya_device_malloc(device, size, &address);
    block *made = status == CUDA_OK ? malloc(sizeof *made) : NULL;
    if (made == NULL) return NULL;
    *made = (block){.address = address, .size = size, .device = device, .next = blocks};
    blocks = made;
    count(&pools[device], (int64_t)size, 0);
    return made;
}

int maya_pool_malloc(int device, size_t size, void *stream, void **address) {
    *address = NULL;
    if (size == 0) return CUDA_OK;
    size = (size + 511) / 512 * 512;
    pthread_mutex_lock(&maya_pool_lock);
    block *found = reuse(device, size);
    if (found == NULL) found = new_block(device, size);
    if (found == NULL) {
        pthread_mutex_unlock(&maya_pool_lock);
        maya_pool_trim(device, 0);
        pthread_mutex_lock(&maya_pool_lock);
        found = new_block(device, size);
    }
    if (found) {
        found->cached = false;
        count(&pools[device], 0, (int64_t)found->size);
        *address = found->address;
        maya_record_block(found->address, found->size, true, maya_stream_number(stream));
    }
    pthread_mutex_unlock(&maya_pool_lock);
    return found ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

static void give_back(void *argument) {
    block *freed = argument;
    maya_values_set_placeholder(freed->address, freed->size);
    pthread_mutex_lock(&maya_pool_lock);
    freed->cached = true;
    count(&pools[freed->device], 0, -(int64_t)freed->size);
    pthread_mutex_unlock(&maya_pool_lock);
}

int maya_pool_free(void *address, void *stream) {
    if (address == NULL) return CUDA_OK;
    pthread_mutex_lock(&maya_pool_lock);
    block *found = blocks;
    while (found && (found->address != address || found->cached)) found = found->next;
    pthread_mutex_unlock(&maya_pool_lock);
    if (found == NULL) return maya_device_free(address);
    maya_record_block(found->address, found->size, false, maya_stream_number(stream));
    maya_command command = {.run = give_back, .argument = found, .unrecorded = true};
    int status = maya_submit(stream, &command);
    /* the driver frees memory above the threshold at the next synchronization; if the stream is idle, that is now */
    if (status == CUDA_OK && maya_stream_query(stream) == CUDA_OK)
        maya_pool_trim(found->device, pools[found->device].release_threshold);
    return status;
}
