/* Which bytes of device memory are known: the sets of values_sets.h, which contents.c and the op observer update.
 *
 * Device memory in none of the sets holds placeholders, which are zeros; the bytes of a freed tensor are never visible again.
 * Host memory is always known.
 *
 * Small contents (settings->small_bytes) are always kept. Large ones are limited (kept.h), and floating-point contents may be
 * given up later. Code that computes from known bytes, or writes bytes and then marks them, must therefore run between
 * maya_values_hold and maya_values_release. */

#include "device.h"
#include "internal.h"
#include "intervals.h"
#include "kept.h"
#include "process.h"
#include "values_sets.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

pthread_mutex_t maya_values_lock = PTHREAD_MUTEX_INITIALIZER;
maya_intervals maya_known, maya_dirty, maya_objects, maya_assumed, maya_given_up;
pthread_rwlock_t maya_hold_lock = PTHREAD_RWLOCK_INITIALIZER;

void maya_values_hold(void) { pthread_rwlock_rdlock(&maya_hold_lock); }

void maya_values_release(void) { pthread_rwlock_unlock(&maya_hold_lock); }

void maya_values_after_fork(void) { maya_hold_lock = (pthread_rwlock_t)PTHREAD_RWLOCK_INITIALIZER; }

/* A filter that answers without the lock, for the thousands of blocks a second without any known byte: a bit for every chunk of
 * address space, set if the chunk may have known or dirty bytes. Chunks far apart share a bit. The caller owns the memory it
 * asks about, so no other thread writes there at the same time. The bits change under the lock. Small blocks lie next to each
 * other, some with values, so their chunks are as small as torch's smallest block; large blocks have large chunks, to have few
 * of them. */
enum { WORD = 64, SMALL_CHUNK_BITS = 9, SMALL_FILTER_BITS = 26, LARGE_CHUNK_BITS = 16, LARGE_FILTER_BITS = 21 };
enum { SMALL = 128 << 10 }; /* bytes */

typedef struct {
    int chunk_bits, filter_bits;
    _Atomic uint64_t *words;
} filter;

static _Atomic uint64_t small_words[(1 << SMALL_FILTER_BITS) / WORD], large_words[(1 << LARGE_FILTER_BITS) / WORD];
static const filter small_chunks = {SMALL_CHUNK_BITS, SMALL_FILTER_BITS, small_words};
static const filter large_chunks = {LARGE_CHUNK_BITS, LARGE_FILTER_BITS, large_words};

static inline __attribute__((always_inline)) _Atomic uint64_t *word_of(const filter *filter, uintptr_t word) {
    return &filter->words[word & ((((uintptr_t)1 << filter->filter_bits) / WORD) - 1)];
}

/* The bits of the chunks from `first` to `last` that are in the word with that index. */
static uint64_t bits_in_word(uintptr_t word, uintptr_t first, uintptr_t last) {
    uint64_t bits = UINT64_MAX;
    if (word == first / WORD) bits &= UINT64_MAX << first % WORD;
    if (word == last / WORD) bits &= UINT64_MAX >> (WORD - 1 - last % WORD);
    return bits;
}

static inline __attribute__((always_inline)) bool has_bits(const filter *filter, uintptr_t start, uintptr_t end) {
    uintptr_t first = start >> filter->chunk_bits, last = (end - 1) >> filter->chunk_bits;
    for (uintptr_t word = first / WORD; word <= last / WORD; word++) {
        uint64_t held = atomic_load_explicit(word_of(filter, word), memory_order_relaxed);
        if (held & bits_in_word(word, first, last)) return true;
    }
    return false;
}

static bool may_hold_values(uintptr_t start, uintptr_t end) {
    if (start >= end) return false;
    return end - start <= SMALL ? has_bits(&small_chunks, start, end) : has_bits(&large_chunks, start, end);
}

static void set_filter(const filter *filter, uintptr_t first, uintptr_t last, bool holds) {
    for (uintptr_t word = first / WORD; word <= last / WORD; word++) {
        uint64_t held = atomic_load_explicit(word_of(filter, word), memory_order_relaxed);
        uint64_t bits = bits_in_word(word, first, last), wanted = holds ? held | bits : held & ~bits;
        if (wanted != held) atomic_store_explicit(word_of(filter, word), wanted, memory_order_relaxed);
    }
}

void maya_values_mark(maya_intervals *set, uintptr_t start, uintptr_t end) {
    if (start >= end) return;
    set_filter(&small_chunks, start >> SMALL_CHUNK_BITS, (end - 1) >> SMALL_CHUNK_BITS, true);
    set_filter(&large_chunks, start >> LARGE_CHUNK_BITS, (end - 1) >> LARGE_CHUNK_BITS, true);
    maya_intervals_add(set, start, end);
}

/* true if all of the set lies so near to [start, end) that none of its chunks can share a bit with one from there. */
static bool is_near(const filter *filter, const maya_intervals *set, uintptr_t start, uintptr_t end) {
    const uintptr_t period = (uintptr_t)1 << (filter->chunk_bits + filter->filter_bits);
    const uintptr_t slack = (uintptr_t)2 << filter->chunk_bits;
    if (set->count == 0) return true;
    uintptr_t lowest = set->items[0].start, highest = set->items[set->count - 1].end;
    return (highest > end ? highest : end) - (lowest < start ? lowest : start) < period - slack;
}

static bool chunk_is_empty(const filter *filter, uintptr_t chunk) {
    uintptr_t start = chunk << filter->chunk_bits, end = (chunk + 1) << filter->chunk_bits;
    maya_interval part;
    return !maya_intervals_next(&maya_dirty, start, end, &part) && !maya_intervals_next(&maya_known, start, end, &part) &&
           !maya_intervals_next(&maya_objects, start, end, &part) && !maya_intervals_next(&maya_given_up, start, end, &part);
}

/* [start, end) has no values any more. The chunks at its two ends reach beyond it. */
static void clear_filter(const filter *filter, uintptr_t start, uintptr_t end) {
    if (!is_near(filter, &maya_dirty, start, end) || !is_near(filter, &maya_known, start, end) ||
        !is_near(filter, &maya_objects, start, end) || !is_near(filter, &maya_given_up, start, end)) {
        return;
    }
    uintptr_t first = start >> filter->chunk_bits, last = (end - 1) >> filter->chunk_bits;
    if (!chunk_is_empty(filter, first)) first++;
    if (last >= first && !chunk_is_empty(filter, last)) last--;
    if (first <= last) set_filter(filter, first, last, false);
}

static void zero(uintptr_t start, uintptr_t end) {
    enum { PAGE = 4096, WORTH_A_SYSTEM_CALL = 16 << 10 };
    uintptr_t first_page = (start + PAGE - 1) & ~(uintptr_t)(PAGE - 1), last_page = end & ~(uintptr_t)(PAGE - 1);
    if (end - start >= WORTH_A_SYSTEM_CALL && !maya_shared_memory_exists() &&
        madvise((void *)first_page, last_page - first_page, MADV_DONTNEED) == 0) {
        memset((void *)start, 0, first_page - start);
        memset((void *)last_page, 0, end - last_page);
        return;
    }
    memset((void *)start, 0, end - start);
}

/* Bytes that are written or no longer known do not follow from a choice any more. */
static void forget_assumed(uintptr_t start, uintptr_t end) {
    if (maya_assumed.count > 0) maya_intervals_remove(&maya_assumed, start, end);
}

static bool take_out(maya_intervals *set, uintptr_t start, uintptr_t end) {
    maya_interval part;
    if (set->count == 0 || !maya_intervals_next(set, start, end, &part)) return false;
    maya_intervals_remove(set, start, end);
    return true;
}

void maya_values_forget(uintptr_t start, uintptr_t end) {
    maya_interval part;
    for (uintptr_t from = start; maya_intervals_next(&maya_dirty, from, end, &part); from = part.end)
        zero(part.start, part.end);
    bool was_dirty = take_out(&maya_dirty, start, end), was_known = take_out(&maya_known, start, end);
    bool was_object = take_out(&maya_objects, start, end), was_given_up = take_out(&maya_given_up, start, end);
    if (was_dirty) maya_kept_remove(start, end);
    if (was_known) forget_assumed(start, end);
    if (!was_dirty && !was_known && !was_object && !was_given_up) return;
    clear_filter(&small_chunks, start, end);
    clear_filter(&large_chunks, start, end);
}

void maya_values_mark_known(uintptr_t start, uintptr_t end) {
    maya_kept_remove(start, end);
    forget_assumed(start, end);
    if (maya_given_up.count > 0) maya_intervals_remove(&maya_given_up, start, end);
    if (!maya_intervals_cover(&maya_known, start, end)) maya_values_mark(&maya_known, start, end);
    if (!maya_intervals_cover(&maya_dirty, start, end)) maya_values_mark(&maya_dirty, start, end);
}

void maya_values_known(const void *address, size_t size) {
    if (maya_address_device(address) < 0) return;
    uintptr_t start = (uintptr_t)address;
    pthread_mutex_lock(&maya_values_lock);
    maya_values_mark_known(start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_joined(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    pthread_mutex_lock(&maya_values_lock);
    maya_values_mark_known(start, start + size);
    maya_kept_add(start, start + size, MAYA_CONTENT_OBJECT);
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_guessed(const void *address, size_t size) {
    if (maya_address_device(address) < 0) return;
    uintptr_t start = (uintptr_t)address;
    pthread_mutex_lock(&maya_values_lock);
    maya_kept_remove(start, start + size);
    forget_assumed(start, start + size);
    maya_intervals_remove(&maya_known, start, start + size);
    maya_intervals_remove(&maya_objects, start, start + size);
    maya_intervals_remove(&maya_given_up, start, start + size);
    maya_values_mark(&maya_dirty, start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_doubt(const void *address) {
    uintptr_t start = (uintptr_t)address;
    if (maya_address_device(address) < 0) return;
    pthread_mutex_lock(&maya_values_lock);
    if (maya_intervals_cover(&maya_known, start, start + 1)) {
        uintptr_t end = maya_intervals_end(&maya_known, start);
        forget_assumed(start, end);
        maya_intervals_remove(&maya_known, start, end);
        maya_intervals_remove(&maya_objects, start, end);
    }
    if (maya_intervals_cover(&maya_given_up, start, start + 1)) {
        maya_intervals_remove(&maya_given_up, start, maya_intervals_end(&maya_given_up, start));
    }
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_set_placeholder(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    if (!may_hold_values(start, start + size)) return;
    pthread_mutex_lock(&maya_values_lock);
    maya_values_forget(start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_set_placeholder_ranges(const maya_range *ranges, size_t count) {
    bool locked = false;
    for (size_t i = 0; i < count; i++) {
        uintptr_t start = (uintptr_t)ranges[i].address, end = start + ranges[i].size;
        if (!may_hold_values(start, end)) continue;
        if (!locked) pthread_mutex_lock(&maya_values_lock);
        locked = true;
        maya_values_forget(start, end);
    }
    if (locked) pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_forget_without_zeroing(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    pthread_mutex_lock(&maya_values_lock);
    maya_kept_remove(start, start + size);
    forget_assumed(start, start + size);
    maya_intervals_remove(&maya_dirty, start, start + size);
    maya_intervals_remove(&maya_known, start, start + size);
    maya_intervals_remove(&maya_objects, start, start + size);
    maya_intervals_remove(&maya_given_up, start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_copy_dirty(void *view, const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    for (uintptr_t from = start; maya_intervals_next(&maya_dirty, from, end, &part); from = part.end) {
        memcpy((char *)view + (part.start - start), (void *)part.start, part.end - part.start);
    }
    pthread_mutex_unlock(&maya_values_lock);
}

bool maya_values_are_known(const void *address, size_t size) {
    if (size == 0 || maya_address_device(address) < 0) return true;
    uintptr_t start = (uintptr_t)address;
    if (!may_hold_values(start, start + size)) return false;
    pthread_mutex_lock(&maya_values_lock);
    bool answer = maya_intervals_cover(&maya_known, start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

void maya_values_assumed(const void *address, size_t size) {
    if (size == 0 || maya_address_device(address) < 0) return;
    uintptr_t start = (uintptr_t)address;
    pthread_mutex_lock(&maya_values_lock);
    maya_intervals_add(&maya_assumed, start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
}

bool maya_values_are_assumed(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    if (!may_hold_values(start, start + size)) return false;
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    bool answer = maya_assumed.count > 0 && maya_intervals_next(&maya_assumed, start, start + size, &part);
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

bool maya_values_are_dirty(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    if (!may_hold_values(start, start + size)) return false;
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    bool answer = maya_intervals_next(&maya_dirty, start, start + size, &part);
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

bool maya_values_were_given_up(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    if (!may_hold_values(start, start + size)) return false;
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    bool answer = maya_intervals_next(&maya_given_up, start, start + size, &part);
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

maya_object maya_values_find_object(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    if (!may_hold_values(start, end)) return MAYA_NO_OBJECT;
    maya_object found = MAYA_NO_OBJECT;
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    for (uintptr_t from = start; found != MAYA_LOST_OBJECT && maya_intervals_next(&maya_objects, from, end, &part);
         from = part.end) {
        found = maya_intervals_cover(&maya_known, part.start, part.end) ? MAYA_OBJECT : MAYA_LOST_OBJECT;
    }
    pthread_mutex_unlock(&maya_values_lock);
    return found;
}

size_t maya_values_known_parts(const void *address, size_t size, int64_t *offsets, size_t room) {
    if (size == 0 || room < 2) return 0;
    if (maya_address_device(address) < 0) {
        offsets[0] = 0;
        offsets[1] = (int64_t)size;
        return 2;
    }
    uintptr_t start = (uintptr_t)address, end = start + size;
    size_t count = 0;
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    for (uintptr_t from = start; maya_intervals_next(&maya_known, from, end, &part); from = part.end) {
        if (count + 2 > room) { /* drop the smallest part so far, or this one if it is smaller */
            size_t smallest = 0;
            for (size_t i = 2; i < count; i += 2) {
                if (offsets[i + 1] - offsets[i] < offsets[smallest + 1] - offsets[smallest]) smallest = i;
            }
            if (offsets[smallest + 1] - offsets[smallest] >= (int64_t)(part.end - part.start)) continue;
            count -= 2;
            memmove(offsets + smallest, offsets + smallest + 2, (count - smallest) * sizeof *offsets);
        }
        offsets[count++] = (int64_t)(part.start - start);
        offsets[count++] = (int64_t)(part.end - start);
    }
    pthread_mutex_unlock(&maya_values_lock);
    return count;
}
