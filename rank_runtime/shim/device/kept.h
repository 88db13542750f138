/* Room for large contents: the device memory whose contents count against MAYA_KEPT_BYTES and MAYA_OBJECT_BYTES.
 *
 * In: which ranges keep contents that were copied, filled or received, each larger than `small_bytes`, and what kind they are.
 * Out: whether more fits, and which range has to give way. Small contents and computed results are not in here: they are always
 * kept. Not thread-safe; values.c locks. */
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

/* Is there room for `size` more bytes? Objects that do not fit where objects are kept go where the others are: then `content`
 * becomes MAYA_CONTENT_OTHER. */
maya_kept_answer maya_kept_room(size_t size, maya_content *content);
/* A range of floating-point contents that has to give way for `size` more bytes; false when none has to or there is none. */
bool maya_kept_victim(size_t size, maya_interval *victim);
