/* Contents that a program writes to device memory: copies, fills, and the results of collectives.
 *
 * In: bytes from the host, from device memory or from other ranks. Out: the same bytes, known, or, if large contents have no
 * room (kept.h), placeholders that are marked as given up. */

#include "host_values.h"
#include "internal.h"
#include "kept.h"
#include "process.h"
#include "values_sets.h"

#include <stdlib.h>
#include <string.h>

/* ---- giving up ---- */

/* Warns once that the room for one kind of large contents is used up. All ranks would give the same warning about their model,
 * so only rank 0 does. Raw storages that torch.load copies to the GPU look like objects, so giving up an object is no more than
 * a warning here; sending one that was given up is an error in every rank (nccl_post.c). */
static void warn_full(maya_content content) {
    static bool warned[MAYA_CONTENTS];
    const maya_settings *settings = maya_get_settings();
    bool are_objects = content == MAYA_CONTENT_OBJECT;
    if (warned[content] || settings->rank != 0) return;
    warned[content] = true;
    maya_message(
        "contents of large %s copies become placeholders (zeros) from here on: the rank keeps at most %lld bytes of them "
        "(%s). Contents of up to %lld bytes are always kept. If the program %s larger ones, raise the limit",
        are_objects ? "uint8 (pickled objects, torch.load)" : "floating-point",
        (long long)(are_objects ? settings->object_bytes : settings->kept_bytes),
        are_objects ? MAYA_VARIABLE_OBJECT_BYTES : MAYA_VARIABLE_KEPT_BYTES, (long long)settings->small_bytes,
        are_objects ? "reads back or sends" : "reads back");
}

/* Warns once about lost integers, in every rank, because the program's control flow may depend on them. */
static void warn_lost(size_t whole, const char *limit, int64_t bytes) {
    static bool warned;
    if (warned) return;
    warned = true;
    maya_message(
        "%zu bytes of integers written to the GPU become placeholders (zeros), and others may follow: %s is %lld. If the "
        "program reads them, raise that limit",
        whole, limit, (long long)bytes);
}

static void warn_given_up(size_t whole, maya_content content, bool is_full) {
    const maya_settings *settings = maya_get_settings();
    if (content == MAYA_CONTENT_OTHER && is_full) warn_lost(whole, MAYA_VARIABLE_KEPT_BYTES, settings->kept_bytes);
    else if (content == MAYA_CONTENT_OTHER) warn_lost(whole, "--copy-bytes", settings->copy_bytes);
    else if (content == MAYA_CONTENT_OBJECT || is_full) warn_full(content);
}

static void give_up(uintptr_t start, uintptr_t end) {
    maya_values_forget(start, end);
    maya_values_mark(&maya_given_up, start, end);
}

/* Gives up floating-point contents to make room for `size` bytes, unless some thread holds them; then they go another time. */
static void give_way(size_t size) {
    maya_interval victim;
    if (pthread_rwlock_trywrlock(&maya_hold_lock) != 0) return;
    while (maya_kept_victim(size, &victim)) {
        give_up(victim.start, victim.end);
        warn_full(MAYA_CONTENT_FLOATING);
    }
    pthread_rwlock_unlock(&maya_hold_lock);
}

/* ---- writing ---- */

static bool is_small(size_t whole) { return (int64_t)whole <= maya_get_settings()->small_bytes; }

static bool may_be_copied(size_t whole, maya_content content) {
    const maya_settings *settings = maya_get_settings();
    return is_small(whole) || (int64_t)whole <= settings->copy_bytes ||
           (content == MAYA_CONTENT_OBJECT && (int64_t)whole <= settings->object_bytes);
}

/* Whether there is room, or room can be made. The lock is held. */
static bool make_room(size_t size, maya_content *content) {
    maya_kept_answer answer = maya_kept_room(size, content);
    if (answer == MAYA_KEPT_FITS_IF_OTHERS_GIVE_WAY) give_way(size);
    return answer != MAYA_KEPT_IS_FULL;
}

bool maya_values_room_for(const void *address, size_t size, maya_content content) {
    if (is_small(size) || !may_be_copied(size, content)) return is_small(size);
    uintptr_t start = (uintptr_t)address, end = start + size;
    size_t replaced = 0;
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    for (int kind = 0; kind < MAYA_CONTENTS; kind++) {
        for (uintptr_t from = start; maya_kept_next(from, end, (maya_content)kind, &part); from = part.end) {
            replaced += part.end - part.start;
        }
    }
    bool answer = maya_kept_room(size - replaced, &content) != MAYA_KEPT_IS_FULL;
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

void maya_values_give_up(void *address, size_t size, size_t whole, maya_content content) {
    uintptr_t start = (uintptr_t)address;
    pthread_mutex_lock(&maya_values_lock);
    give_up(start, start + size);
    if (content == MAYA_CONTENT_OBJECT) maya_values_mark(&maya_objects, start, start + size);
    warn_given_up(whole, content, may_be_copied(whole, content));
    pthread_mutex_unlock(&maya_values_lock);
}

/* Begins to write contents to [start, end), a part of `whole` bytes. true: end_write must follow. false: there is no room. */
static bool begin_write(uintptr_t start, uintptr_t end, size_t whole, maya_content *content) {
    if (!is_small(whole)) {
        pthread_mutex_lock(&maya_values_lock);
        maya_kept_remove(start, end); /* they replace what is there */
        bool is_kept = may_be_copied(whole, *content) && make_room(end - start, content);
        pthread_mutex_unlock(&maya_values_lock);
        if (!is_kept) return false;
    }
    maya_values_hold();
    return true;
}

static void end_write(uintptr_t start, uintptr_t end, size_t whole, maya_content content, bool is_object) {
    pthread_mutex_lock(&maya_values_lock);
    maya_values_mark_known(start, end);
    if (is_object) maya_values_mark(&maya_objects, start, end);
    else if (maya_objects.count > 0) maya_intervals_remove(&maya_objects, start, end);
    if (!is_small(whole)) maya_kept_add(start, end, content);
    pthread_mutex_unlock(&maya_values_lock);
    maya_values_release();
}

/* Host to device. */
static void copy_in(char *destination, const char *source, size_t size, size_t whole, maya_content content) {
    uintptr_t start = (uintptr_t)destination, end = start + size;
    maya_content kept_as = content;
    if (!begin_write(start, end, whole, &kept_as)) {
        maya_values_give_up(destination, size, whole, content);
        return;
    }
    memcpy(destination, source, size);
    end_write(start, end, whole, kept_as, content == MAYA_CONTENT_OBJECT);
}

/* ---- copies from device memory ---- */

/* Finds the parts of [start, end) that have no room at the destination and, for each kind of large contents, the kind under
 * which the destination keeps them. */
static void find_left_out(uintptr_t start, uintptr_t end, maya_intervals *left_out, maya_content kept_as[MAYA_CONTENTS]) {
    maya_interval part;
    for (int content = 0; content < MAYA_CONTENTS; content++) {
        size_t size = 0;
        for (uintptr_t from = start; maya_kept_next(from, end, (maya_content)content, &part); from = part.end) {
            size += part.end - part.start;
        }
        kept_as[content] = (maya_content)content;
        if (size == 0 || make_room(size, &kept_as[content])) continue;
        warn_given_up(size, (maya_content)content, true);
        for (uintptr_t from = start; maya_kept_next(from, end, (maya_content)content, &part); from = part.end) {
            maya_intervals_add(left_out, part.start, part.end);
        }
    }
}

static void copy_marks(maya_intervals *set, uintptr_t start, uintptr_t end, uintptr_t shift) {
    maya_interval part;
    for (uintptr_t from = start; maya_intervals_next(set, from, end, &part); from = part.end) {
        maya_values_mark(set, part.start + shift, part.end + shift);
    }
}

/* As copy_to_host. Large contents also take room at the destination. */
static void copy_on_device(uintptr_t start, uintptr_t end, uintptr_t shift, size_t whole) {
    maya_intervals left_out = {0};
    maya_content kept_as[MAYA_CONTENTS];
    maya_interval part, gap;
    maya_values_forget(start + shift, end + shift);
    if (!is_small(whole)) find_left_out(start, end, &left_out, kept_as);
    for (uintptr_t from = start; maya_intervals_next(&maya_dirty, from, end, &part); from = part.end) {
        uintptr_t next = part.start;
        for (; maya_intervals_next(&left_out, next, part.end, &gap); next = gap.end) {
            memmove((void *)(next + shift), (void *)next, gap.start - next);
            maya_values_mark(&maya_dirty, next + shift, gap.start + shift);
        }
        memmove((void *)(next + shift), (void *)next, part.end - next);
        maya_values_mark(&maya_dirty, next + shift, part.end + shift);
    }
    copy_marks(&maya_known, start, end, shift);
    copy_marks(&maya_objects, start, end, shift);
    copy_marks(&maya_assumed, start, end, shift);
    copy_marks(&maya_given_up, start, end, shift);
    for (int content = 0; !is_small(whole) && content < MAYA_CONTENTS; content++) {
        for (uintptr_t from = start; maya_kept_next(from, end, (maya_content)content, &part); from = part.end) {
            maya_kept_add(part.start + shift, part.end + shift, kept_as[content]);
        }
    }
    for (size_t i = 0; i < left_out.count; i++) {
        gap = left_out.items[i];
        maya_kept_remove(gap.start + shift, gap.end + shift);
        maya_intervals_remove(&maya_known, gap.start + shift, gap.end + shift);
        maya_intervals_remove(&maya_assumed, gap.start + shift, gap.end + shift);
        maya_values_mark(&maya_given_up, gap.start + shift, gap.end + shift);
    }
    free(left_out.items);
}

/* To host memory whose placeholders are tracked: touches no page for the rest. */
static void copy_to_placeholder(uintptr_t start, uintptr_t end, uintptr_t shift) {
    maya_interval part;
    maya_host_set_placeholder((void *)(start + shift), end - start);
    for (uintptr_t from = start; maya_intervals_next(&maya_known, from, end, &part); from = part.end) {
        maya_host_set_known((void *)(part.start + shift), part.end - part.start);
    }
    for (uintptr_t from = start; maya_intervals_next(&maya_dirty, from, end, &part); from = part.end) {
        memmove((void *)(part.start + shift), (void *)part.start, part.end - part.start);
    }
}

/* Touches dirty parts only, so that copying terabytes of placeholders is cheap. */
static void copy_to_host(uintptr_t start, uintptr_t end, uintptr_t shift) {
    uintptr_t from = start;
    maya_interval part;
    if (maya_host_makes_placeholders(end - start) && maya_host_is_tracked((void *)(start + shift), end - start)) {
        copy_to_placeholder(start, end, shift);
        return;
    }
    for (; maya_intervals_next(&maya_dirty, from, end, &part); from = part.end) {
        memset((void *)(from + shift), 0, part.start - from);
        memmove((void *)(part.start + shift), (void *)part.start, part.end - part.start);
    }
    memset((void *)(from + shift), 0, end - from);
    maya_host_set_known((void *)(start + shift), end - start);
}

void maya_values_copy_part(void *destination, const void *source, size_t size, size_t whole, maya_content content) {
    bool to_device = maya_address_device(destination) >= 0, from_device = maya_address_device(source) >= 0;
    if (size == 0 || destination == source) return;
    if (!from_device && to_device) return copy_in(destination, source, size, whole, content);
    if (!from_device) {
        memmove(destination, source, size);
        return;
    }
    uintptr_t start = (uintptr_t)source, end = start + size, shift = (uintptr_t)destination - start;
    pthread_mutex_lock(&maya_values_lock);
    if (to_device) copy_on_device(start, end, shift, whole);
    else copy_to_host(start, end, shift);
    pthread_mutex_unlock(&maya_values_lock);
}

void maya_values_copy(void *destination, const void *source, size_t size) {
    maya_values_copy_part(destination, source, size, size, MAYA_CONTENT_OTHER);
}

void maya_values_fill(void *address, const void *pattern, size_t pattern_size, size_t size, size_t whole) {
    bool zeros = true, on_device = maya_address_device(address) >= 0;
    uintptr_t start = (uintptr_t)address, end = start + size;
    for (size_t i = 0; i < pattern_size; i++) zeros = zeros && ((const char *)pattern)[i] == 0;
    if (zeros && on_device) {
        /* placeholder memory holds zeros already, so the range becomes known without touching a page */
        pthread_mutex_lock(&maya_values_lock);
        maya_values_forget(start, end);
        maya_values_mark(&maya_known, start, end);
        pthread_mutex_unlock(&maya_values_lock);
        return;
    }
    maya_content content = MAYA_CONTENT_FLOATING; /* a single repeated value; integers need the room more */
    if (on_device && !begin_write(start, end, whole, &content)) {
        maya_values_give_up(address, size, whole, content);
        return;
    }
    for (size_t offset = 0; offset < size; offset += pattern_size) {
        memcpy((char *)address + offset, pattern, size - offset < pattern_size ? size - offset : pattern_size);
    }
    if (on_device) end_write(start, end, whole, content, false);
}

/* ---- computed ---- */

bool maya_values_room_to_compute(size_t size, maya_content content) {
    if (is_small(size)) return true;
    pthread_mutex_lock(&maya_values_lock);
    bool answer = make_room(size, &content);
    if (!answer) warn_given_up(size, content, true);
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

bool maya_values_are_large_integers(const void *address) {
    maya_interval part;
    pthread_mutex_lock(&maya_values_lock);
    bool answer = maya_kept_next((uintptr_t)address, (uintptr_t)address + 1, MAYA_CONTENT_OTHER, &part);
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

bool maya_values_room_left(size_t size) {
    maya_content content = MAYA_CONTENT_OTHER;
    if (is_small(size)) return true;
    pthread_mutex_lock(&maya_values_lock);
    bool answer = maya_kept_room(size, &content) == MAYA_KEPT_FITS;
    pthread_mutex_unlock(&maya_values_lock);
    return answer;
}

void maya_values_computed(const void *address, size_t size, maya_content content) {
    uintptr_t start = (uintptr_t)address, end = start + size;
    if (maya_address_device(address) < 0) return;
    pthread_mutex_lock(&maya_values_lock);
    maya_values_mark_known(start, end);
    if (!is_small(size)) maya_kept_add(start, end, content);
    pthread_mutex_unlock(&maya_values_lock);
}

/* ---- from other ranks ---- */

bool maya_values_receive(void *address, size_t size, const void *bytes, const int64_t *parts, size_t count,
                         maya_content content) {
    uintptr_t start = (uintptr_t)address;
    bool on_device = maya_address_device(address) >= 0;
    const char *from = bytes;
    bool all_kept = true;
    if (!on_device) memset(address, 0, size);
    pthread_mutex_lock(&maya_values_lock);
    if (on_device) maya_values_forget(start, start + size);
    for (size_t i = 0; i + 1 < count; i += 2) {
        size_t part = (size_t)(parts[i + 1] - parts[i]);
        uintptr_t part_start = start + (uintptr_t)parts[i], part_end = start + (uintptr_t)parts[i + 1];
        maya_content kept_as = content;
        bool is_kept = !on_device || is_small(part) || make_room(part, &kept_as);
        all_kept = all_kept && is_kept;
        if (is_kept) memcpy((char *)address + parts[i], from, part);
        else give_up(part_start, part_end);
        if (!is_kept) warn_given_up(part, content, true);
        if (is_kept && on_device) maya_values_mark_known(part_start, part_end);
        if (is_kept && on_device && !is_small(part)) maya_kept_add(part_start, part_end, kept_as);
        from += part;
    }
    pthread_mutex_unlock(&maya_values_lock);
    return all_kept;
}
