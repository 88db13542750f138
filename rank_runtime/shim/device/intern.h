/* Interned strings: every distinct text once, numbered 1, 2, ... as they first came; 0 is the empty one.
 *
 * In: the texts given to maya_intern (device.h). Out: their numbers, and for the recorder the strings themselves in the
 * order of their numbers, so that it can write those the file does not have yet. Strings are never forgotten: callers
 * keep the numbers. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

typedef struct maya_string {
    struct maya_string *_Atomic next; /* the string with the next number, once there is one */
    uint64_t hash;
    uint32_t number;
    uint32_t length;
    char text[]; /* not terminated */
} maya_string;

/* The string numbered next after `previous` (NULL: the first); NULL when there is none yet. */
const maya_string *maya_string_after(const maya_string *previous);

/* The string with that number; NULL: there is none, or 0. */
const maya_string *maya_string_numbered(uint32_t number);

/* Around fork(), so that the child finds the table whole. */
void maya_intern_lock(void);
void maya_intern_unlock(void);
