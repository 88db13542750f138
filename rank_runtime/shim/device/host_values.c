/* Which bytes of large host tensors are placeholders.
 *
 * In: blocks of private memory that the observer's allocator (observer/host_allocator.cpp) and cudaHostAlloc map, and what ops
 * and copies write to them. Out: for a range, whether it holds placeholders, and whether it holds zeros only.
 *
 * No page of a placeholder is touched, so it takes no memory and reads as zero. Programs may also write past torch, through
 * numpy or a pointer: those bytes are real. They are found by their pages, because a page with a byte other than zero cannot
 * belong to a placeholder. */

#include "host_values.h"

#include "internal.h"
#include "intervals.h"
#include "process.h"
#include "table.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES_AT_ONCE = 4096 };

pthread_mutex_t maya_host_lock = PTHREAD_MUTEX_INITIALIZER;
static maya_intervals blocks, placeholders; /* placeholders lie inside blocks */

static bool is_started_by_rank; /* this process is a child of a rank (a DataLoader worker), so its contents are real */

static uintptr_t page_size(void) {
    static _Atomic uintptr_t size;
    if (size == 0) size = (uintptr_t)sysconf(_SC_PAGESIZE);
    return size;
}

static uintptr_t page_of(uintptr_t address) { return address & ~(page_size() - 1); }

static uintptr_t next_page(uintptr_t address) { return page_of(address + page_size() - 1); }

/* ---- when ---- */

void maya_host_values_begin_rank(void) { is_started_by_rank = false; }

void maya_host_values_after_fork(void) { is_started_by_rank = true; }

bool maya_host_makes_placeholders(size_t size) {
    const maya_settings *settings = maya_get_settings();
    return (int64_t)size >= settings->host_tensor_bytes && settings->host_tensors == MAYA_HOST_TENSORS_PLACEHOLDER &&
           settings->compute != MAYA_COMPUTE_ALL && !settings->bare && !is_started_by_rank;
}

bool maya_host_is_large(size_t size) { return (int64_t)size >= maya_get_settings()->host_tensor_bytes; }

/* ---- blocks ---- */

typedef struct {
    uintptr_t start;
    size_t size;
} block;

static bool sizes_is_used(const block *entry) { return entry->start != 0; }
static uintptr_t sizes_key(const block *entry) { return entry->start; }
static uint64_t sizes_hash(uintptr_t start) { return (start >> 12) * 0x9E3779B97F4A7C15ull >> 20; }
static bool sizes_is_same(uintptr_t one, uintptr_t other) { return one == other; }

MAYA_DEFINE_TABLE(sizes, block, uintptr_t, 256)

static sizes sizes_of_blocks;

void *maya_host_block_map(size_t size) {
    size = next_page(size);
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    maya_watch_forks();
    pthread_mutex_lock(&maya_host_lock);
    *sizes_place(&sizes_of_blocks, (uintptr_t)memory) = (block){(uintptr_t)memory, size};
    maya_intervals_add(&blocks, (uintptr_t)memory, (uintptr_t)memory + size);
    pthread_mutex_unlock(&maya_host_lock);
    return memory;
}

bool maya_host_block_unmap(void *address) {
    pthread_mutex_lock(&maya_host_lock);
    block *found = sizes_find(&sizes_of_blocks, (uintptr_t)address);
    size_t size = found ? found->size : 0;
    if (found) {
        sizes_remove(&sizes_of_blocks, found);
        maya_intervals_remove(&blocks, (uintptr_t)address, (uintptr_t)address + size);
        maya_intervals_remove(&placeholders, (uintptr_t)address, (uintptr_t)address + size);
    }
    pthread_mutex_unlock(&maya_host_lock);
    if (size > 0) munmap(address, size);
    return size > 0;
}

static bool is_tracked(uintptr_t start, uintptr_t end) {
    return blocks.count > 0 && end > start && maya_intervals_cover(&blocks, start, end);
}

bool maya_host_is_tracked(const void *address, size_t size) {
    pthread_mutex_lock(&maya_host_lock);
    bool answer = is_tracked((uintptr_t)address, (uintptr_t)address + size);
    pthread_mutex_unlock(&maya_host_lock);
    return answer;
}

/* ---- pages ---- */

/* Whether the kernel holds contents for each of `count` pages from `first`, in memory or swapped out. */
static void find_touched(int pagemap, uintptr_t first, size_t count, bool *touched) {
    enum { PRESENT_BIT = 63, SWAPPED_BIT = 62 };
    static uint64_t entries[512];
    for (size_t done = 0; done < count;) {
        size_t part = count - done < sizeof entries / sizeof *entries ? count - done : sizeof entries / sizeof *entries;
        off_t offset = (off_t)((first / page_size() + done) * sizeof *entries);
        ssize_t got = pagemap < 0 ? -1 : pread(pagemap, entries, part * sizeof *entries, offset);
        for (size_t i = 0; i < part; i++) {
            bool is_answered = got >= (ssize_t)((i + 1) * sizeof *entries);
            touched[done + i] = !is_answered || (entries[i] >> PRESENT_BIT & 1) || (entries[i] >> SWAPPED_BIT & 1);
        }
        done += part;
    }
}

static bool holds_zeros(uintptr_t start, uintptr_t end) {
    const char *bytes = (const char *)start;
    size_t size = end - start;
    return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

/* Calls visit for each stretch of touched pages in [start, end), clipped to it, until one returns false. The lock is held. */
static bool visit_touched(uintptr_t start, uintptr_t end, bool (*visit)(uintptr_t start, uintptr_t end)) {
    static bool touched[PAGES_AT_ONCE];
    if (start >= end) return true;
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    const uintptr_t page = page_size();
    bool goes_on = true;
    for (uintptr_t from = page_of(start); goes_on && from < end; from += PAGES_AT_ONCE * page) {
        size_t count = next_page(end - from) / page;
        if (count > PAGES_AT_ONCE) count = PAGES_AT_ONCE;
        find_touched(pagemap, from, count, touched);
        for (size_t i = 0; goes_on && i < count;) {
            size_t next = i;
            while (next < count && touched[next]) next++;
            uintptr_t low = from + i * page, high = from + next * page;
            if (next > i) goes_on = visit(low < start ? start : low, high > end ? end : high);
            i = next + 1;
        }
    }
    if (pagemap >= 0) close(pagemap);
    return goes_on;
}

static bool clear_bytes(uintptr_t start, uintptr_t end) {
    memset((void *)start, 0, end - start);
    return true;
}

/* Makes [start, end) zeros, without touching a page. */
static void make_zero(uintptr_t start, uintptr_t end) {
    uintptr_t first = next_page(start), last = page_of(end);
    if (first >= last) {
        visit_touched(start, end, clear_bytes);
        return;
    }
    if (first > start) visit_touched(start, first, clear_bytes);
    if (end > last) visit_touched(last, end, clear_bytes);
    if (madvise((void *)first, last - first, MADV_DONTNEED) != 0) memset((void *)first, 0, last - first);
}

bool maya_host_is_zero(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    pthread_mutex_lock(&maya_host_lock);
    bool answer = visit_touched(start, start + size, holds_zeros);
    pthread_mutex_unlock(&maya_host_lock);
    return answer;
}

bool maya_host_holds_zeros(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    return maya_host_is_tracked(address, size) ? maya_host_is_zero(address, size) : holds_zeros(start, start + size);
}

/* ---- placeholders ---- */

void maya_host_set_placeholder(void *address, size_t size) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    pthread_mutex_lock(&maya_host_lock);
    if (is_tracked(start, end)) {
        make_zero(start, end);
        maya_intervals_add(&placeholders, start, end);
    }
    pthread_mutex_unlock(&maya_host_lock);
}

void maya_host_mark_placeholder(void *address, size_t size) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    pthread_mutex_lock(&maya_host_lock);
    if (is_tracked(start, end)) maya_intervals_add(&placeholders, start, end);
    pthread_mutex_unlock(&maya_host_lock);
}

void maya_host_set_zero(void *address, size_t size) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    pthread_mutex_lock(&maya_host_lock);
    maya_intervals_remove(&placeholders, start, end);
    if (is_tracked(start, end)) make_zero(start, end);
    else memset(address, 0, size);
    pthread_mutex_unlock(&maya_host_lock);
}

void maya_host_set_known(const void *address, size_t size) {
    pthread_mutex_lock(&maya_host_lock);
    if (placeholders.count > 0) maya_intervals_remove(&placeholders, (uintptr_t)address, (uintptr_t)address + size);
    pthread_mutex_unlock(&maya_host_lock);
}

static bool forget_written(uintptr_t start, uintptr_t end) {
    if (!holds_zeros(start, end)) maya_intervals_remove(&placeholders, start, end);
    return true;
}

bool maya_host_has_placeholder(const void *address, size_t size) {
    enum { SMALL = 64 << 10 }; /* small results of placeholders were computed from them, and need not be zero */
    uintptr_t start = (uintptr_t)address, end = start + size;
    maya_interval part;
    pthread_mutex_lock(&maya_host_lock);
    bool found = placeholders.count > 0 && maya_intervals_next(&placeholders, start, end, &part);
    if (found && size > SMALL) {
        for (uintptr_t from = start; maya_intervals_next(&placeholders, from, end, &part); from = part.end) {
            visit_touched(part.start, part.end, forget_written);
        }
        found = maya_intervals_next(&placeholders, start, end, &part);
    }
    pthread_mutex_unlock(&maya_host_lock);
    return found;
}
