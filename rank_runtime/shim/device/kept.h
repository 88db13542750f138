/* Room for large contents: the device memory whose contents count against MAYA_KEPT_BYTES and MAYA_OBJECT_BYTES.
 *
 * In: the ranges of large contents (more than `small_bytes`) that were copied, filled or received, with their kind. Out:
 * whether more fits, and which range must be given up. Small contents and computed results do not count: they are always kept.
 * Not thread-safe; values.c locks. */
#pragma once

#include "device.h"
#include "intervals.h"

void maya_kept_add(uintptr_t start, uintptr_t end, maya_content content);
void maya_kept_remove(uintptr_t start, uintptr_t end);
/* The first part of [start, end) that keeps contents of this kind; false when there is none. */
bool maya_kept_next(uintptr_t start, uintptr_t end, maya_content content, maya_interval *part);

typedef enum {
    MAYA_KEPT_FITS,
    MAYA_KEPT_FITS_IF_OTHERS_GIVE_WAY, /* maya_kept_victim names them */
    MAYA_KEPT_IS_FULL,
} maya_kept_answer;

/* Whether there is room for `size` more bytes. Objects beyond the limit of objects count as other contents: then `content`
 * becomes MAYA_CONTENT_OTHER. */
maya_kept_answer maya_kept_room(size_t size, maya_content *content);
/* The next floating-point range to give up for `size` more bytes; false: there is room now, or no such range. */
bool maya_kept_victim(size_t size, maya_interval *victim);
