/* Virtual memory management: physical memory (handles) apart from addresses, as cuMemCreate, cuMemAddressReserve and
 * cuMemMap have it. PyTorch's expandable segments are built on it.
 *
 * A handle's memory is charged to its device when it is created. While it is mapped once, the reserved addresses are enough;
 * when it is mapped a second time or exported, it moves into a memory file. Bytes do not survive in a handle without any
 * mapping. */

#define _GNU_SOURCE
#include "internal.h"
#include "faults.h"
#include "regions.h"
#include "process.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct physical {
    uint64_t number;
    int device;
    size_t size;
    unsigned handle_types;
    int references;      /* handles held by the program */
    int file_descriptor; /* -1 while private */
    bool imported;       /* charged to another process */
    struct physical *next;
} physical;

typedef struct mapping {
    uintptr_t start;
    size_t size, offset;
    physical *memory;
    struct mapping *next;
} mapping;

pthread_mutex_t maya_vmm_lock = PTHREAD_MUTEX_INITIALIZER;
static physical *memories;
static mapping *mappings;
static uint64_t handle_count;

static physical *find(uint64_t handle) {
    for (physical *memory = memories; memory; memory = memory->next) {
        if (memory->number == handle) return memory;
    }
    return NULL;
}

static bool is_mapped(const physical *memory) {
    for (mapping *map = mappings; map; map = map->next) {
        if (map->memory == memory) return true;
    }
    return false;
}

/* In the trace, physical memory goes by its handle, which is smaller than any address. */
static void record(maya_record_kind kind, const physical *memory) {
    char text[64];
    int length = snprintf(text, sizeof text, "{\"bytes\":%zu,\"mapped\":true}", memory->size);
    maya_record(kind, 0, maya_intern(text, (size_t)length), memory->number, 0);
}

/* Frees the memory once it has no handle and no mapping. */
static void drop_if_unused(physical *memory) {
    if (memory->references > 0 || is_mapped(memory)) return;
    if (!memory->imported) {
        maya_device_charge(memory->device, -(int64_t)memory->size);
        record(MAYA_RECORD_FREE, memory);
    }
    if (memory->file_descriptor >= 0) close(memory->file_descriptor);
    for (physical **link = &memories; *link; link = &(*link)->next) {
        if (*link != memory) continue;
        *link = memory->next;
        break;
    }
    free(memory);
}

static physical *add_memory(physical fields) {
    physical *memory = malloc(sizeof *memory);
    if (memory == NULL) return NULL;
    *memory = fields;
    memory->number = ++handle_count;
    memory->references = 1;
    memory->next = memories;
    memories = memory;
    return memory;
}

int maya_vmm_reserve(size_t size, size_t alignment, void **address) {
    return maya_reserve_range(maya_current_device(), size, alignment, address);
}

int maya_vmm_release_range(void *address, size_t size) {
    (void)size;
    return maya_unreserve_range(address);
}

int maya_vmm_create(int device, size_t size, unsigned handle_types, uint64_t *handle) {
    int status = maya_use_device(device);
    if (status == CUDA_OK && maya_fault_at_allocation(size)) status = CUDA_OUT_OF_MEMORY;
    if (status == CUDA_OK) status = maya_device_charge(device, (int64_t)size);
    if (status != CUDA_OK) return status;
    pthread_mutex_lock(&maya_vmm_lock);
    physical *memory =
        add_memory((physical){.device = device, .size = size, .handle_types = handle_types, .file_descriptor = -1});
    if (memory) {
        *handle = memory->number;
        record(MAYA_RECORD_MALLOC, memory);
    }
    pthread_mutex_unlock(&maya_vmm_lock);
    return memory ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

int maya_vmm_release(uint64_t handle) {
    pthread_mutex_lock(&maya_vmm_lock);
    physical *memory = find(handle);
    bool held = memory != NULL && memory->references > 0;
    if (held) {
        memory->references--;
        drop_if_unused(memory);
    }
    pthread_mutex_unlock(&maya_vmm_lock);
    return held ? CUDA_OK : CUDA_INVALID_VALUE;
}

int maya_vmm_retain_by_address(const void *address, uint64_t *handle) {
    uintptr_t at = (uintptr_t)address;
    int status = CUDA_INVALID_VALUE;
    pthread_mutex_lock(&maya_vmm_lock);
    for (mapping *map = mappings; map; map = map->next) {
        if (at < map->start || at >= map->start + map->size) continue;
        map->memory->references++;
        *handle = map->memory->number;
        status = CUDA_OK;
        break;
    }
    pthread_mutex_unlock(&maya_vmm_lock);
    return status;
}

static bool map_file(const physical *memory, uintptr_t start, size_t size, size_t offset) {
    return mmap((void *)start, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->file_descriptor, (off_t)offset) !=
           MAP_FAILED;
}

/* Put the memory into a file, where its present mapping (if any) and further ones share it. */
static bool share(physical *memory) {
    if (memory->file_descriptor >= 0) return true;
    for (mapping *map = mappings; map; map = map->next) {
        if (map->memory != memory) continue;
        if (map->offset == 0 && map->size == memory->size) {
            memory->file_descriptor = maya_share_range((void *)map->start, map->size);
            return memory->file_descriptor >= 0;
        }
        maya_unsupported_detail("cuMemMap", "sharing a handle that is mapped in part");
        return false;
    }
    memory->file_descriptor = maya_share_nothing(memory->size);
    return memory->file_descriptor >= 0;
}

int maya_vmm_map(void *address, size_t size, size_t offset, uint64_t handle) {
    pthread_mutex_lock(&maya_vmm_lock);
    physical *memory = find(handle);
    int status = CUDA_INVALID_VALUE;
    if (memory != NULL && offset + size <= memory->size) {
        bool shared = memory->file_descriptor >= 0 || is_mapped(memory);
        mapping *map = malloc(sizeof *map);
        if (map == NULL || (shared && (!share(memory) || !map_file(memory, (uintptr_t)address, size, offset)))) {
            free(map);
            status = CUDA_OUT_OF_MEMORY;
        } else {
            *map = (mapping){.start = (uintptr_t)address, .size = size, .offset = offset, .memory = memory, .next = mappings};
            mappings = map;
            status = CUDA_OK;
        }
    }
    pthread_mutex_unlock(&maya_vmm_lock);
    return status;
}

int maya_vmm_unmap(void *address, size_t size) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    int device = maya_address_device(address);
    if (device >= 0) maya_device_drain(device);
    pthread_mutex_lock(&maya_vmm_lock);
    bool found = false;
    for (mapping **link = &mappings; *link;) {
        mapping *map = *link;
        if (map->start < start || map->start + map->size > end) {
            link = &map->next;
            continue;
        }
        found = true;
        *link = map->next;
        maya_values_forget_without_zeroing((void *)map->start, map->size);
        /* fresh zero pages in place of the mapping */
        mmap((void *)map->start, map->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0);
        madvise((void *)map->start, map->size, MADV_NOHUGEPAGE);
        drop_if_unused(map->memory);
        free(map);
    }
    pthread_mutex_unlock(&maya_vmm_lock);
    return found ? CUDA_OK : CUDA_INVALID_VALUE;
}

int maya_vmm_export(uint64_t handle, int *file_descriptor) {
    pthread_mutex_lock(&maya_vmm_lock);
    physical *memory = find(handle);
    bool done = memory != NULL && share(memory);
    if (done) *file_descriptor = dup(memory->file_descriptor);
    pthread_mutex_unlock(&maya_vmm_lock);
    return done && *file_descriptor >= 0 ? CUDA_OK : CUDA_INVALID_VALUE;
}

int maya_vmm_import(int file_descriptor, uint64_t *handle) {
    struct stat about;
    int own = dup(file_descriptor);
    maya_note_shared_memory();
    if (own < 0 || fstat(own, &about) != 0) return CUDA_INVALID_VALUE;
    pthread_mutex_lock(&maya_vmm_lock);
    physical *memory = add_memory((physical){.device = maya_current_device(),
                                             .size = (size_t)about.st_size,
                                             .handle_types = 1,
                                             .file_descriptor = own,
                                             .imported = true});
    if (memory) *handle = memory->number;
    pthread_mutex_unlock(&maya_vmm_lock);
    return memory ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

int maya_vmm_describe(uint64_t handle, int *device, unsigned *handle_types) {
    pthread_mutex_lock(&maya_vmm_lock);
    physical *memory = find(handle);
    if (memory) {
        *device = memory->device;
        *handle_types = memory->handle_types;
    }
    pthread_mutex_unlock(&maya_vmm_lock);
    return memory ? CUDA_OK : CUDA_INVALID_VALUE;
}
