/* A growing array, and allocation that cannot fail.
 *
 * A vector is any struct with the members `items`, `count` and `capacity`; MAYA_VECTOR(type) makes an anonymous one:
 *
 *     static MAYA_VECTOR(fault) faults;
 *     *maya_vector_add(&faults) = (fault){...};
 *     for (size_t i = 0; i < faults.count; i++) use(&faults.items[i]);
 *     maya_vector_clear(&faults);
 *
 * Rules: zeros are an empty vector. Growing moves the items, so pointers to them do not stay valid. Vectors do not lock. A rank
 * without memory cannot continue and aborts. */
#pragma once

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The result of malloc, calloc, realloc or strdup; aborts if it is NULL. */
static inline void *must_alloc(void *memory) {
    if (__builtin_expect(memory == NULL, 0)) abort();
    return memory;
}

#define MAYA_VECTOR(type) \
    struct { \
        type *items; \
        size_t count, capacity; \
    }

static inline void *maya_vector_grow(void *items, size_t *capacity, size_t wanted, size_t item_bytes) {
    if (__builtin_expect(wanted <= *capacity, 1)) return items;
    *capacity = wanted * 2 + 8;
    return must_alloc(realloc(items, *capacity * item_bytes));
}

/* Makes room for `wanted` items in total. */
#define maya_vector_reserve(vector, wanted) \
    ((vector)->items = maya_vector_grow((vector)->items, &(vector)->capacity, (wanted), sizeof *(vector)->items))

/* Appends one item and points to it; its contents are undefined. */
#define maya_vector_add(vector) (maya_vector_reserve((vector), (vector)->count + 1), &(vector)->items[(vector)->count++])

/* Appends zeros until the vector has at least `wanted` items. */
#define maya_vector_extend(vector, wanted) \
    do { \
        size_t maya_wanted = (wanted); \
        if (maya_wanted <= (vector)->count) break; \
        maya_vector_reserve((vector), maya_wanted); \
        memset((vector)->items + (vector)->count, 0, (maya_wanted - (vector)->count) * sizeof *(vector)->items); \
        (vector)->count = maya_wanted; \
    } while (0)

/* Frees the items and leaves an empty vector. */
#define maya_vector_clear(vector) \
    do { \
        free((vector)->items); \
        (vector)->items = NULL; \
        (vector)->count = (vector)->capacity = 0; \
    } while (0)
