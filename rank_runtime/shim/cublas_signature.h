/* The optional keys of a signature: a key is left out if its value is the default. */
#pragma once

#include <stdint.h>
#include <stdio.h>

typedef struct {
    char text[512]; /* ,"key":value,... as it goes into the middle of a JSON object */
    size_t used;
} more_keys;

/* Adds a number; 0 is left out. */
static inline void add_number(more_keys *keys, const char *key, int64_t value) {
    if (value != 0)
        keys->used +=
            (size_t)snprintf(keys->text + keys->used, sizeof keys->text - keys->used, ",\"%s\":%lld", key, (long long)value);
}

/* Adds a text; NULL is left out. */
static inline void add_word(more_keys *keys, const char *key, const char *word) {
    if (word != NULL)
        keys->used += (size_t)snprintf(keys->text + keys->used, sizeof keys->text - keys->used, ",\"%s\":\"%s\"", key, word);
}
