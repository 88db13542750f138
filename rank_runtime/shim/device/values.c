/* Which bytes of device memory are real.
 *
 * known:  written by the host or by a computation that was really done on known inputs.
 * dirty:  may differ from zero: the known bytes, and results that tiny ops computed from made-up inputs.
 * object: copied from a vector of bytes on the host, kept or not; an object that is sent and was not kept is an error.
 * All other device memory is made up and holds zeros; nobody ever reads what a freed tensor left behind.
 * Ranges on the host are none of our business: they are always real. */

#include "device.h"
#include "internal.h"
#include "intervals.h"
#include "process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

pthread_mutex_t maya_values_lock = PTHREAD_MUTEX_INITIALIZER;
static maya_intervals known, dirty, object;

/* A first answer without the lock, for the thousands of blocks a second that have no known byte: a bit for every chunk of
 * address space, set if the chunk may have known or dirty bytes. Chunks far apart share a bit. Who asks about memory owns it,
 * so nobody else is about to write there. The bits are changed under the lock. Small blocks lie next to each other, some with
 * values, and are looked up in chunks as small as torch's smallest block; large ones in chunks that are soon gone through. */
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

static void add(maya_intervals *set, uintptr_t start, uintptr_t end) {
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
    return !maya_intervals_next(&dirty, start, end, &part) && !maya_intervals_next(&known, start, end, &part) &&
           !maya_intervals_next(&object, start, end, &part);
}

/* There are no values in [start, end) any more; at its two ends, chunks reach beyond it. */
static void clear_filter(const filter *filter, uintptr_t start, uintptr_t end) {
    if (!is_near(filter, &dirty, start, end) || !is_near(filter, &known, start, end) || !is_near(filter, &object, start, end)) {
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

static void forget(uintptr_t start, uintptr_t end) {
    maya_interval part;
    uintptr_t from = start;
    for (; maya_intervals_next(&dirty, from, end, &part); from = part.end) zero(part.start, part.end);
    bool was_dirty = from != start, was_known = maya_intervals_next(&known, start, end, &part);
    if (was_dirty) maya_intervals_remove(&dirty, start, end);
    if (was_known) maya_intervals_remove(&known, start, end);
    bool was_object = object.count && maya_intervals_next(&object, start, end, &part);
    if (was_object) maya_intervals_remove(&object, start, end);
    if (!was_dirty && !was_known && !was_object) return;
    clear_filter(&small_chunks, start, end);
    clear_filter(&large_chunks, start, end);
}

void maya_values_known(const void *address, size_t size) {
    if (maya_address_device(address) < 0) return;
    uintptr_t start = (uintptr_t)address;
    pthread_mutex_lock(&maya_values_lock);
    if (!maya_intervals_cover(&known, start, start + size)) add(&known, start, start + size);
    if (!maya_intervals_cover(&dirty, start, start + size)) add(&dirty, start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_guessed(const void *address, size_t size) {
    if (maya_address_device(address) < 0) return;
    uintptr_t start = (uintptr_t)address;
    pthread_mutex_lock(&maya_values_lock);
    maya_intervals_remove(&known, start, start + size);
    maya_intervals_remove(&object, start, start + size);
    add(&dirty, start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_doubt(const void *address) {
    uintptr_t start = (uintptr_t)address;
    if (maya_address_device(address) < 0) return;
    pthread_mutex_lock(&maya_values_lock);
    if (maya_intervals_cover(&known, start, start + 1)) {
        uintptr_t end = maya_intervals_end(&known, start);
        maya_intervals_remove(&known, start, end);
        maya_intervals_remove(&object, start, end);
    }
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_made_up(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    if (!may_hold_values(start, start + size)) return;
    pthread_mutex_lock(&maya_values_lock);
    forget(start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_made_up_ranges(const maya_range *ranges, size_t count) {
    bool locked = false;
    for (size_t i = 0; i < count; i++) {
        uintptr_t start = (uintptr_t)ranges[i].address, end = start + ranges[i].size;
        if (!may_hold_values(start, end)) continue;
        if (!locked) pthread_mutex_lock(&maya_values_lock);
        locked = true;
        forget(start, end);
    }
    if (locked) pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_forget_without_zeroing(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    pthread_mutex_lock(&maya_values_lock);
    maya_intervals_remove(&dirty, start, start + size);
    maya_intervals_remove(&known, start, start + size);
    maya_intervals_remove(&object, start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_copy_dirty(void *view, const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    for (uintptr_t from = start; maya_intervals_next(&dirty, from, end, &part); from = part.end) {
        memcpy((char *)view + (part.start - start), (void *)part.start, part.end - part.start);
    }
    pthread_mutex_unlock(&maya_values_lock);
}

bool maya_values_are_known(const void *address, size_t size) {
    if (size == 0 || maya_address_device(address) < 0) return true;
    uintptr_t start = (uintptr_t)address;
    if (!may_hold_values(start, start + size)) return false;
    pthread_mutex_lock(&maya_values_lock);
    bool answer = maya_intervals_cover(&known, start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

bool maya_values_are_dirty(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address;
    if (!may_hold_values(start, start + size)) return false;
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    bool answer = maya_intervals_next(&dirty, start, start + size, &part);
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

/* Whether so much more can be kept; the lock is held. */
static bool has_room(size_t size, bool of_bytes) {
    const maya_settings *settings = maya_get_settings();
    if (settings->kept_bytes == INT64_MAX) return true;
    uint64_t most = (uint64_t)settings->kept_bytes + (uint64_t)(of_bytes ? settings->object_bytes : 0);
    return dirty.total + size <= most;
}

bool maya_values_room_for(size_t size, bool of_bytes) {
    const maya_settings *settings = maya_get_settings();
    if ((int64_t)size > settings->copy_bytes && !(of_bytes && (int64_t)size <= settings->object_bytes)) return false;
    pthread_mutex_lock(&maya_values_lock);
    bool answer = has_room(size, of_bytes);
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

/* Host to device. */
static void copy_in(char *destination, const char *source, size_t size, bool of_bytes) {
    if (!maya_values_room_for(size, of_bytes)) {
        maya_values_made_up(destination, size);
        return;
    }
    memcpy(destination, source, size);
    maya_values_known(destination, size);
}

void maya_values_copy_object(void *destination, const void *source, size_t size) {
    uintptr_t start = (uintptr_t)destination;
    copy_in(destination, source, size, true);
    pthread_mutex_lock(&maya_values_lock);
    add(&object, start, start + size);
    pthread_mutex_unlock(&maya_values_lock);
}

maya_object maya_values_find_object(const void *address, size_t size) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    if (!may_hold_values(start, end)) return MAYA_NO_OBJECT;
    maya_object found = MAYA_NO_OBJECT;
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    for (uintptr_t from = start; found != MAYA_LOST_OBJECT && maya_intervals_next(&object, from, end, &part); from = part.end) {
        found = maya_intervals_cover(&known, part.start, part.end) ? MAYA_OBJECT : MAYA_LOST_OBJECT;
    }
    pthread_mutex_unlock(&maya_values_lock);
    return found;
}

/* From device memory: only dirty parts are touched, so that copying terabytes of nothing costs nothing. */
static void copy_out(char *destination, const char *source, size_t size, bool to_device) {
    uintptr_t start = (uintptr_t)source, end = start + size;
    ptrdiff_t shift = destination - source;
    pthread_mutex_lock(&maya_values_lock);
    if (to_device) forget((uintptr_t)destination, (uintptr_t)destination + size);
    uintptr_t from = start;
    maya_interval part;
    while (maya_intervals_next(&dirty, from, end, &part)) {
        if (!to_device) memset((char *)from + shift, 0, part.start - from);
        memmove((char *)part.start + shift, (char *)part.start, part.end - part.start);
        if (to_device) add(&dirty, part.start + (uintptr_t)shift, part.end + (uintptr_t)shift);
        from = part.end;
    }
    if (!to_device) memset((char *)from + shift, 0, end - from);
    for (from = start; to_device && maya_intervals_next(&known, from, end, &part); from = part.end) {
        add(&known, part.start + (uintptr_t)shift, part.end + (uintptr_t)shift);
    }
    for (from = start; to_device && maya_intervals_next(&object, from, end, &part); from = part.end) {
        add(&object, part.start + (uintptr_t)shift, part.end + (uintptr_t)shift);
    }
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_copy(void *destination, const void *source, size_t size) {
    bool to_device = maya_address_device(destination) >= 0;
    if (size == 0 || destination == source) return;
    if (maya_address_device(source) >= 0) copy_out(destination, source, size, to_device);
    else if (to_device) copy_in(destination, source, size, false);
    else memmove(destination, source, size);
}

void maya_values_fill(void *address, const void *pattern, size_t pattern_size, size_t size) {
    bool zeros = true;
    for (size_t i = 0; i < pattern_size; i++) zeros = zeros && ((const char *)pattern)[i] == 0;
    if (zeros && maya_address_device(address) >= 0) {
        /* zeros are what made-up memory holds anyway: known, without touching a page */
        uintptr_t start = (uintptr_t)address;
        pthread_mutex_lock(&maya_values_lock);
        forget(start, start + size);
        add(&known, start, start + size);
        pthread_mutex_unlock(&maya_values_lock);
        return;
    }
    if (maya_address_device(address) >= 0 && !maya_values_room_for(size, false)) {
        maya_values_made_up(address, size);
        return;
    }
    for (size_t offset = 0; offset < size; offset += pattern_size) {
        memcpy((char *)address + offset, pattern, size - offset < pattern_size ? size - offset : pattern_size);
    }
    maya_values_known(address, size);
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
    for (uintptr_t from = start; maya_intervals_next(&known, from, end, &part); from = part.end) {
        if (count + 2 > room) { /* the smallest of those found so far makes place, or this one is it */
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

bool maya_values_receive(void *address, size_t size, const void *bytes, const int64_t *parts, size_t count, bool of_bytes) {
    uintptr_t start = (uintptr_t)address;
    bool on_device = maya_address_device(address) >= 0;
    const char *from = bytes;
    bool all_kept = true;
    if (!on_device) memset(address, 0, size);
    pthread_mutex_lock(&maya_values_lock);
    if (on_device) forget(start, start + size);
    for (size_t i = 0; i + 1 < count; i += 2) {
        size_t part = (size_t)(parts[i + 1] - parts[i]);
        bool is_kept = !on_device || has_room(part, of_bytes);
        all_kept = all_kept && is_kept;
        if (is_kept) memcpy((char *)address + parts[i], from, part);
        if (is_kept && on_device) {
            add(&dirty, start + (uintptr_t)parts[i], start + (uintptr_t)parts[i + 1]);
            add(&known, start + (uintptr_t)parts[i], start + (uintptr_t)parts[i + 1]);
        }
        from += part;
    }
    pthread_mutex_unlock(&maya_values_lock);
    return all_kept;
}
