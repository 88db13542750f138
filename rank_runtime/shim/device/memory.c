/* The memory of the virtual devices: addresses, capacity, and the allocation of every address.
 *
 * A device's memory is one large reservation of address space without physical pages behind it (MAP_NORESERVE): a page
 * that is written becomes real, all others read as zero and cost nothing. Capacity is counted as the driver does, in pages
 * of 2 MiB: allocations of at least 1 MiB start on a page of their own, smaller ones share pages. */

#define _GNU_SOURCE
#include "faults.h"
#include "host_values.h"
#include "internal.h"
#include "regions.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SMALL_ALIGNMENT = 512 };
#define PAGE ((size_t)2 << 20)
#define SMALL_LIMIT ((size_t)1 << 20)
#define SMALL_ZONE ((uintptr_t)64 << 30) /* small allocations live below this offset, large ones above */
#define DEVICE_SPAN ((uintptr_t)4 << 40)
#define PREFERRED_BASE ((uintptr_t)0x100000000000)

typedef struct {
    uintptr_t base;       /* 0 until the device is used */
    int64_t used;         /* bytes charged against the capacity */
    uint16_t *page_users; /* per page of the small zone: allocations that touch it */
} device_memory;

pthread_mutex_t maya_memory_lock = PTHREAD_MUTEX_INITIALIZER;
static device_memory devices[MAYA_MAX_DEVICES];
static maya_regions regions; /* every allocation, device, host and reserved, by address */
static uint64_t allocation_count;
static bool displaced; /* some device is not at its preferred address */
static _Atomic bool shared_memory_exists;

/* ---- address space ---- */

static int reserve_device(int device) {
    if (devices[device].base != 0) return CUDA_OK;
    uintptr_t wanted = PREFERRED_BASE + (uintptr_t)device * DEVICE_SPAN;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *base = mmap((void *)wanted, DEVICE_SPAN, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (base == MAP_FAILED && errno == EEXIST) {
        displaced = true;
        base = mmap(NULL, DEVICE_SPAN, PROT_READ | PROT_WRITE, flags, -1, 0);
    }
    if (base == MAP_FAILED) {
        maya_message(
            "cannot reserve %zu GiB of address space for device %d: %s; allow it with 'ulimit -v unlimited' and "
            "'sysctl vm.overcommit_memory=0'",
            (size_t)(DEVICE_SPAN >> 30), device, strerror(errno));
        return CUDA_OUT_OF_MEMORY;
    }
    /* a huge page behind one written byte would make 1024 ranks impossible */
    madvise(base, DEVICE_SPAN, MADV_NOHUGEPAGE);
    madvise(base, DEVICE_SPAN, MADV_DONTDUMP);
    devices[device].base = (uintptr_t)base;
    devices[device].page_users = calloc(SMALL_ZONE / PAGE, sizeof *devices[device].page_users);
    if (devices[device].page_users == NULL) return CUDA_OUT_OF_MEMORY;
    return CUDA_OK;
}

int maya_address_device(const void *address) {
    uintptr_t at = (uintptr_t)address;
    uintptr_t index = (at - PREFERRED_BASE) / DEVICE_SPAN;
    if (index < MAYA_MAX_DEVICES && devices[index].base == PREFERRED_BASE + index * DEVICE_SPAN) return (int)index;
    for (int device = 0; displaced && device < MAYA_MAX_DEVICES; device++) {
        if (devices[device].base != 0 && at - devices[device].base < DEVICE_SPAN) return device;
    }
    return -1;
}

/* ---- capacity ---- */

static bool charge(int device, int64_t bytes) {
    if (devices[device].used + bytes > maya_get_settings()->device.memory_bytes) return false;
    devices[device].used += bytes;
    return true;
}

int maya_device_charge(int device, int64_t bytes) {
    pthread_mutex_lock(&maya_memory_lock);
    bool fits = charge(device, bytes);
    pthread_mutex_unlock(&maya_memory_lock);
    return fits ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

void maya_memory_info(int device, size_t *free_bytes, size_t *total_bytes) {
    int64_t total = maya_get_settings()->device.memory_bytes;
    pthread_mutex_lock(&maya_memory_lock);
    *free_bytes = (size_t)(total - devices[device].used);
    *total_bytes = (size_t)total;
    pthread_mutex_unlock(&maya_memory_lock);
    if (maya_fault_explains()) *free_bytes = 0;
}

/* Bytes of small-zone pages that [start, end) would be the first to use (or, when taking == false, the last). */
static int64_t change_page_users(int device, uintptr_t start, uintptr_t end, bool taking, bool commit) {
    int64_t bytes = 0;
    size_t first = (start - devices[device].base) / PAGE, last = (end - 1 - devices[device].base) / PAGE;
    for (size_t page = first; page <= last; page++) {
        uint16_t *users = &devices[device].page_users[page];
        if (*users == (taking ? 0 : 1)) bytes += (int64_t)PAGE;
        if (commit) *users = (uint16_t)(*users + (taking ? 1 : -1));
    }
    return bytes;
}

/* ---- device allocations ---- */

static int allocate(int device, size_t size, maya_region_kind kind, void **address) {
    if (size == 0) {
        *address = NULL;
        return CUDA_OK;
    }
    int status = maya_use_device(device);
    if (status != CUDA_OK) return status;
    pthread_mutex_lock(&maya_memory_lock);
    bool small = size < SMALL_LIMIT;
    size_t step = small ? SMALL_ALIGNMENT : PAGE;
    size_t rounded = (size + step - 1) / step * step;
    uintptr_t zone = devices[device].base + (small ? 0 : SMALL_ZONE);
    uintptr_t zone_end = devices[device].base + (small ? SMALL_ZONE : DEVICE_SPAN);
    uintptr_t start = rounded < size ? 0 : maya_regions_find_gap(&regions, zone, zone_end, rounded, step);
    status = CUDA_OUT_OF_MEMORY;
    if (start != 0) {
        int64_t bytes = small ? change_page_users(device, start, start + rounded, true, false) : (int64_t)rounded;
        if (charge(device, bytes)) {
            if (small) change_page_users(device, start, start + rounded, true, true);
            maya_regions_insert(&regions, (maya_region){
                                              .start = start,
                                              .size = rounded,
                                              .requested = size,
                                              .kind = kind,
                                              .device = device,
                                              .file_descriptor = -1,
                                              .number = ++allocation_count,
                                          });
            *address = (void *)start;
            status = CUDA_OK;
        }
    }
    pthread_mutex_unlock(&maya_memory_lock);
    return status;
}

/* A few sizes recur all the time, so each thread caches their signatures. */
uint32_t maya_bytes_signature(size_t size) {
    enum { BITS = 8 };
    static __thread struct {
        size_t size;
        uint32_t signature;
    } *remembered;
    if (remembered == NULL) maya_thread_table((void **)&remembered, (1 << BITS) * sizeof *remembered);
    size_t slot =
        (size_t)((uint64_t)size * 0x9E3779B97F4A7C15u >> (64 - BITS)); /* sizes are often multiples of large powers of two */
    if (remembered[slot].signature == 0 || remembered[slot].size != size) {
        char text[48];
        int length = snprintf(text, sizeof text, "{\"bytes\":%zu}", size);
        remembered[slot].size = size;
        remembered[slot].signature = maya_intern(text, (size_t)length);
    }
    return remembered[slot].signature;
}

static void record_memory(maya_record_kind kind, size_t size, const void *address) {
    maya_record(kind, 0, maya_bytes_signature(size), (uint64_t)(uintptr_t)address, 0);
}

int maya_device_malloc(int device, size_t size, void **address) {
    MAYA_OWN_TIME;
    int status = maya_fault_at_allocation(size) ? CUDA_OUT_OF_MEMORY : allocate(device, size, MAYA_REGION_DEVICE, address);
    if (status == CUDA_OK && size != 0) record_memory(MAYA_RECORD_MALLOC, size, *address);
    return status;
}

int maya_managed_malloc(int device, size_t size, void **address) {
    return allocate(device, size, MAYA_REGION_MANAGED, address);
}

/* Put plain zero pages where a shared mapping was. */
static void make_private(uintptr_t start, size_t size) {
    mmap((void *)start, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    madvise((void *)start, size, MADV_NOHUGEPAGE);
}

int maya_device_free(void *address) {
    MAYA_OWN_TIME;
    if (address == NULL) return CUDA_OK;
    int device = maya_address_device(address);
    if (device < 0) return CUDA_INVALID_VALUE;
    maya_device_wait(device); /* as cudaFree: nothing still running may use it */
    maya_values_set_placeholder(address, maya_find_allocation(address).size);
    pthread_mutex_lock(&maya_memory_lock);
    maya_region *found = maya_regions_at(&regions, (uintptr_t)address);
    if (found == NULL || (found->kind != MAYA_REGION_DEVICE && found->kind != MAYA_REGION_MANAGED)) {
        pthread_mutex_unlock(&maya_memory_lock);
        return CUDA_INVALID_VALUE;
    }
    maya_region region = *found;
    bool small = region.start - devices[device].base < SMALL_ZONE;
    devices[device].used -=
        small ? change_page_users(device, region.start, region.start + region.size, false, true) : (int64_t)region.size;
    if (region.file_descriptor >= 0) {
        make_private(region.start, region.size);
        close(region.file_descriptor);
    }
    maya_regions_remove(&regions, found);
    pthread_mutex_unlock(&maya_memory_lock);
    record_memory(MAYA_RECORD_FREE, region.requested, address);
    return CUDA_OK;
}

maya_allocation_info maya_find_allocation(const void *address) {
    static const maya_memory_type types[] = {
        [MAYA_REGION_DEVICE] = MAYA_MEMORY_DEVICE,   [MAYA_REGION_MANAGED] = MAYA_MEMORY_MANAGED,
        [MAYA_REGION_HOST] = MAYA_MEMORY_HOST,       [MAYA_REGION_REGISTERED] = MAYA_MEMORY_HOST,
        [MAYA_REGION_RESERVED] = MAYA_MEMORY_DEVICE, [MAYA_REGION_IMPORTED] = MAYA_MEMORY_DEVICE,
    };
    maya_allocation_info info = {.type = MAYA_MEMORY_UNREGISTERED, .device = -1};
    pthread_mutex_lock(&maya_memory_lock);
    const maya_region *region = maya_regions_containing(&regions, (uintptr_t)address);
    if (region != NULL) {
        info = (maya_allocation_info){
            .type = types[region->kind],
            .device = region->device,
            .base = (void *)region->start,
            .size = region->requested,
            .number = region->number,
        };
    }
    pthread_mutex_unlock(&maya_memory_lock);
    return info;
}

bool maya_shared_memory_exists(void) { return shared_memory_exists; }

/* ---- host memory ---- */

static int remember_host(uintptr_t start, size_t size, maya_region_kind kind) {
    pthread_mutex_lock(&maya_memory_lock);
    bool free_range = !maya_regions_overlap(&regions, start, size);
    if (free_range) {
        maya_regions_insert(&regions, (maya_region){
                                          .start = start,
                                          .size = size,
                                          .requested = size,
                                          .kind = kind,
                                          .device = maya_current_device(),
                                          .file_descriptor = -1,
                                          .number = ++allocation_count,
                                      });
    }
    pthread_mutex_unlock(&maya_memory_lock);
    return free_range ? CUDA_OK : CUDA_HOST_ALREADY_REGISTERED;
}

static int forget_host(uintptr_t start, maya_region_kind kind, size_t *size) {
    pthread_mutex_lock(&maya_memory_lock);
    maya_region *region = maya_regions_at(&regions, start);
    bool found = region != NULL && region->kind == kind;
    if (found) {
        *size = region->size;
        maya_regions_remove(&regions, region);
    }
    pthread_mutex_unlock(&maya_memory_lock);
    return found ? CUDA_OK : CUDA_INVALID_VALUE;
}

int maya_host_malloc(size_t size, void **address) {
    *address = NULL;
    if (size == 0) return CUDA_OK;
    size = (size + 4095) & ~(size_t)4095;
    void *memory = maya_host_block_map(size);
    if (memory == NULL) return CUDA_OUT_OF_MEMORY;
    *address = memory;
    return remember_host((uintptr_t)memory, size, MAYA_REGION_HOST);
}

int maya_host_free(void *address) {
    if (address == NULL) return CUDA_OK;
    maya_device_drain(-1);
    size_t size;
    int status = forget_host((uintptr_t)address, MAYA_REGION_HOST, &size);
    if (status == CUDA_OK) maya_host_block_unmap(address);
    return status;
}

int maya_host_register(void *address, size_t size) {
    if (address == NULL || size == 0) return CUDA_INVALID_VALUE;
    return remember_host((uintptr_t)address, size, MAYA_REGION_REGISTERED);
}

int maya_host_unregister(void *address) {
    size_t size;
    maya_device_drain(-1);
    return forget_host((uintptr_t)address, MAYA_REGION_REGISTERED, &size) == CUDA_OK ? CUDA_OK : CUDA_HOST_NOT_REGISTERED;
}

/* ---- other processes: an exported allocation moves into a memory file that they can open through /proc ---- */

typedef struct {
    char magic[8];
    int32_t process, file_descriptor;
    uint64_t size, offset;
} ipc_handle;

static const char ipc_magic[8] = "MAYAIPC";

int maya_ipc_export(void *address, unsigned char handle[64]) {
    pthread_mutex_lock(&maya_memory_lock);
    maya_region *region = maya_regions_containing(&regions, (uintptr_t)address);
    if (region == NULL || region->kind != MAYA_REGION_DEVICE) {
        pthread_mutex_unlock(&maya_memory_lock);
        return CUDA_INVALID_VALUE;
    }
    if (region->file_descriptor < 0) {
        int file = maya_share_range((void *)region->start, region->size);
        if (file < 0) {
            pthread_mutex_unlock(&maya_memory_lock);
            return CUDA_OUT_OF_MEMORY;
        }
        region->file_descriptor = file;
    }
    ipc_handle out = {.process = getpid(),
                      .file_descriptor = region->file_descriptor,
                      .size = region->size,
                      .offset = (uintptr_t)address - region->start};
    memcpy(out.magic, ipc_magic, sizeof out.magic);
    pthread_mutex_unlock(&maya_memory_lock);
    memset(handle, 0, 64);
    memcpy(handle, &out, sizeof out);
    return CUDA_OK;
}

int maya_ipc_open(const unsigned char handle[64], int device, void **address) {
    ipc_handle in;
    memcpy(&in, handle, sizeof in);
    if (memcmp(in.magic, ipc_magic, sizeof in.magic) != 0) return CUDA_INVALID_VALUE;
    int status = maya_use_device(device);
    if (status != CUDA_OK) return status;
    shared_memory_exists = true;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", in.process, in.file_descriptor);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        maya_message("cannot open the memory that process %d exported (%s): %s", in.process, path, strerror(errno));
        return CUDA_INVALID_VALUE;
    }
    pthread_mutex_lock(&maya_memory_lock);
    uintptr_t zone = devices[device].base + SMALL_ZONE;
    uintptr_t start = maya_regions_find_gap(&regions, zone, devices[device].base + DEVICE_SPAN, in.size, PAGE);
    if (start == 0 || mmap((void *)start, in.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        status = CUDA_OUT_OF_MEMORY;
        close(file);
    } else {
        maya_regions_insert(&regions, (maya_region){
                                          .start = start,
                                          .size = in.size,
                                          .requested = in.size,
                                          .kind = MAYA_REGION_IMPORTED,
                                          .device = device,
                                          .file_descriptor = file,
                                          .number = ++allocation_count,
                                      });
        *address = (void *)(start + in.offset);
    }
    pthread_mutex_unlock(&maya_memory_lock);
    /* only the exporter knows which of these bytes are known; the importer expects all of them to be */
    if (status == CUDA_OK) maya_values_known((void *)start, in.size);
    return status;
}

int maya_ipc_close(void *address) {
    maya_allocation_info info = maya_find_allocation(address);
    if (info.type != MAYA_MEMORY_DEVICE) return CUDA_INVALID_VALUE;
    maya_values_forget_without_zeroing(info.base, info.size);
    pthread_mutex_lock(&maya_memory_lock);
    maya_region *region = maya_regions_containing(&regions, (uintptr_t)address);
    bool imported = region != NULL && region->kind == MAYA_REGION_IMPORTED;
    if (imported) {
        close(region->file_descriptor);
        make_private(region->start, region->size);
        maya_regions_remove(&regions, region);
    }
    pthread_mutex_unlock(&maya_memory_lock);
    return imported ? CUDA_OK : CUDA_INVALID_VALUE;
}

/* ---- address ranges for vmm.c ---- */

int maya_reserve_range(int device, size_t size, size_t alignment, void **address) {
    int status = maya_use_device(device);
    if (status != CUDA_OK) return status;
    pthread_mutex_lock(&maya_memory_lock);
    if (alignment < PAGE) alignment = PAGE;
    uintptr_t zone = devices[device].base + SMALL_ZONE;
    uintptr_t start = maya_regions_find_gap(&regions, zone, devices[device].base + DEVICE_SPAN, size, alignment);
    if (start != 0) {
        maya_regions_insert(&regions, (maya_region){
                                          .start = start,
                                          .size = size,
                                          .requested = size,
                                          .kind = MAYA_REGION_RESERVED,
                                          .device = device,
                                          .file_descriptor = -1,
                                          .number = ++allocation_count,
                                      });
        *address = (void *)start;
    }
    pthread_mutex_unlock(&maya_memory_lock);
    return start != 0 ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

int maya_unreserve_range(void *address) {
    pthread_mutex_lock(&maya_memory_lock);
    maya_region *region = maya_regions_at(&regions, (uintptr_t)address);
    bool found = region != NULL && region->kind == MAYA_REGION_RESERVED;
    if (found) maya_regions_remove(&regions, region);
    pthread_mutex_unlock(&maya_memory_lock);
    return found ? CUDA_OK : CUDA_INVALID_VALUE;
}

void maya_note_shared_memory(void) { shared_memory_exists = true; }

/* A memory file of `size` zero bytes; its descriptor, or -1. */
int maya_share_nothing(size_t size) {
    maya_note_shared_memory();
    int file = memfd_create("maya-device-memory", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)size) != 0) {
        close(file);
        return -1;
    }
    return file;
}

/* Move the bytes of a range into a memory file mapped at the same place; its descriptor, or -1. */
int maya_share_range(void *address, size_t size) {
    int file = maya_share_nothing(size);
    if (file < 0) return -1;
    void *view = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (view != MAP_FAILED) {
        maya_values_copy_dirty(view, address, size);
        munmap(view, size);
        if (mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED) return file;
    }
    close(file);
    return -1;
}

int maya_reserve_device_memory(int device) {
    pthread_mutex_lock(&maya_memory_lock);
    int status = reserve_device(device);
    pthread_mutex_unlock(&maya_memory_lock);
    return status;
}
