/* Room for large contents (kept.h): one set of ranges for each kind of contents.
 *
 * Floating-point contents never displace others: a model copied to the device fills the room once and costs nothing after
 * that. Control flow depends on integers, so integers displace floating-point contents, from the largest range first. */

#include "kept.h"

static maya_intervals kept[MAYA_CONTENTS];

void maya_kept_add(uintptr_t start, uintptr_t end, maya_content content) { maya_intervals_add(&kept[content], start, end); }

void maya_kept_remove(uintptr_t start, uintptr_t end) {
    for (int content = 0; content < MAYA_CONTENTS; content++) {
        if (kept[content].count > 0) maya_intervals_remove(&kept[content], start, end);
    }
}

bool maya_kept_next(uintptr_t start, uintptr_t end, maya_content content, maya_interval *part) {
    return kept[content].count > 0 && maya_intervals_next(&kept[content], start, end, part);
}

maya_kept_answer maya_kept_room(size_t size, maya_content *content) {
    const maya_settings *settings = maya_get_settings();
    const uint64_t most = (uint64_t)settings->kept_bytes;
    const uint64_t floating = kept[MAYA_CONTENT_FLOATING].total, other = kept[MAYA_CONTENT_OTHER].total;
    if (*content == MAYA_CONTENT_OBJECT) {
        if (kept[MAYA_CONTENT_OBJECT].total + size <= (uint64_t)settings->object_bytes) return MAYA_KEPT_FITS;
        *content = MAYA_CONTENT_OTHER;
    }
    if (floating + other + size <= most) return MAYA_KEPT_FITS;
    if (*content == MAYA_CONTENT_OTHER && other + size <= most) return MAYA_KEPT_FITS_IF_OTHERS_GIVE_WAY;
    return MAYA_KEPT_IS_FULL;
}

bool maya_kept_victim(size_t size, maya_interval *victim) {
    const maya_intervals *floating = &kept[MAYA_CONTENT_FLOATING];
    const uint64_t most = (uint64_t)maya_get_settings()->kept_bytes;
    const uint64_t wanted = floating->total + kept[MAYA_CONTENT_OTHER].total + size;
    if (wanted <= most || floating->count == 0) return false;
    *victim = floating->items[0];
    for (size_t i = 1; i < floating->count; i++) {
        if (floating->items[i].end - floating->items[i].start > victim->end - victim->start) *victim = floating->items[i];
    }
    if (victim->end - victim->start > wanted - most) victim->end = victim->start + (uintptr_t)(wanted - most);
    return true;
}
